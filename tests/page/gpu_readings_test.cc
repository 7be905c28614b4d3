// What the page shows of GPUs, with a replacement for the driver's library.
#include "engine/page/gpu_readings.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

constexpr const char* kReadings =
    R"({"GPU-a":{"utilisation":87,"memory_used":1073741824,"memory":85899345920,)"
    R"("temperature":51,"power":402.13},"GPU-b":{"utilisation":null,"memory_used":0,)"
    R"("memory":41943040,"temperature":null,"power":null}})";

/// A machine with two GPUs, of which the second one measures only its memory.
class Machine {
 public:
  Machine() {
    std::ofstream(place_ / "story")
        << "gpu GPU-a 81920 A\nload 87 1024 51 402130\ngpu GPU-b 40 B\n";
    ::setenv("FLOW_NVML_LIB", std::getenv("FLOW_TEST_NVML"), 1);
    ::setenv("FLOW_FAKE_NVML", (place_ / "story").c_str(), 1);
  }
  ~Machine() {
    ::unsetenv("FLOW_NVML_LIB");
    ::unsetenv("FLOW_FAKE_NVML");
  }

 private:
  TempFolder place_;
};

std::string executor() { return std::getenv("FLOW_TEST_EXECUTOR"); }

std::vector<Gpu> gpus_of(const std::vector<std::string>& uuids) {
  std::vector<Gpu> gpus;
  for (const std::string& uuid : uuids) gpus.emplace_back().uuid = uuid;
  return gpus;
}

/// Asks until the answer is `wanted`.
bool answers(GpuReadings& readings, const std::vector<Gpu>& gpus, const std::string& wanted) {
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (readings.json(gpus) != wanted) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("readings of GPUs are numbers, and null where a GPU measures none") {
  CHECK(gpu_readings_json({}) == "{}");
  CHECK(gpu_readings_json({{0, "GPU-a", 87, int64_t{1} << 30, int64_t{80} << 30, 51, 402'130},
                           {1, "GPU-b", {}, 0, int64_t{40} << 20, {}, {}}}) == kReadings);
}

TEST_CASE("the driver of this machine is asked, without those of other machines") {
  Machine machine;
  GpuReadings readings(executor());
  CHECK_FALSE(readings.is_measuring());
  CHECK(answers(readings, gpus_of({"GPU-a", "GPU-b", "GPU-elsewhere"}), kReadings));
  CHECK(readings.is_measuring());
  // A worker has left.
  std::string one(kReadings);
  CHECK(answers(readings, gpus_of({"GPU-a"}), one.substr(0, one.find(",\"GPU-b")) + "}"));
}

TEST_CASE("nothing is measured when nobody asks any more") {
  Machine machine;
  GpuReadings readings(executor(), std::chrono::milliseconds(1));
  readings.json(gpus_of({"GPU-a"}));
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (readings.is_measuring() && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  CHECK_FALSE(readings.is_measuring());
}

TEST_CASE("without the driver there are no readings") {
  Machine machine;
  ::setenv("FLOW_NVML_LIB", "/nowhere/nvml.so", 1);
  GpuReadings readings(executor());
  CHECK(readings.json(gpus_of({"GPU-a"})) == "{}");
  CHECK(readings.json(gpus_of({"GPU-a"})) == "{}");
}
