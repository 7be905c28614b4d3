// What attempts use of their GPUs, with a replacement for the driver's library.
#include "engine/worker/gpu_meter.hpp"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <fstream>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

RankId rank_of(uint32_t unit) { return {{"run", unit, 1, 1}, 0}; }

class Meter {
 public:
  explicit Meter(const std::string& story) {
    std::ofstream(place_ / "story") << story;
    ::setenv("FLOW_NVML_LIB", std::getenv("FLOW_TEST_NVML"), 1);
    ::setenv("FLOW_FAKE_NVML", (place_ / "story").c_str(), 1);
    meter_.emplace(std::getenv("FLOW_TEST_EXECUTOR"), [this] {
      std::lock_guard lock(mutex_);
      is_ready_ = true;
      changed_.notify_all();
    });
  }
  ~Meter() {
    meter_.reset();
    ::unsetenv("FLOW_NVML_LIB");
    ::unsetenv("FLOW_FAKE_NVML");
  }
  /// Waits for the end of `count` ranks.
  std::vector<std::pair<RankId, core::AttemptUsage>> take(size_t count) {
    std::vector<std::pair<RankId, core::AttemptUsage>> all;
    while (all.size() < count) {
      std::unique_lock lock(mutex_);
      REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return is_ready_; }));
      is_ready_ = false;
      for (auto& each : meter_->take_ready()) all.push_back(std::move(each));
    }
    return all;
  }
  GpuMeter& operator*() { return *meter_; }
  GpuMeter* operator->() { return &*meter_; }

 private:
  TempFolder place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ready_ = false;
  std::optional<GpuMeter> meter_;
};

/// Whether the share `part` of `whole` is between these, but for what two figures are rounded by.
bool is_share(int64_t part, int64_t whole, double least, double most) {
  constexpr double kRounding = 2;
  auto all = static_cast<double>(whole);
  auto of = static_cast<double>(part);
  return least * all - kRounding <= of && of <= most * all + kRounding;
}

}  // namespace

TEST_CASE("an attempt is measured by the driver, and those that share a GPU divide it") {
  Meter meter(
      "gpu GPU-a 80 A\nload 50 20 61 200000\ngpu GPU-b 80 B\nload 25 1 30 100000\nenergy\n");
  CHECK_FALSE(meter->end(rank_of(1)));  // it has not begun
  meter->begin(rank_of(1), {"GPU-a"}, 1000);
  meter->begin(rank_of(2), {"GPU-b"}, 500);
  meter->begin(rank_of(3), {"GPU-b"}, 500);
  // The driver's answer to a beginning covers the others.
  REQUIRE(meter->end(rank_of(1)));
  auto first = meter.take(1);
  CHECK(first[0].first == rank_of(1));
  core::AttemptUsage whole = first[0].second;
  REQUIRE(whole.gpu_measured_us > 0);
  CHECK(is_share(whole.gpu_used_us, whole.gpu_measured_us, 0.5, 0.5));
  CHECK(whole.gpu_energy_mj >= 0);  // of some microseconds: gpu_accounts_test has the figures
  meter->end(rank_of(2));
  meter->end(rank_of(3));
  auto both = meter.take(2);
  CHECK(both[0].first == rank_of(2));
  CHECK(both[1].first == rank_of(3));
  core::AttemptUsage sum = both[0].second;
  core::add_gpu_use(sum, both[1].second);
  // Half of the GPU each; one that is alone has all of its use.
  CHECK(is_share(sum.gpu_used_us, sum.gpu_measured_us, 0.25, 0.5));
  CHECK(sum.gpu_energy_mj >= 0);
  CHECK_FALSE(meter->end(rank_of(2)));
}

TEST_CASE("without an answer of the driver nothing is known, and an end does not wait for ever") {
  for (const char* story : {"hang\n", "crash\n", "gpu GPU-b 80 B\n"}) {
    INFO(story);
    Meter meter(story);
    meter->begin(rank_of(1), {"GPU-a"}, 1000);
    meter->end(rank_of(1));
    CHECK(meter.take(1)[0].second == core::AttemptUsage{});
  }
}

TEST_CASE("an attempt that has not begun after all is not reported") {
  Meter meter("gpu GPU-a 80 A\nload 50 20 61 200000\n");
  meter->begin(rank_of(1), {"GPU-a"}, 1000);
  meter->drop(rank_of(1));
  CHECK_FALSE(meter->end(rank_of(1)));
  CHECK(meter->take_ready().empty());
}
