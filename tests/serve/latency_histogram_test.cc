// Percentiles of durations, and counts of recent requests.
#include "engine/serve/latency_histogram.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

using namespace flow;
using namespace std::chrono_literals;
using std::chrono::microseconds;

TEST_CASE("a percentile is at most 5% off, from a microsecond to hours") {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(0, 10);
  LatencyHistogram histogram;
  std::vector<int64_t> all;
  for (int i = 0; i < 20'000; i++) {
    all.push_back(static_cast<int64_t>(std::pow(10, exponent(random))));
    histogram.add(microseconds(all.back()));
  }
  std::sort(all.begin(), all.end());
  CHECK(histogram.count() == all.size());
  for (double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    INFO(share);
    auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(all.size())));
    double exact = static_cast<double>(all[rank - 1]);
    double given = static_cast<double>(histogram.percentile(share).count());
    CHECK(std::abs(given - exact) <= 0.05 * exact);
  }
}

TEST_CASE("a histogram takes any duration, and has 0 for none") {
  LatencyHistogram histogram;
  CHECK(histogram.percentile(0.5) == 0us);
  histogram.add(-5us);
  CHECK(histogram.percentile(1) == 0us);
  histogram.add(microseconds(INT64_MAX));
  CHECK(histogram.percentile(1) > std::chrono::hours(18));
}

TEST_CASE("counts are kept since the begin, since the step, and of the last 10 s") {
  const RequestCounters::Clock::time_point start(1000s);
  RequestCounters counters(start);
  for (int i = 0; i < 100; i++) counters.count(i < 10 ? 500 : 200, 10ms, start + i * 10ms);
  for (int i = 0; i < 3; i++) counters.count(404, 1ms, start + 1s);
  auto figures = counters.figures(start + 2s);
  CHECK(figures.requests == 103);
  CHECK(figures.errors == 10);
  CHECK(figures.step_requests == 103);
  CHECK(figures.requests_per_second == Approx(103 / 2.0));
  CHECK(figures.p99.count() == Approx(10'000).epsilon(0.05));
  counters.restart_step();
  counters.count(502, 30ms, start + 20s);
  figures = counters.figures(start + 20s);
  CHECK(figures.requests == 104);
  CHECK(figures.step_requests == 1);
  CHECK(figures.step_errors == 1);
  CHECK(figures.step_p50.count() == Approx(30'000).epsilon(0.05));
  CHECK(figures.step_p99 == figures.step_p50);
  CHECK(figures.p50 == figures.step_p50);  // the others are too old
  CHECK(figures.requests_per_second == Approx(1 / 9.0));
  figures = counters.figures(start + 60s);
  CHECK(figures.requests_per_second == 0);
  CHECK(figures.p99 == 0us);
}

TEST_CASE("requests that are refused are counted apart, and have no duration") {
  const RequestCounters::Clock::time_point start(1000s);
  RequestCounters counters(start);
  for (int i = 0; i < 90; i++) counters.count_refused(i < 80 ? 429 : 503, start);
  for (int i = 0; i < 10; i++) counters.count(200, 400ms, start);
  for (int i = 0; i < 50; i++) counters.count_refused(400, start);  // their clients' fault
  auto figures = counters.figures(start + 1s);
  CHECK(figures.requests == 10);
  CHECK(figures.errors == 0);
  CHECK(figures.refused == 90);
  CHECK(figures.step_requests == 10);
  CHECK(figures.step_errors == 0);
  CHECK(figures.step_refused == 90);
  CHECK(figures.rejected == 80);
  CHECK(figures.requests_per_second == Approx(10));
  for (auto percentile : {figures.p50, figures.p99, figures.step_p50, figures.step_p99})
    CHECK(percentile.count() == Approx(400'000).epsilon(0.05));
  counters.restart_step();
  counters.count_refused(503, start + 1s);
  figures = counters.figures(start + 1s);
  CHECK(figures.step_requests == 0);
  CHECK(figures.step_refused == 1);
  CHECK(figures.refused == 91);
}

TEST_CASE("waits and rejections are those of the last 10 s, or since the load was restarted") {
  const RequestCounters::Clock::time_point start(1000s);
  RequestCounters counters(start);
  CHECK(counters.figures(start).waits.mean() == 0us);
  counters.count_wait(30ms, start);
  counters.count_refused(429, start);
  counters.count_wait(10ms, start + 5s);
  counters.count_refused(429, start + 5s);
  counters.count_refused(503, start + 5s);
  auto figures = counters.figures(start + 9s);
  CHECK(figures.waits.requests == 2);
  CHECK(figures.waits.mean() == 20ms);
  CHECK(figures.rejected == 2);
  figures = counters.figures(start + 10s);
  CHECK(figures.waits.mean() == 10ms);
  CHECK(figures.rejected == 1);
  counters.restart_load();
  figures = counters.figures(start + 10s);
  CHECK(figures.waits.requests == 0);
  CHECK(figures.rejected == 0);
  CHECK(figures.refused == 3);
}
