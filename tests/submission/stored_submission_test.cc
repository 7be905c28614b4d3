// A run that is submitted again from what the state keeps of it.
#include "engine/submission/stored_submission.hpp"

#include <catch2/catch.hpp>

#include "engine/store/row_keys.hpp"

using namespace flow;

namespace {

struct StoredRun {
  std::unique_ptr<Store> store = make_memory_store();
  Blobs blobs{*store, "/nonexistent"};
  RunRecord record;

  explicit StoredRun(TaskKind kind) {
    Plan plan;
    plan.pipeline = "p";
    plan.defs.resize(1);
    plan.nodes.resize(1);
    plan.defs[0].name = plan.nodes[0].name = "digits";
    plan.defs[0].kind = kind;
    plan.defs[0].service.canary.percents = {10, 100};
    std::string plan_bytes = encode_plan(plan), bundle = "bundle";
    record.id = "r1";
    record.name = "old";
    record.pipeline = "p";
    record.status = "succeeded";
    record.script = "/d/p.lua";
    record.directory = "/d";
    record.params = "params";
    record.plan_digest = sha256(plan_bytes);
    record.bundle_digest = sha256(bundle);
    Batch batch;
    batch.put(Family::blobs, std::string(record.plan_digest.view()), plan_bytes);
    batch.put(Family::blobs, std::string(record.bundle_digest.view()), bundle);
    batch.put(Family::kv, inputs_key("r1"), "inputs");
    REQUIRE(store->commit(batch, false).ok());
  }
  void keep_plan(const std::string& plan_bytes) {
    record.plan_digest = sha256(plan_bytes);
    Batch batch;
    batch.put(Family::blobs, std::string(record.plan_digest.view()), plan_bytes);
    REQUIRE(store->commit(batch, false).ok());
  }
  Result<Prepared> again(Takeover takeover) {
    Submission submission;
    submission.options.name = "prod";
    submission.options.grace_ms = 1;
    submission.options.front_lease_ms = 2;
    submission.options.serve_for_ms = 3;
    submission.environment = std::make_shared<const EnvironmentVariables>();
    return prepare_stored(*store, blobs, record, submission, takeover);
  }
};

PlanNode node(const char* name, const char* kind, const char* verdict, const char* reason) {
  PlanNode node;
  node.name = name;
  node.kind = kind;
  node.verdict = verdict;
  node.reason = reason;
  return node;
}

}  // namespace

TEST_CASE("a stored run is submitted with its plan, code, parameters and inputs") {
  StoredRun stored(TaskKind::service);
  auto prepared = stored.again(Takeover::by_canary);
  REQUIRE(prepared.ok());
  const RunContext& context = prepared->context;
  CHECK(context.record.name == "prod");
  CHECK(context.record.status == "pending");
  CHECK(context.record.script == "/d/p.lua");
  CHECK(context.record.params == "params");
  CHECK(context.record.plan_digest == stored.record.plan_digest);
  CHECK(context.record.plan_digest == sha256(prepared->plan_bytes));
  CHECK(*context.bundle == "bundle");
  CHECK(prepared->inputs == "inputs");
  CHECK(context.grace_ms == 1);
  CHECK(context.front_lease_ms == 2);
  CHECK(context.serve_for_ms == 3);
  CHECK(prepared->plan->defs[0].service.canary.percents == std::vector<uint32_t>{10, 100});
}

TEST_CASE("a takeover at once skips the canary, which a later one has again") {
  StoredRun stored(TaskKind::service);
  const CanarySpec canary = stored.again(Takeover::by_canary)->plan->defs[0].service.canary;
  auto prepared = stored.again(Takeover::at_once);
  REQUIRE(prepared.ok());
  CanarySpec skipped = canary;
  skipped.is_skipped = true;
  CHECK(prepared->plan->defs[0].service.canary == skipped);
  CHECK(prepared->context.record.plan_digest == sha256(prepared->plan_bytes));
  CHECK(decode_plan(prepared->plan_bytes)->defs[0].service.canary == skipped);
  const Digest before = stored.record.plan_digest;
  stored.keep_plan(prepared->plan_bytes);
  REQUIRE(stored.record.plan_digest != before);
  prepared = stored.again(Takeover::by_canary);
  REQUIRE(prepared.ok());
  CHECK(prepared->plan->defs[0].service.canary == canary);
  CHECK(prepared->context.record.plan_digest == before);
}

TEST_CASE("a run without a service cannot be served again") {
  auto prepared = StoredRun(TaskKind::lua).again(Takeover::by_canary);
  REQUIRE_FALSE(prepared.ok());
  CHECK(prepared.error().kind == ErrorKind::user);
  CHECK(prepared.error().message == "the run r1 has no service that could be served");
}

TEST_CASE("tasks that the cache does not have are named with the reason, services are not") {
  StoredRun stored(TaskKind::service);
  PlanInfo preview;
  preview.nodes = {node("ingest", "task", "cached", "from the run r1"),
                   node("branch", "when", "skipped", "its branch is not taken"),
                   node("digits", "service", "runs", "a service always runs")};
  CHECK(check_only_services_run(preview, stored.record).ok());
  preview.nodes.push_back(node("train", "task", "runs", "its result was collected"));
  preview.nodes.push_back(node("score", "map", "unknown", "waits for `train`"));
  Status missing = check_only_services_run(preview, stored.record);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().kind == ErrorKind::user);
  CHECK(missing.error().message ==
        "only the services of the run r1 may run, and the cache does not have 2 of its tasks:\n"
        "  `train`: its result was collected\n  `score`: waits for `train`\n"
        "`flow run /d/p.lua` computes what is missing");
  for (int i = 0; i < 20; i++) preview.nodes.push_back(node("more", "task", "runs", "x"));
  CHECK(check_only_services_run(preview, stored.record).error().message.find("and 12 more") !=
        std::string::npos);
}
