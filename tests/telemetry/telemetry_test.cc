#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "engine/serve/http/socket_address.hpp"
#include "engine/telemetry/metric_text.hpp"
#include "engine/telemetry/span_exporter.hpp"

using namespace flow;
using namespace std::chrono_literals;

namespace {

/// A port of loopback. The system takes connections to it that no program accepts.
struct SilentCollector {
  SilentCollector() : listening(listen_at("collector", {"127.0.0.1", 0}, "0")) {
    REQUIRE(listening.ok());
  }
  ~SilentCollector() { ::close(listening->socket); }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(listening->port); }

  Result<ListeningSocket> listening;
};

/// Why the only span of an exporter is dropped at its end.
std::string loss_at(const std::string& url, const SpanLimits& limits) {
  auto target = span_target({{"OTEL_EXPORTER_OTLP_ENDPOINT", url}});
  REQUIRE(target.ok());
  std::string reason;
  {
    SpanExporter exporter(*target, limits);
    exporter.set_on_drop([&](const std::string& why) { reason = why; });
    exporter.add({Span{}});
  }
  return reason;
}

}  // namespace

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

TEST_CASE("the end waits for a collector that does not answer for the time of one answer only") {
  SilentCollector collector;
  CHECK_THAT(loss_at(collector.url(), {.exchange = 1h, .silence = 50ms, .flush = 1h}),
             Catch::Contains("the process ended before the collector answered"));
}

TEST_CASE("a collector that answers byte by byte has failed after the time of an answer") {
  SilentCollector collector;
  std::thread dripping([listener = collector.listening->socket] {
    int socket = -1;
    while ((socket = ::accept(listener, nullptr, nullptr)) < 0) std::this_thread::yield();
    for (std::string text = "HTTP/1.1 200 OK\r\nX: ";; text = "x") {
      if (::send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0) break;
      std::this_thread::sleep_for(1ms);
    }
    ::close(socket);
  });
  CHECK_THAT(loss_at(collector.url(), {.exchange = 100ms, .silence = 1h, .flush = 1h}),
             Catch::Contains("there was no answer within"));
  dripping.join();
}
