// What a consumer of a service gets.
#include <catch2/catch.hpp>

#include "tests/runtime/open_engine.hpp"

namespace flow {
namespace {

/// show(when(decide():after(digits)) { digits })
std::shared_ptr<const Plan> consumed_plan() {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  plan->defs.resize(2);
  plan->defs[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  plan->defs[1].name = "t";
  plan->nodes.resize(4);
  plan->nodes[0].name = "digits";
  plan->nodes[0].args = Value::list({});
  plan->nodes[1].name = "decide";
  plan->nodes[1].def = 1;
  plan->nodes[1].args = Value::list({Value(int64_t{1})});
  plan->nodes[1].edit_detail().after = {0};
  plan->nodes[2].name = "when";
  plan->nodes[2].kind = NodeKind::when;
  plan->nodes[2].edit_detail().condition = Value(Ref{1, {}});
  plan->nodes[2].edit_detail().then_value = Value(Ref{0, {}});
  plan->nodes[3].name = "show";
  plan->nodes[3].def = 1;
  plan->nodes[3].args = Value::list({Value(Ref{2, {}})});
  plan->result = Value(Ref{3, {}});
  return plan;
}

TEST_CASE("a consumer gets the URL of a service that is down, because its front is not") {
  OpenEngine engine;
  engine.submit("r", consumed_plan());
  const core::AttemptId service = engine.worker.orders.back().id;
  engine.loop->parts().on_reports({{service, 0, 0, ServiceReported{"http://here"}}});
  engine.settle();
  const core::AttemptId decide = engine.worker.orders.back().id;
  REQUIRE(decide.unit == 1);
  core::AttemptFailed death;
  death.id = service;
  death.failure = {core::Cause::environment, "it died", "", 0};
  engine.loop->parts().inbox.post({PostedEvent{death}});
  engine.settle();
  REQUIRE_FALSE(core::is_up(engine.run("r").units[0]));
  engine.finish(decide, Value(true));
  REQUIRE(engine.worker.orders.back().task == "show");
  CHECK(to_json(*decode_value(engine.worker.orders.back().args)) == R"([{"url":"http://here"}])");
}

}  // namespace
}  // namespace flow
