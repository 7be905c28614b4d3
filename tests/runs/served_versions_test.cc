// The version that a rollback returns to.
#include "engine/runs/served_versions.hpp"

#include <catch2/catch.hpp>

#include "engine/plan/plan.hpp"
#include "engine/store/row_keys.hpp"

using namespace flow;

namespace {

struct NamedRuns {
  std::unique_ptr<Store> store = make_memory_store();
  Blobs blobs{*store, "/nonexistent"};

  /// A run with these services; `served`: it has served.
  void add(const std::string& id, const std::string& name, const std::string& status, bool served,
           const std::vector<std::string>& services) {
    Plan plan;
    plan.pipeline = "p";
    for (const std::string& service : services) {
      TaskDef& def = plan.defs.emplace_back();
      def.name = service;
      def.kind = TaskKind::service;
      TaskNode& node = plan.nodes.emplace_back();
      node.name = service;
      node.def = static_cast<uint32_t>(plan.defs.size() - 1);
    }
    std::string bytes = encode_plan(plan);
    RunRecord record;
    record.id = id;
    record.name = name;
    record.status = status;
    record.plan_digest = sha256(bytes);
    Batch batch;
    batch.put(Family::blobs, std::string(record.plan_digest.view()), bytes);
    batch.put(Family::runs, run_key(id), encode_run_record(record));
    if (served) batch.put(Family::kv, served_key(id), "served");
    REQUIRE(store->commit(batch, false).ok());
  }
  std::string serving(const std::string& name) {
    auto found = serving_version(*store, name);
    REQUIRE(found.ok());
    return *found ? (*found)->id : "";
  }
  std::string before(const std::string& name) {
    auto found = version_before(*store, blobs, **serving_version(*store, name));
    REQUIRE(found.ok());
    return *found ? (*found)->id : "";
  }
};

}  // namespace

TEST_CASE("the serving version of a name is its newest run that has served and has not ended") {
  NamedRuns runs;
  CHECK(runs.serving("prod") == "");
  runs.add("r1", "prod", "succeeded", true, {"digits"});
  runs.add("r2", "prod", "serving", true, {"digits"});
  runs.add("r3", "prod", "running", false, {"digits"});  // it is taking over
  runs.add("r4", "test", "serving", true, {"digits"});
  CHECK(runs.serving("prod") == "r2");
  CHECK(runs.serving("test") == "r4");
}

TEST_CASE("a name means the version that serves, else the newest that served, else the newest") {
  NamedRuns runs;
  runs.add("20260101-000000-aaaaaa", "prod", "succeeded", false, {"digits"});
  CHECK(select_served(*runs.store, "prod")->id == "20260101-000000-aaaaaa");
  runs.add("20260101-000001-aaaaaa", "prod", "succeeded", true, {"digits"});
  runs.add("20260101-000002-aaaaaa", "prod", "failed", false, {"digits"});  // its canary failed
  CHECK(select_served(*runs.store, "prod")->id == "20260101-000001-aaaaaa");
  CHECK(select_serving(*runs.store, "prod")->id == "20260101-000002-aaaaaa");
  runs.add("20260101-000003-aaaaaa", "prod", "serving", true, {"digits"});
  runs.add("20260101-000004-aaaaaa", "prod", "failed", false, {"digits"});
  CHECK(select_served(*runs.store, "prod")->id == "20260101-000003-aaaaaa");
  CHECK(select_serving(*runs.store, "prod")->id == "20260101-000003-aaaaaa");
  CHECK(select_serving(*runs.store, "20260101-000004")->id == "20260101-000004-aaaaaa");
  CHECK(select_served(*runs.store, "last")->id == "20260101-000004-aaaaaa");
  CHECK_FALSE(select_served(*runs.store, "other").ok());
}

TEST_CASE("an interrupted version serves until a newer one has served") {
  NamedRuns runs;
  const std::string one = "20260101-000001-aaaaaa", two = "20260101-000002-aaaaaa",
                    three = "20260101-000003-aaaaaa", four = "20260101-000004-aaaaaa";
  runs.add(one, "prod", "interrupted", true, {"digits"});
  CHECK(runs.serving("prod") == one);
  runs.add(two, "prod", "succeeded", true, {"digits"});
  runs.add(three, "prod", "succeeded", true, {"digits"});
  CHECK(runs.serving("prod") == "");
  CHECK(select_served(*runs.store, "prod")->id == three);
  CHECK(select_serving(*runs.store, "prod")->id == one);  // it has not ended
  CHECK(rollback_versions(*runs.store, runs.blobs)->empty());
  runs.add(four, "prod", "running", false, {"digits"});
  CHECK(select_served(*runs.store, "prod")->id == three);
  CHECK(select_serving(*runs.store, "prod")->id == four);
  // The older one was resumed.
  runs.add(four, "prod", "failed", false, {"digits"});
  runs.add(one, "prod", "serving", true, {"digits"});
  CHECK(runs.serving("prod") == one);
}

TEST_CASE("the version before has served the same services and has succeeded") {
  NamedRuns runs;
  runs.add("r1", "prod", "succeeded", true, {"digits", "words"});
  runs.add("r2", "prod", "succeeded", true, {"words"});    // without `digits`
  runs.add("r3", "prod", "failed", true, {"digits"});      // it failed
  runs.add("r4", "prod", "succeeded", false, {"digits"});  // it never served
  runs.add("r5", "test", "succeeded", true, {"digits"});   // of another name
  runs.add("r6", "prod", "serving", true, {"digits"});
  runs.add("r7", "prod", "succeeded", true, {"digits"});  // newer
  CHECK(runs.before("prod") == "r1");
  CHECK(*rollback_versions(*runs.store, runs.blobs) == std::set<std::string>{"r1"});
}

TEST_CASE("a name that nothing serves keeps no version") {
  NamedRuns runs;
  runs.add("r1", "prod", "succeeded", true, {"digits"});
  runs.add("r2", "prod", "succeeded", true, {"digits"});
  runs.add("r3", "", "serving", true, {"digits"});
  CHECK(rollback_versions(*runs.store, runs.blobs)->empty());
}
