// What a service counts, as Prometheus reads it.
#include "engine/serve/service_metrics.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using std::chrono::microseconds;
using std::chrono::seconds;

TEST_CASE("counts of a service are printed in Prometheus' text format") {
  ServiceMetrics metrics;
  metrics.count_request(200, microseconds(500));
  metrics.count_request(200, microseconds(501));
  metrics.count_request(504, seconds(90));
  metrics.count_batch(3, microseconds(40));
  metrics.count_batch(1, microseconds(2));
  CHECK(ServiceMetrics::text(
            {{"digits", "r1", &metrics, {.queued = 7, .replicas = 2, .is_ready = true}}}) ==
        R"(# HELP flow_service_requests_total Answered inference requests by HTTP status.
# TYPE flow_service_requests_total counter
flow_service_requests_total{model="digits",version="r1",code="200"} 2
flow_service_requests_total{model="digits",version="r1",code="504"} 1
# HELP flow_service_request_duration_seconds Time from the arrival of an inference request to its response.
# TYPE flow_service_request_duration_seconds histogram
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.0005"} 1
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.001"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.0025"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.005"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.01"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.025"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.05"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.1"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.25"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="0.5"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="1"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="2.5"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="5"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="10"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="30"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="60"} 2
flow_service_request_duration_seconds_bucket{model="digits",version="r1",le="+Inf"} 3
flow_service_request_duration_seconds_sum{model="digits",version="r1"} 90.001001
flow_service_request_duration_seconds_count{model="digits",version="r1"} 3
# HELP flow_service_batches_total Calls of predict.
# TYPE flow_service_batches_total counter
flow_service_batches_total{model="digits",version="r1"} 2
# HELP flow_service_rows_total Rows that were passed to predict.
# TYPE flow_service_rows_total counter
flow_service_rows_total{model="digits",version="r1"} 4
# HELP flow_service_queue_length Requests that wait for predict.
# TYPE flow_service_queue_length gauge
flow_service_queue_length{model="digits",version="r1"} 7
# HELP flow_service_replicas Replicas that are connected.
# TYPE flow_service_replicas gauge
flow_service_replicas{model="digits",version="r1"} 2
# HELP flow_service_ready Whether the version is ready.
# TYPE flow_service_ready gauge
flow_service_ready{model="digits",version="r1"} 1
)");
}

TEST_CASE("times of responses that come in parts are printed once there are any") {
  ServiceMetrics metrics, other;
  using Catch::Contains;
  CHECK_THAT(ServiceMetrics::text({{"llm", "r1", &metrics, {}}}), !Contains("first_byte"));
  metrics.count_first_byte(std::chrono::milliseconds(40));
  other.count_first_byte(std::chrono::milliseconds(60));
  other.count_events(std::chrono::milliseconds(20));
  metrics.add(other);
  std::string text = ServiceMetrics::text({{"llm", "r1", &metrics, {}}});
  CHECK_THAT(text, Contains("# TYPE flow_service_first_byte_seconds histogram\n"));
  CHECK_THAT(text, Contains("flow_service_first_byte_seconds_bucket{model=\"llm\",version=\"r1\","
                            "le=\"0.05\"} 1\n"));
  CHECK_THAT(text,
             Contains("flow_service_first_byte_seconds_sum{model=\"llm\",version=\"r1\"} 0.1\n"));
  CHECK_THAT(text, Contains("flow_service_event_seconds_sum{model=\"llm\",version=\"r1\"} 0.02\n"));
  CHECK_THAT(text, Contains("flow_service_event_seconds_count{model=\"llm\",version=\"r1\"} 1\n"));
}

TEST_CASE("a label of the metrics is escaped, and the series of status 200 exists from the start") {
  ServiceMetrics metrics;
  std::string text = ServiceMetrics::text({{"a\"b\\c\nd", "v\"", &metrics, {}}});
  CHECK_THAT(text, Catch::Contains("flow_service_requests_total{model=\"a\\\"b\\\\c\\nd\","
                                   "version=\"v\\\"\",code=\"200\"} 0\n"));
}

TEST_CASE("the metrics of two versions are two series of each metric") {
  ServiceMetrics one, two;
  one.count_request(200, microseconds(500));
  two.count_request(500, microseconds(500));
  std::string text = ServiceMetrics::text({{"m", "r1", &one, {}}, {"m", "r2", &two, {}}});
  CHECK_THAT(text, Catch::Contains(
                       "# TYPE flow_service_requests_total counter\n"
                       "flow_service_requests_total{model=\"m\",version=\"r1\",code=\"200\"} 1\n"
                       "flow_service_requests_total{model=\"m\",version=\"r2\",code=\"200\"} 0\n"
                       "flow_service_requests_total{model=\"m\",version=\"r2\",code=\"500\"} 1\n"));
  one.add(two);
  CHECK_THAT(one.statistics("m", "1"), Catch::Contains(R"("fail":{"count":1,"ns":500000})"));
}

TEST_CASE("statistics count successes, failures and calls of predict") {
  ServiceMetrics metrics;
  metrics.count_request(200, microseconds(500));
  metrics.count_request(200, microseconds(501));
  metrics.count_request(504, seconds(2));
  metrics.count_batch(3, microseconds(40));
  std::string text = metrics.statistics("m", "1");
  size_t last = text.find("\"last_inference\":");
  REQUIRE(last != std::string::npos);
  CHECK(text.substr(0, last) == R"({"model_stats":[{"name":"m","version":"1",)");
  CHECK(text.substr(text.find(",\"inference_count\"")) ==
        R"(,"inference_count":3,"execution_count":1,"inference_stats":{)"
        R"("success":{"count":2,"ns":1001000},"fail":{"count":1,"ns":2000000000},)"
        R"("queue":{"count":0,"ns":0},"compute_input":{"count":0,"ns":0},)"
        R"("compute_infer":{"count":1,"ns":40000},"compute_output":{"count":0,"ns":0},)"
        R"("cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"batch_stats":[]}]})");
}

TEST_CASE("durations are the histogram of the metrics, each request in one bucket") {
  using Bucket = ServiceMetrics::DurationBucket;
  ServiceMetrics metrics;
  metrics.count_request(200, microseconds(500));
  metrics.count_request(500, microseconds(501));
  metrics.count_request(200, microseconds(1'000));
  metrics.count_request(504, seconds(61));
  auto buckets = metrics.durations();
  REQUIRE(buckets.size() == 17);
  CHECK(buckets[0] == Bucket{500, 1});
  CHECK(buckets[1] == Bucket{1'000, 2});
  CHECK(buckets[15] == Bucket{60'000'000, 0});
  CHECK(buckets[16] == Bucket{0, 1});
}
