#include "engine/page/page_routes.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

std::string described(const std::string& path) {
  PageRoute route = page_route_of(path);
  return std::to_string(static_cast<int>(route.endpoint)) + " " + route.name;
}

std::string described(PageEndpoint endpoint, const std::string& name = "") {
  return std::to_string(static_cast<int>(endpoint)) + " " + name;
}

}  // namespace

TEST_CASE("a path names an endpoint and a run or a file") {
  CHECK(described("/") == described(PageEndpoint::home));
  CHECK(described("/assets/app.js") == described(PageEndpoint::asset, "app.js"));
  CHECK(described("/api/session") == described(PageEndpoint::session));
  CHECK(described("/api/events") == described(PageEndpoint::events));
  CHECK(described("/api/runs") == described(PageEndpoint::runs));
  CHECK(described("/api/runs/last") == described(PageEndpoint::run, "last"));
  CHECK(described("/api/runs/my%20run") == described(PageEndpoint::run, "my run"));
  CHECK(described("/api/runs/a%2Fb/logs") == described(PageEndpoint::logs, "a/b"));
  CHECK(described("/api/runs/r/values") == described(PageEndpoint::values, "r"));
  CHECK(described("/api/runs/r/cancel") == described(PageEndpoint::cancel, "r"));
  CHECK(described("/api/runs/r/signal") == described(PageEndpoint::signal, "r"));
  CHECK(described("/api/runs/r/tasks") == described(PageEndpoint::tasks, "r"));
  CHECK(described("/api/runs/r/stop") == described(PageEndpoint::stop, "r"));
  CHECK(described("/api/runs/r/retry") == described(PageEndpoint::retry, "r"));
  CHECK(described("/api/runs/digits/rollback") == described(PageEndpoint::rollback, "digits"));
  CHECK(described("/api/runs/r/picture") == described(PageEndpoint::picture, "r"));
  CHECK(described("/api/cluster") == described(PageEndpoint::cluster));
  CHECK(described("/api/services") == described(PageEndpoint::services));
  CHECK(described("/api/waiting") == described(PageEndpoint::waiting));
  CHECK(described("/api/runs/r/attempts") == described(PageEndpoint::attempts, "r"));
  CHECK(described("/api/runs/r/cost") == described(PageEndpoint::cost, "r"));
  CHECK(described("/api/cost") == described(PageEndpoint::costs));
  CHECK(described("/sign-in") == described(PageEndpoint::sign_in));
}

TEST_CASE("other paths are unknown, and each path has one method") {
  for (const char* path : {"", "/x", "/api", "/api/runs/", "/api/runs//logs", "/api/runs/r/",
                           "/api/runs/r/x", "/api/runs/r/logs/x", "/index.html"}) {
    CAPTURE(path);
    CHECK(page_methods(path).empty());
  }
  CHECK(page_methods("/") == "GET");
  CHECK(page_methods("/api/runs/r") == "GET");
  for (const char* action : {"cancel", "signal", "stop", "retry", "rollback"})
    CHECK(page_methods(std::string("/api/runs/r/") + action) == "POST");
  CHECK(page_methods("/sign-in") == "POST");
}

TEST_CASE("the fields of a query are decoded") {
  PageQuery query(
      "q=two+words&task=align%5B3%5D&empty=&q=second&bare&=x&n=12&big=99999999999999999999");
  CHECK(query.get("q") == "two words");
  CHECK(query.get("task") == "align[3]");
  CHECK(query.get("empty").empty());
  CHECK(query.get("bare").empty());
  CHECK(query.get("missing").empty());
  CHECK(query.number("n", 5, 100) == 12);
  CHECK(query.number("n", 5, 10) == 10);
  CHECK(query.number("missing", 5, 100) == 5);
  CHECK(query.number("q", 5, 100) == 5);
  CHECK(query.number("big", 5, 100) == 5);
}
