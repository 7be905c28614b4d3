// The paths of a service, and the time that a request may ask for.
#include "engine/serve/service_routes.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("each path of a service has its endpoint and its methods") {
  auto is_route = [](const char* path, Endpoint endpoint, const std::string& model = "",
                     const std::string& version = "") {
    INFO(path);
    Route route = route_of(path);
    CHECK(route.endpoint == endpoint);
    bool is_post = endpoint == Endpoint::infer || endpoint == Endpoint::repository_index ||
                   endpoint == Endpoint::repository_load;
    CHECK(allowed_methods(path) == (endpoint == Endpoint::unknown ? ""
                                    : is_post                     ? "POST"
                                                                  : "GET, HEAD"));
    if (endpoint == Endpoint::unknown) return;
    CHECK(has_model(endpoint) == !model.empty());
    CHECK(route.model == model);
    CHECK(route.version == version);
  };
  is_route("/v2", Endpoint::server);
  is_route("/v2/health/live", Endpoint::live);
  is_route("/v2/health/ready", Endpoint::ready);
  is_route("/metrics", Endpoint::metrics);
  is_route("/v2/models/a", Endpoint::model, "a");
  is_route("/v2/models/a/ready", Endpoint::model_ready, "a");
  is_route("/v2/models/a/infer", Endpoint::infer, "a");
  is_route("/v2/models/a/config", Endpoint::model_configuration, "a");
  is_route("/v2/models/a/versions/1/stats", Endpoint::model_statistics, "a", "1");
  is_route("/v2/models/stats", Endpoint::statistics);
  is_route("/v2/repository/index", Endpoint::repository_index);
  is_route("/v2/repository/models/a/load", Endpoint::repository_load, "a");
  is_route("/v2/repository/models/a/unload", Endpoint::repository_load, "a");
  is_route("/v2/models/a/versions/1", Endpoint::model, "a", "1");
  is_route("/v2/models/a/versions/12/ready", Endpoint::model_ready, "a", "12");
  is_route("/v2/models/a/versions/1/infer", Endpoint::infer, "a", "1");
  is_route("/v2/models/%61%2Fb/infer", Endpoint::infer, "a/b");
  is_route("/v2/models/a/versions/%31", Endpoint::model, "a", "1");
  for (const char* path :
       {"", "/", "/v2/", "/v2/health", "/v2/models", "/v2/models/", "/v2/models//infer",
        "/v2/models/a/", "/v2/models/a/infer/", "/v2/models/a/versions", "/v2/models/a/versions/",
        "/v2/models/a/versions//infer", "/v2/models/a/versions/1/", "/v2/models/a/other",
        "/metrics/", "/v2/repository", "/v2/repository/models/a", "/v2/repository/models/a/drop"})
    is_route(path, Endpoint::unknown);
}

TEST_CASE("the time of X-Request-Timeout is in seconds or has a unit") {
  auto us = [](const char* text) {
    auto time = parse_request_timeout(text);
    return time.ok() ? time->count() : -1;
  };
  CHECK(us("2") == 2'000'000);
  CHECK(us("0.5") == 500'000);
  CHECK(us("0.0000001") == 1);
  CHECK(us("500ms") == 500'000);
  CHECK(us("2s") == 2'000'000);
  CHECK(us("1m") == 60'000'000);
  CHECK(us("1h") == 3'600'000'000);
  CHECK(us("99999999999999999999") == 1'000'000'000'000'000);
  for (const char* text : {"", "0", "0ms", "-1", "+1", "1.2.3", ".", "1e3", "soon", "5 parsecs",
                           "nan", "inf", "0x10", "2s,3s"}) {
    INFO(text);
    CHECK(us(text) == -1);
  }
  CHECK(parse_request_timeout("soon\x01").error().message ==
        "X-Request-Timeout is `soon `; it is a time above 0, in seconds such as `0.5`, or with a "
        "unit such as `500ms`");
}
