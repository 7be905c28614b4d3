// The output of `flow plan` for a plan, with a store in memory.
#include "engine/query/plan_preview.hpp"

#include <catch2/catch.hpp>

#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

using namespace flow;

namespace {

/// `first` creates a number, `second` uses it.
Plan two_tasks(const std::string& code = "code") {
  Plan plan;
  plan.pipeline = "p";
  plan.defs.resize(2);
  plan.nodes.resize(2);
  for (uint32_t i = 0; i < 2; i++) {
    plan.defs[i].name = plan.nodes[i].name = i == 0 ? "first" : "second";
    plan.defs[i].code = sha256(code + std::to_string(i));
    plan.nodes[i].def = i;
  }
  plan.nodes[0].args = Value::list({int64_t{1}});
  plan.nodes[1].args = Value::list({Value(Ref{0, {}})});
  plan.result = Value(Ref{1, {}});
  return plan;
}

struct State {
  std::unique_ptr<Store> store = make_memory_store();
  Blobs blobs{*store, "/nonexistent"};

  std::vector<std::string> lines(const Plan& plan, bool fresh = false) {
    PlanPreview preview(*store, blobs, {}, 1'000);
    std::vector<std::string> all;
    for (const PlanNode& node : preview.preview(plan, fresh).nodes)
      all.push_back(node.name + ": " + node.verdict + ", " + node.reason);
    return all;
  }
  /// The key of `first`, which depends on no other result.
  static Digest key_of_first(const Plan& plan) {
    InputResolver resolver(
        [](const Digest&) -> Result<std::string> { return environment_error("none"); });
    core::Run run;
    run.plan = std::make_shared<const Plan>(plan);
    run.units.resize(2);
    return *resolver.key(run, 0);
  }
  void put(const Digest& key, const Value& result, CacheEntry entry = {}) {
    std::string bytes = encode_value(result);
    entry.result = sha256(bytes);
    if (entry.run.empty()) entry.run = "r1";
    Batch batch;
    batch.put(Family::blobs, std::string(entry.result.view()), bytes);
    batch.put(Family::cache, cache_key(key), encode_cache_entry(entry));
    REQUIRE(store->commit(batch, false).ok());
  }
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("with an empty state the first task runs, and the second waits for it") {
  State state;
  CHECK(state.lines(two_tasks()) ==
        Lines{"first: runs, no earlier run has it", "second: unknown, waits for `first`"});
}

TEST_CASE("a cached result is used, and the key of its dependent follows from it") {
  State state;
  const Plan plan = two_tasks();
  state.put(State::key_of_first(plan), Value(int64_t{7}));
  CHECK(state.lines(plan) ==
        Lines{"first: cached, from the run r1", "second: runs, no earlier run has it"});
  CHECK(state.lines(two_tasks("other code"))[0] == "first: runs, no earlier run has it");
}

TEST_CASE("a cached result whose blob is missing is computed again") {
  State state;
  const Plan plan = two_tasks();
  state.put(State::key_of_first(plan), Value(int64_t{7}));
  Batch batch;
  batch.erase(Family::blobs, std::string(sha256(encode_value(Value(int64_t{7}))).view()));
  REQUIRE(state.store->commit(batch, false).ok());
  CHECK(state.lines(plan)[0] == "first: runs, no earlier run has it");
}

TEST_CASE("a fresh run uses no result of another run") {
  State state;
  const Plan plan = two_tasks();
  state.put(State::key_of_first(plan), Value(int64_t{7}));
  CHECK(state.lines(plan, true) ==
        Lines{"first: runs, --fresh", "second: unknown, waits for `first`"});
}

TEST_CASE(
    "a task waits for all tasks before it that are not known to be done, at most five named") {
  State state;
  Plan plan = two_tasks();
  std::vector<Value> all;
  for (uint32_t i = 1; i < 8; i++) {
    TaskNode& node = plan.nodes.emplace_back(plan.nodes[0]);
    node.name = "first#" + std::to_string(i);
    node.args = Value::list({int64_t{i} + 1});
    all.emplace_back(Ref{static_cast<uint32_t>(plan.nodes.size()) - 1, {}});
  }
  plan.nodes.push_back(std::exchange(plan.nodes[1], plan.nodes[0]));
  plan.nodes[1].name = "other";
  plan.nodes.back().args = Value::list({Value(Ref{1, {}}), Value::list(all)});
  plan.nodes.back().edit_detail().after = {2, 3};
  CHECK(
      state.lines(plan).back() ==
      "second: unknown, waits for `other`, `first#1`, `first#2`, `first#3`, `first#4` and 3 more");
}

TEST_CASE("a service and a task without cache always run") {
  State state;
  Plan plan = two_tasks();
  const Digest key = State::key_of_first(plan);
  state.put(key, Value(int64_t{7}));
  plan.defs[0].cache = false;
  CHECK(state.lines(plan)[0] == "first: runs, cache = false");
  plan.defs[0].kind = TaskKind::service;
  CHECK(state.lines(plan)[0] == "first: runs, a service always runs");
}

TEST_CASE("a result that depended on a signal is not used by other runs") {
  State state;
  const Plan plan = two_tasks();
  CacheEntry entry;
  entry.has_wait = true;
  state.put(State::key_of_first(plan), Value(int64_t{7}), entry);
  CHECK(state.lines(plan)[0] == "first: runs, no earlier run has it");
}

TEST_CASE("a preview writes nothing") {
  State state;
  const Plan plan = two_tasks();
  state.put(State::key_of_first(plan), Value(int64_t{7}));
  auto rows = [&] {
    size_t count = 0;
    for (Family family : {Family::meta, Family::runs, Family::journal, Family::snapshots,
                          Family::cache, Family::blobs, Family::logs, Family::kv}) {
      REQUIRE(state.store
                  ->scan(family, "", "",
                         [&](std::string_view, std::string_view) {
                           count++;
                           return true;
                         })
                  .ok());
    }
    return count;
  };
  size_t before = rows();
  state.lines(plan);
  CHECK(before == 2);
  CHECK(rows() == before);
}
