// The options of a service reach its executor in the order of its attempt.
#include <catch2/catch.hpp>

#include "engine/worker/slot.hpp"

using namespace flow;

namespace {

AttemptOrder service_order() {
  AttemptOrder order;
  order.id = {"run-1", 7, 2, 3};
  order.kind = TaskKind::service;
  order.bundle = sha256("bundle");
  order.key = sha256("key");
  order.service = {8080, 32, 5000};
  order.service.address = "::";
  order.service.tls = {"/p/server.pem", "/p/server.key", ""};
  order.service.keys.variable = "API_KEYS";
  order.service.hosts = {"models.example"};
  order.service.queue_max = 7;
  order.service.inputs = {{"pixels", "FP32", {-1, 64}}};
  order.service_keys = "one,two";
  return order;
}

}  // namespace

TEST_CASE("the options of a service and its keys arrive as they were sent") {
  wire::Start start;
  fill_start(service_order(), "", start);
  AttemptOrder received;
  REQUIRE(read_start(start, received));
  CHECK(received.service == service_order().service);
  CHECK(received.service_keys == "one,two");
}

TEST_CASE("an order whose options of a service are damaged is refused") {
  wire::Start start;
  fill_start(service_order(), "", start);
  start.mutable_service()->pop_back();
  AttemptOrder received;
  CHECK_FALSE(read_start(start, received));
}

TEST_CASE("the order of another task has no options of a service") {
  AttemptOrder order = service_order();
  order.kind = TaskKind::lua;
  order.service = {};
  order.service_keys = "";
  wire::Start start;
  fill_start(order, "", start);
  CHECK(start.service().empty());
  AttemptOrder received;
  REQUIRE(read_start(start, received));
  CHECK(received.service == ServiceSpec{});
}
