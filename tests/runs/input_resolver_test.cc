// Data that the resolver keeps from one run to the next.
#include "engine/runs/input_resolver.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

std::shared_ptr<Plan> plan_of(const std::string& code) {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(1);
  plan->defs[0].name = "t";
  plan->defs[0].code = sha256(code);
  plan->nodes.resize(1);
  plan->nodes[0].name = "t";
  plan->nodes[0].args = Value::list({int64_t{1}});
  return plan;
}

core::Run run_of(std::shared_ptr<const Plan> plan) {
  core::Run run;
  run.plan = std::move(plan);
  run.units.resize(1);
  return run;
}

}  // namespace

TEST_CASE("a plan is forgotten with its run, and another one at its address has its own keys") {
  InputResolver resolver(
      [](const Digest&) -> Result<std::string> { return environment_error("none"); });
  InputResolver other(
      [](const Digest&) -> Result<std::string> { return environment_error("none"); });
  for (int i = 0; i < 200; i++) {
    std::weak_ptr<const Plan> plan;
    {
      core::Run run = run_of(plan_of("code " + std::to_string(i)));
      plan = run.plan;
      auto key = resolver.key(run, 0), again = resolver.key(run, 0);
      REQUIRE(key.ok());
      CHECK(*again == *key);
      core::Run same = run_of(plan_of("code " + std::to_string(i)));
      CHECK(*other.key(same, 0) == *key);
    }
    CHECK(plan.expired());
  }
}
