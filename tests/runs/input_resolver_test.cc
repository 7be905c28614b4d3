// Data that the resolver keeps from one run to the next.
#include "engine/runs/input_resolver.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "engine/value/cbor.hpp"

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

TEST_CASE("a service with replicas is one URL in the run's result") {
  InputResolver resolver(
      [](const Digest&) -> Result<std::string> { return environment_error("none"); });
  std::shared_ptr<Plan> plan = plan_of("code");
  plan->defs[0].kind = TaskKind::service;
  plan->defs[0].service.replicas = 3;
  plan->result = Value::map({{"api", Ref{0, {}}}});
  core::State state;
  uint64_t sequence = 0;
  std::vector<core::Command> out;
  auto feed = [&](core::Event event) {
    REQUIRE(core::admit(state, event));
    core::apply(state, {++sequence, 1000, std::move(event)}, out);
  };
  feed(core::EngineStarted{1, 1000, 0});
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  const core::Run& run = state.runs.at("r");
  for (core::UnitId replica : core::instances_of(run, 0)) {
    feed(core::InputsResolved{"r", replica, *resolver.key(run, replica), false, {}, nullptr, {}});
    feed(core::Assigned{core::next_attempt(state, run, replica)});
  }
  auto text = [&] { return to_json(*resolver.gather(run, kNoNode)); };
  CHECK(text() == R"({"api":{"url":""}})");
  feed(core::ServiceReady{core::current_attempt(run, core::instances_of(run, 0)[2]), "http://a"});
  CHECK(text() == R"({"api":{"url":"http://a"}})");
  CHECK(*resolver.arguments(run, core::instances_of(run, 0)[1]) ==
        encode_value(Value::list({int64_t{1}})));
}

TEST_CASE("the run's result has the URLs that services in the values of branches have then") {
  std::map<Digest, std::string> blobs;
  InputResolver resolver([&](const Digest& digest) -> Result<std::string> {
    auto found = blobs.find(digest);
    return found == blobs.end() ? Result<std::string>(environment_error("none")) : found->second;
  });
  auto keep = [&](const Value& value) {
    std::string bytes = encode_value(value);
    Digest digest = sha256(bytes);
    blobs[digest] = bytes;
    return digest;
  };
  // when(t) { inner = when#2(t) { api = s, n = 1 } }
  std::shared_ptr<Plan> plan = plan_of("code");
  plan->defs.resize(2);
  plan->defs[1].name = "s";
  plan->defs[1].kind = TaskKind::service;
  plan->nodes.resize(4);
  for (uint32_t when : {1u, 2u}) {
    TaskNode& node = plan->nodes[when];
    node.name = "when" + std::to_string(when);
    node.kind = NodeKind::when;
    node.edit_detail().condition = Value(Ref{0, {}});
  }
  plan->nodes[1].edit_detail().then_value = Value::map({{"inner", Ref{2, {}}}});
  plan->nodes[2].edit_detail().then_value = Value::map({{"api", Ref{3, {}}}, {"n", int64_t{1}}});
  plan->nodes[2].guard = {1, true};
  plan->nodes[3].name = "s";
  plan->nodes[3].def = 1;
  plan->nodes[3].guard = {2, true};
  plan->result = Value(Ref{1, {PathStep{false, Value("inner")}}});
  core::State state;
  uint64_t sequence = 0;
  std::vector<core::Command> out;
  auto feed = [&](core::Event event) {
    REQUIRE(core::admit(state, event));
    core::apply(state, {++sequence, 1000, std::move(event)}, out);
  };
  feed(core::EngineStarted{1, 1000, 0});
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  const core::Run& run = state.runs.at("r");
  auto resolve = [&](core::UnitId unit, bool is_hit) {
    Digest result = is_hit ? keep(Value(true)) : Digest{};
    feed(core::InputsResolved{"r", unit, *resolver.key(run, unit), is_hit, result, nullptr, {}});
  };
  auto start = [&](const std::string& url) {
    feed(core::Assigned{core::next_attempt(state, run, 3)});
    feed(core::ServiceReady{core::current_attempt(run, 3), url});
  };
  resolve(0, true);
  feed(core::WhenResolved{"r", 1, true});
  feed(core::WhenResolved{"r", 2, true});
  resolve(3, false);
  CHECK(run.units[2].phase == core::Phase::branch);  // until the service is ready
  start("http://a");
  for (core::UnitId when : {2u, 1u}) {
    REQUIRE(run.units[when].phase == core::Phase::gathering);
    feed(core::ValueGathered{"r", when, keep(*resolver.gather(run, when))});
  }
  CHECK(to_json(**resolver.result_of(run, 1)) == R"({"inner":{"api":{"url":"http://a"},"n":1}})");
  CHECK(to_json(*resolver.gather(run, kNoNode)) == R"({"api":{"url":"http://a"},"n":1})");
  feed(core::AttemptRequeued{core::current_attempt(run, 3)});
  start("http://b");
  CHECK(to_json(*resolver.gather(run, kNoNode)) == R"({"api":{"url":"http://b"},"n":1})");
}

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
