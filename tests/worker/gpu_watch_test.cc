// Reports of GPU failures, with a replacement for the driver's library.
#include "engine/worker/gpu_watch.hpp"

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

constexpr const char* kTwo = "gpu GPU-a 80 A\ngpu GPU-b 80 B\n";

/// Records the reports of a watch whose driver sees this machine.
class ReceivedErrors {
 public:
  explicit ReceivedErrors(const std::string& story) {
    std::ofstream(place_ / "story") << story;
    ::setenv("FLOW_NVML_LIB", getenv("FLOW_TEST_NVML"), 1);
    ::setenv("FLOW_FAKE_NVML", (place_ / "story").c_str(), 1);
  }
  void watch(const std::vector<std::string>& uuids, size_t count) {
    std::vector<Gpu> gpus;
    for (const std::string& uuid : uuids) gpus.emplace_back().uuid = uuid;
    auto add = [this](const std::string& text) {
      std::lock_guard lock(mutex_);
      texts_.push_back(text);
      changed_.notify_all();
    };
    GpuWatch watch(
        getenv("FLOW_TEST_EXECUTOR"), gpus,
        [add](const std::string& uuid, const GpuError& error) {
          add(uuid + " " + error.fault + (error.is_dead ? ", dead" : ""));
        },
        add);
    std::unique_lock lock(mutex_);
    REQUIRE(
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return texts_.size() >= count; }));
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  TempFolder place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
};

}  // namespace

TEST_CASE("each failure of a GPU is reported in order, and errors of programs are not") {
  ReceivedErrors received(
      std::string(kTwo) +
      "xid 1 13\nxid 1 74\nxid 0 43\nxid 0 95\nxid 1 109\nxid 1 7777\nxid 1 gone\n");
  received.watch({"GPU-a", "GPU-b"}, 3);
  CHECK(received.texts() ==
        std::vector<std::string>{"GPU-b has an error on NVLink (Xid 74)",
                                 "GPU-a had an uncontained memory error (Xid 95), dead",
                                 "GPU-b is lost to its driver, dead"});
}

TEST_CASE("a GPU that is missing when the watch restarts is lost") {
  ReceivedErrors received("gpu GPU-a 80 A\nxid 0 79\n");
  received.watch({"GPU-a", "GPU-b"}, 2);
  CHECK(received.texts() == std::vector<std::string>{"GPU-b is lost to its driver, dead",
                                                     "GPU-a fell off the bus (Xid 79), dead"});
}

TEST_CASE("failures of GPUs that the engine does not use are not reported") {
  ReceivedErrors received(std::string(kTwo) + "xid 0 79\nxid 1 79\n");
  received.watch({"GPU-b"}, 1);
  CHECK(received.texts() == std::vector<std::string>{"GPU-b fell off the bus (Xid 79), dead"});
}

TEST_CASE("all instances of a GPU fail with it") {
  ReceivedErrors received("gpu GPU-a 80 A\nmig MIG-1 40 A\nmig MIG-2 40 A\nxid 0 48\n");
  received.watch({"MIG-1", "MIG-2"}, 2);
  CHECK(received.texts() ==
        std::vector<std::string>{"MIG-1 has an uncorrectable memory error (Xid 48), dead",
                                 "MIG-2 has an uncorrectable memory error (Xid 48), dead"});
}

TEST_CASE("a driver without error events is reported once, with the reason") {
  ReceivedErrors received(std::string(kTwo) + "fail nvmlDeviceRegisterEvents 3\n");
  received.watch({"GPU-a"}, 1);
  CHECK(received.texts() ==
        std::vector<std::string>{"GPU errors are not reported: the NVIDIA driver does not report "
                                 "errors: Unknown Error (status 3)"});
}

TEST_CASE("the GPUs of a watch with samples are measured, as far as they can be") {
  TempFolder place;
  std::ofstream(place / "story") << "gpu GPU-a 80 A\nload 40 20 61 250500\ngpu GPU-b 80 B\n"
                                    "gpu GPU-c 80 C\n";
  ::setenv("FLOW_NVML_LIB", getenv("FLOW_TEST_NVML"), 1);
  ::setenv("FLOW_FAKE_NVML", (place / "story").c_str(), 1);
  auto samples = std::make_shared<GpuSamples>();
  std::vector<Gpu> gpus(2);
  gpus[0].uuid = "GPU-a";
  gpus[1].uuid = "GPU-c";
  GpuWatch watch(
      getenv("FLOW_TEST_EXECUTOR"), gpus, [](const std::string&, const GpuError&) {},
      [](const std::string&) {}, samples);
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (samples->all().size() < 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  CHECK(samples->all() == std::vector<GpuSample>{{0, "GPU-a", 40, 20 << 20, 80 << 20, 61, 250'500},
                                                 {2, "GPU-c", {}, 0, 80 << 20, {}, {}}});
}
