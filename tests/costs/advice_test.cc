// Advice from measurements.
#include "engine/costs/advice.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

AttemptSample sample(const std::string& task, double duration_s) {
  AttemptSample sample;
  sample.run = "r2";
  sample.task = sample.name = task;
  sample.worker = "local";
  sample.duration_s = duration_s;
  return sample;
}

AttemptSample of_memory(int64_t asked_mib, int64_t peak_mib) {
  AttemptSample sample = ::sample("load", 10);
  sample.memory_bytes = asked_mib << 20;
  sample.peak_memory = peak_mib << 20;
  return sample;
}

AttemptSample of_ranks(uint32_t ranks, double duration_s) {
  AttemptSample sample = ::sample("train", duration_s);
  sample.ranks = ranks;
  return sample;
}

KeyMiss miss(const std::string& run, std::vector<std::string> causes) {
  return {run, "stamp", "stamp", std::move(causes), "argument `date` changed from `1` to `2`", 60};
}

std::vector<Advice> of(std::vector<AttemptSample> samples, std::vector<KeyMiss> misses = {}) {
  return advice_of(samples, misses);
}

}  // namespace

TEST_CASE("memory that no attempt needed: the advised figure is within 20% of the peak") {
  auto advice = of({of_memory(4096, 700), of_memory(4096, 800)});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].kind == "memory");
  CHECK(advice[0].change == "memory = \"920MiB\"");
  CHECK(advice[0].evidence == "2 attempts: peak 700 MiB to 800 MiB; it asks for 4 GiB");
  CHECK(advice[0].value >= 800.0 * (1 << 20));
  CHECK(advice[0].value <= 1.2 * 800 * (1 << 20));
}

TEST_CASE("no advice on memory that is nearly used, small, or not measured") {
  CHECK(of({of_memory(1000, 800)}).empty());
  CHECK(of({of_memory(60, 10)}).empty());
  AttemptSample unknown = of_memory(4096, 0);
  unknown.peak_memory = -1;
  CHECK(of({unknown}).empty());
  AttemptSample asks_none = of_memory(0, 800);
  CHECK(of({asks_none}).empty());
}

TEST_CASE("CPUs that no attempt kept busy") {
  AttemptSample busy = sample("t", 10);
  busy.cpus = 8;
  busy.cpu_s = 18;
  auto advice = of({busy});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].change == "cpus = 2");
  CHECK(advice[0].gain == "6 fewer CPUs per attempt");
  busy.cpu_s = 75;
  CHECK(of({busy}).empty());
  busy.cpu_s = 0.1;
  busy.duration_s = 0.5;  // too short to say anything
  CHECK(of({busy}).empty());
}

TEST_CASE("ranks: more where they help, fewer where they do not") {
  auto advice = of({of_ranks(1, 100), of_ranks(4, 30)});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].change == "ranks = 4 or more");
  CHECK(advice[0].evidence == "1 rank: 1m 40s (1 attempt); 4 ranks: 30s (1 attempt)");
  advice = of({of_ranks(1, 100), of_ranks(4, 90)});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].change == "ranks = 1");
  CHECK(of({of_ranks(1, 100), of_ranks(4, 40)}).empty());  // between the thresholds
  CHECK(of({of_ranks(4, 100), of_ranks(4, 30)}).empty());  // one number of ranks says nothing
}

TEST_CASE("a part of the key that differs in every run") {
  auto advice = of({}, {miss("r3", {"argument `date`"}), miss("r2", {"argument `date`"})});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].kind == "cache");
  CHECK(advice[0].change ==
        "keep argument `date` the same from run to run, or leave it out: it is the only part of "
        "the key that changes");
  CHECK(of({}, {miss("r3", {"argument `date`"})}).empty());
  CHECK(of({}, {miss("r3", {"argument `date`"}), miss("r2", {"its function"})}).empty());
  CHECK(of({}, {miss("r3", {"argument `date`", "its function"}), miss("r2", {"argument `date`"})})
            .empty());
}

TEST_CASE("a worker on which a task takes longer than on the others") {
  std::vector<AttemptSample> samples;
  for (int i = 0; i < 3; i++) {
    samples.push_back(sample("t", 10));
    samples.push_back(sample("t", 16));
    samples.back().worker = "slow";
  }
  auto advice = of(samples);
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].kind == "worker");
  CHECK(advice[0].evidence ==
        "3 attempts there: median 16s; 3 attempts on other workers: median 10s");
  samples.pop_back();
  CHECK(of(samples).empty());  // 2 attempts there are too few
}

TEST_CASE("instances that take much longer than the median of their map") {
  std::vector<AttemptSample> samples;
  for (int i = 0; i < 5; i++) {
    samples.push_back(sample("m", i == 2 ? 40 : 10));
    samples.back().is_of_map = true;
    samples.back().name = "m[" + std::to_string(i + 1) + "]";
  }
  auto advice = of(samples);
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].kind == "straggler");
  CHECK(advice[0].change == "give `m[3]` a smaller part of the work, or start it first");
  samples.pop_back();
  CHECK(of(samples).empty());
}
