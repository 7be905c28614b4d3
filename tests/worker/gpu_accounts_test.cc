// How what GPUs measure is divided among attempts.
#include "engine/worker/gpu_accounts.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

constexpr int64_t kSecond = 1'000'000;

RankId rank(uint32_t unit) { return {{"run", unit, 1, 1}, 0}; }

GpuSample sample(uint32_t percent, uint32_t milliwatts, const std::string& uuid = "GPU-a") {
  GpuSample sample;
  sample.uuid = uuid;
  sample.utilization_percent = percent;
  sample.power_milliwatts = milliwatts;
  return sample;
}

struct Use {
  int64_t used_us, measured_us, energy_mj;
  bool operator==(const Use&) const = default;
};

Use take(GpuAccounts& accounts, uint32_t unit) {
  core::AttemptUsage usage = accounts.take(rank(unit));
  return {usage.gpu_used_us, usage.gpu_measured_us, usage.gpu_energy_mj};
}

}  // namespace

TEST_CASE("each sample counts for the time since the one before it") {
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a"}, 1, 0);
  accounts.add(sample(20, 100'000), 1 * kSecond);
  accounts.add(sample(60, 300'000), 3 * kSecond);
  accounts.end(rank(1), 4 * kSecond);
  accounts.add(sample(100, 500'000), 5 * kSecond);
  // 1 s at 20%, 2 s at 60%, 1 s at 100%
  CHECK(take(accounts, 1) == Use{2'400'000, 4 * kSecond, 100'000 + 600'000 + 500'000});
  CHECK(accounts.gpus().empty());
}

TEST_CASE("after the last sample an attempt is measured as in it") {
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a"}, 1, 0);
  accounts.add(sample(50, 200'000), 2 * kSecond);
  accounts.end(rank(1), 6 * kSecond);
  CHECK(accounts.lacks_sample_since(rank(1), 3 * kSecond));
  CHECK_FALSE(accounts.lacks_sample_since(rank(1), 2 * kSecond));
  CHECK(take(accounts, 1) == Use{3 * kSecond, 6 * kSecond, 1'200'000});
}

TEST_CASE("attempts that share a GPU divide it by their parts, and one that is alone has all") {
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a"}, 0.75, 0);
  accounts.begin(rank(2), {"GPU-a"}, 0.25, 2 * kSecond);
  accounts.end(rank(1), 6 * kSecond);
  accounts.end(rank(2), 8 * kSecond);
  accounts.add(sample(80, 100'000), 10 * kSecond);
  // Alone for 2 s, together for 4 s, and alone for 2 s.
  CHECK(take(accounts, 1) == Use{1'600'000 + 2'400'000, 4'500'000, 200'000 + 300'000});
  CHECK(take(accounts, 2) == Use{800'000 + 1'600'000, 1'500'000, 100'000 + 200'000});
}

TEST_CASE("an attempt has the sum of its GPUs") {
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a", "GPU-b"}, 1, 0);
  accounts.add(sample(100, 1'000), kSecond);
  accounts.add(sample(10, 2'000, "GPU-b"), kSecond);
  accounts.end(rank(1), kSecond);
  CHECK(take(accounts, 1) == Use{1'100'000, 2 * kSecond, 3'000});
}

TEST_CASE("energy is that of the counter, and of the power where the counter began anew") {
  auto counted = [](uint32_t milliwatts, uint64_t millijoules) {
    GpuSample counted = sample(50, milliwatts);
    counted.energy_millijoules = millijoules;
    return counted;
  };
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a"}, 0.5, 0);
  accounts.begin(rank(2), {"GPU-a"}, 0.5, 0);
  accounts.add(counted(1'000, 500), kSecond);        // 1 J by its power
  accounts.add(counted(9'000, 4'500), 2 * kSecond);  // 4 J
  accounts.add(counted(1'000, 10), 3 * kSecond);     // 1 J by its power
  accounts.end(rank(1), 3 * kSecond);
  CHECK(take(accounts, 1).energy_mj == 3'000);
}

TEST_CASE("what a GPU does not measure is unknown") {
  GpuAccounts accounts;
  accounts.begin(rank(1), {"GPU-a"}, 1, 0);
  accounts.begin(rank(2), {"GPU-b"}, 1, 0);
  accounts.begin(rank(3), {"GPU-c"}, 1, 0);
  GpuSample nothing, no_power = sample(40, 0, "GPU-b");
  nothing.uuid = "GPU-a";
  no_power.power_milliwatts.reset();
  accounts.add(nothing, kSecond);
  accounts.add(no_power, kSecond);
  for (uint32_t unit : {1, 2, 3}) accounts.end(rank(unit), kSecond);
  CHECK(take(accounts, 1) == Use{-1, -1, -1});
  CHECK(take(accounts, 2) == Use{400'000, kSecond, -1});
  CHECK(take(accounts, 3) == Use{-1, -1, -1});  // it has not answered yet
  CHECK(take(accounts, 4) == Use{-1, -1, -1});
}
