// The row of a detached run, and which runs of a state the engine resumes by itself.
#include "engine/runs/detached_runs.hpp"

#include <catch2/catch.hpp>

#include "engine/store/row_keys.hpp"

using namespace flow;

TEST_CASE("the row of a detached run keeps its options") {
  DetachedRun run{1, -1, 3, true, "why \"not\"", 5, false};
  DetachedRun read = decode_detached_run(encode_detached_run(run));
  CHECK(read.grace_ms == 1);
  CHECK(read.serve_for_ms == -1);
  CHECK(read.serve_until_ms == 5);
  CHECK(read.front_lease_ms == 3);
  CHECK(read.is_of_head);
  CHECK(read.problem == "why \"not\"");
  CHECK_FALSE(read.is_detached);
}

TEST_CASE("a row in another form has the defaults") {
  for (const char* row :
       {"", "{", "[1]", "7",
        R"({"grace_ms":"x","problem":1,"of_head":null,"detached":0,"serve_until_ms":"soon"})"}) {
    DetachedRun read = decode_detached_run(row);
    CHECK(read.grace_ms == RunOptions().grace_ms);
    CHECK(read.front_lease_ms == RunOptions().front_lease_ms);
    CHECK(read.serve_until_ms == -1);
    CHECK_FALSE(read.is_of_head);
    CHECK(read.problem.empty());
    CHECK(read.is_detached);
  }
}

TEST_CASE("only detached runs that were not asked to end are resumed") {
  core::State state;
  auto store = make_memory_store();
  Batch batch;
  auto add = [&](const char* id, const DetachedRun& row) -> core::Run& {
    batch.put(Family::kv, detached_key(id), encode_detached_run(row));
    core::Run& run = state.runs[id];
    run.status = core::RunStatus::interrupted;
    return run;
  };
  DetachedRun of_head;
  of_head.is_of_head = true;
  DetachedRun followed;
  followed.is_detached = false;
  add("a", {});
  add("b", of_head);
  add("c", {}).stop_requested = true;
  add("d", {}).cancelling = true;
  add("e", {}).ending = true;
  add("f", {}).status = core::RunStatus::failed;
  add("h", followed);
  state.runs["g"].status = core::RunStatus::interrupted;  // not detached
  REQUIRE(store->commit(std::move(batch)).ok());
  CHECK(*left_runs(state, *store, false) == std::vector<core::RunId>{"a"});
  CHECK(*left_runs(state, *store, true) == std::vector<core::RunId>{"a", "b"});
}
