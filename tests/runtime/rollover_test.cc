// A new run of a served name: its orders to the fronts, and what keeps it from taking over.
#include <catch2/catch.hpp>

#include "engine/runs/front_folder.hpp"
#include "engine/runs/run_info.hpp"
#include "tests/runtime/open_engine.hpp"

namespace flow {
namespace {

/// A service, `digits`, and a task that nothing calls, `check`.
std::shared_ptr<const Plan> served_plan(const ServiceSpec& service) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  plan->defs.resize(2);
  plan->defs[1].name = "check";
  plan->defs[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  plan->defs[0].service = service;
  plan->nodes.resize(1);
  plan->nodes[0].name = "digits";
  plan->nodes[0].args = Value::list({});
  plan->result = Value::list({});
  return plan;
}

Status submit_version(OpenEngine& engine, const std::string& id, const ServiceSpec& service) {
  Prepared version = engine.prepared(id, served_plan(service));
  version.context.record.name = "prod";
  Status submitted = engine.loop->submit(std::move(version), 2);
  engine.settle();
  return submitted;
}

void make_ready(OpenEngine& engine, const std::string& url = "http://here") {
  engine.loop->parts().on_reports({{engine.worker.orders.back().id, 0, 0, ServiceReported{url}}});
  engine.settle();
}

void post_event(OpenEngine& engine, core::Event event) {
  engine.loop->parts().inbox.post({PostedEvent{std::move(event)}});
  engine.settle();
}

TEST_CASE("a request that follows a run that serves may set another end for it") {
  OpenEngine engine;
  Prepared prepared = engine.prepared("r", served_plan({}));
  prepared.context.serve_for_ms = 500;
  prepared.context.is_unattended = true;
  REQUIRE(engine.loop->submit(std::move(prepared), 1).ok());
  engine.settle();
  make_ready(engine);
  REQUIRE(engine.run("r").status == core::RunStatus::serving);
  CHECK(engine.loop->parts().timers.next_due() == engine.now + 500);
  RunContext context = engine.prepared("r", served_plan({})).context;
  context.serve_for_ms = 2000;
  REQUIRE(engine.loop->resume(std::move(context), "").ok());
  engine.settle();
  CHECK(engine.loop->parts().timers.next_due() == engine.now + 2000);
}

TEST_CASE("a canary's steps are orders to the fronts of the run's services") {
  OpenEngine engine;
  ServiceSpec service;
  service.canary.percents = {10, 100};
  service.canary.every_ms = 500;
  REQUIRE(submit_version(engine, "r1", service).ok());
  make_ready(engine);
  CHECK(engine.run("r1").status == core::RunStatus::serving);
  REQUIRE(engine.front_orders.size() == 1);
  CHECK(engine.front_orders[0].traffic.run == "r1");
  CHECK(engine.front_orders[0].traffic.percent == 100);
  engine.front_orders.clear();
  REQUIRE(submit_version(engine, "r2", service).ok());
  make_ready(engine);
  REQUIRE(engine.front_orders.size() == 1);
  const FrontOrder shift = engine.front_orders[0];
  CHECK_FALSE(shift.measures);
  CHECK(shift.traffic.run == "r2");
  CHECK(shift.traffic.previous == "r1");
  CHECK(shift.traffic.percent == 10);
  CHECK(shift.folders == std::vector<std::string>{front_folder("", "prod", "digits")});
  RolloverInfo shown = rollover_of(engine.run("r2"));
  CHECK(shown.phase == "shifting");
  CHECK(shown.percent == 10);
  CHECK(shown.step == 1);
  CHECK(shown.steps == 2);
  post_event(engine, core::TrafficShifted{"r2", 0});
  CHECK(engine.front_orders.size() == 1);
  engine.now += 500;
  engine.settle();
  REQUIRE(engine.front_orders.size() == 2);
  CHECK(engine.front_orders[1].measures);
  CHECK(engine.front_orders[1].traffic.previous == "r1");
  CHECK(engine.front_orders[1].traffic.percent == 10);
  post_event(engine, core::TrafficMeasured{"r2", 0, 100, 0, 10, 20});
  REQUIRE(engine.front_orders.size() == 3);
  CHECK(engine.front_orders[2].traffic.percent == 100);
  CHECK(engine.run("r2").status == core::RunStatus::running);
  CHECK(engine.run("r1").status == core::RunStatus::serving);
}

/// The version r2 in the first step of its canary, of which the gate has been called.
void begin_gated(OpenEngine& engine) {
  ServiceSpec service;
  service.canary.percents = {10, 100};
  service.canary.every_ms = 500;
  service.canary.gate = "check";
  for (const char* id : {"r1", "r2"}) {
    REQUIRE(submit_version(engine, id, service).ok());
    make_ready(engine);
  }
  post_event(engine, core::TrafficShifted{"r2", 0});
  engine.now += 500;
  engine.settle();
  engine.front_orders.clear();
  post_event(engine, core::TrafficMeasured{"r2", 0, 100, 3, 10'000, 20'500});
}

TEST_CASE("the gate of a canary is a task of the run that gets what was measured") {
  OpenEngine engine;
  begin_gated(engine);
  const AttemptOrder order = engine.worker.orders.back();
  CHECK(order.id.run == "r2");
  CHECK(order.task == "digits/check");
  CHECK(order.task_name == "check");
  CHECK(to_json(*decode_value(order.args)) ==
        R"([{"errors":3,"p50":10.0,"p99":20.5,"requests":100,"step":1,"version":"r2"}])");
  CHECK(rollover_of(engine.run("r2")).phase == "gated");
  CHECK(rollover_of(engine.run("r2")).percent == 10);
  CHECK(engine.front_orders.empty());
  engine.finish(order.id, Value(true));
  REQUIRE(engine.front_orders.size() == 1);
  CHECK(engine.front_orders[0].traffic.percent == 100);
  CHECK(engine.run("r2").rollover.step == 1);
}

TEST_CASE("only true lets a canary pass its gate") {
  const std::pair<Value, const char*> answers[] = {
      {Value(false), "false"}, {Value(), "nothing"}, {Value(int64_t{1}), "1"}};
  for (const auto& [answer, text] : answers) {
    OpenEngine engine;
    begin_gated(engine);
    engine.finish(engine.worker.orders.back().id, answer);
    REQUIRE(engine.front_orders.size() == 1);
    CHECK(engine.front_orders[0].traffic.percent == 0);
    CHECK(engine.run("r2").rollover.reason ==
          std::string("the canary at 10% failed: its gate `digits/check` returned ") + text +
              "; the version before, r1, has all traffic again");
    CHECK(engine.run("r1").status == core::RunStatus::serving);
  }
}

TEST_CASE("a new version with another listener is refused while its name is served") {
  OpenEngine engine;
  ServiceSpec service;
  service.port = 8080;
  REQUIRE(submit_version(engine, "r1", service).ok());
  make_ready(engine);
  service.port = 8081;
  Status refused = submit_version(engine, "r2", service);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().kind == ErrorKind::user);
  CHECK(refused.error().message ==
        "`digits` of `prod` is served at 127.0.0.1:8080 by the run r1; the new version listens at "
        "127.0.0.1:8081. A new version takes over the listener: give it the same `listen` or "
        "`port = 0`, or another --name");
  service.port = 8080;
  service.tls = {"/cert.pem", "/key.pem"};
  refused = submit_version(engine, "r2", service);
  REQUIRE_FALSE(refused.ok());
  CHECK(
      refused.error().message ==
      "`digits` of `prod` is served without `tls` by the run r1, and the new version has `tls`. A "
      "new version takes over the listener: give it the same `tls`, or another --name");
  service.tls = {};
  service.port = 0;
  CHECK(submit_version(engine, "r2", service).ok());
}

TEST_CASE("a version that took a free port can be followed by one with this port") {
  OpenEngine engine;
  ServiceSpec service;
  REQUIRE(submit_version(engine, "r1", service).ok());
  make_ready(engine, "http://127.0.0.1:8080");
  service.port = 8081;
  Status refused = submit_version(engine, "r2", service);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().message, Catch::Contains("is served at 127.0.0.1:8080 by the run r1"));
  service.port = 8080;
  CHECK(submit_version(engine, "r2", service).ok());
}

}  // namespace
}  // namespace flow
