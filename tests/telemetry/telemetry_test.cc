#include <catch2/catch.hpp>

#include "engine/telemetry/metric_text.hpp"
#include "engine/telemetry/span_exporter.hpp"

using namespace flow;

TEST_CASE("a family is its help, its type and its samples, with escaped labels") {
  MetricText text;
  text.counter("flow_things_total", "Things.");
  text.add(uint64_t{3});
  text.gauge("flow_parts", "Parts.");
  text.add({{"name", "a\"b\\c\nd"}, {"way", "in"}}, 0.5);
  CHECK(text.text() ==
        "# HELP flow_things_total Things.\n# TYPE flow_things_total counter\nflow_things_total 3\n"
        "# HELP flow_parts Parts.\n# TYPE flow_parts gauge\n"
        "flow_parts{name=\"a\\\"b\\\\c\\nd\",way=\"in\"} 0.5\n");
}

TEST_CASE("a duration is in the first bucket whose limit it does not exceed") {
  DurationHistogram durations;
  for (int64_t us : {-1, 100, 101, 10'000'000, 10'000'001}) durations.add(us);
  CHECK(durations.bucket(0) == 2);
  CHECK(durations.bucket(1) == 1);
  CHECK(durations.bucket(DurationHistogram::kLimits.size() - 1) == 1);
  CHECK(durations.bucket(DurationHistogram::kLimits.size()) == 1);
  CHECK(durations.sum_us() == 20'000'202);
  MetricText text;
  text.histogram("flow_waits_seconds", "Waits.", durations);
  CHECK(text.text().find("flow_waits_seconds_bucket{le=\"0.00025\"} 3\n") != std::string::npos);
  CHECK(text.text().find("flow_waits_seconds_bucket{le=\"+Inf\"} 5\n") != std::string::npos);
  CHECK(text.text().ends_with("flow_waits_seconds_sum 20.000202\nflow_waits_seconds_count 5\n"));
}

TEST_CASE("spans go nowhere unless the environment names a collector") {
  CHECK_FALSE(span_target({})->is_on);
  CHECK_FALSE(span_target({{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}})->is_on);
  EnvironmentVariables named{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"}};
  auto target = span_target(named);
  CHECK(target->is_on);
  CHECK(request_text(target->url) == "http://c:4318/v1/traces");
  named.emplace_back("OTEL_TRACES_EXPORTER", "none");
  CHECK_FALSE(span_target(named)->is_on);
}

TEST_CASE("headers cannot add lines to a request") {
  auto target = span_target({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                             {"OTEL_EXPORTER_OTLP_HEADERS", "key=a%0D%0AHost: b"}});
  REQUIRE_FALSE(target.ok());
  CHECK(target.error().message.find("line break in `key`") != std::string::npos);
}

TEST_CASE("more spans than may wait are dropped and counted, and the reason is reported once") {
  auto target = span_target({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"}});
  REQUIRE(target.ok());
  std::vector<std::string> reasons;
  uint64_t dropped = 0;
  {
    SpanExporter exporter(*target);
    exporter.set_on_drop([&](const std::string& why) { reasons.push_back(why); });
    std::vector<Span> spans(SpanExporter::kWaitingMax + 7);
    for (Span& span : spans) {
      span.trace_id = std::string(16, 'a');
      span.id = std::string(8, 'b');
    }
    exporter.add(std::move(spans));
    dropped = exporter.dropped();
  }
  CHECK(dropped >= 7);
  REQUIRE(reasons.size() == 1);
  CHECK(reasons.front().find("http://127.0.0.1:1") != std::string::npos);
}
