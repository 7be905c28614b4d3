// The archive of a run: in its row if it is short, else in a blob that is written in pieces.
#include "engine/runs/run_archive.hpp"

#include <catch2/catch.hpp>

#include "engine/store/store.hpp"
#include "tests/store/temp_folder.hpp"

using namespace flow;

namespace {

/// A state with a run of `count` tasks, of which each has a result and every tenth has failed.
core::State state_with_run(uint32_t count, Blobs& blobs, Store& store) {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(1);
  plan->defs[0].name = "t";
  for (uint32_t i = 0; i < count; i++) {
    TaskNode node;
    node.name = "t#" + std::to_string(i);
    plan->nodes.push_back(std::move(node));
  }
  core::State state;
  core::Run& run = state.runs["r"];
  run.id = "r";
  run.status = core::RunStatus::failed;
  Batch batch;
  auto digest = blobs.put(encode_plan(*plan), batch);
  REQUIRE(digest.ok());
  REQUIRE(store.commit(std::move(batch)).ok());
  run.plan_digest = *digest;
  run.plan = std::move(plan);
  run.units.resize(count);
  for (uint32_t i = 0; i < count; i++) {
    core::Unit& unit = run.units[i];
    unit.node = i;
    unit.phase = core::Phase::done;
    unit.status = core::UnitStatus::succeeded;
    unit.result = sha256(std::to_string(i));
    if (i % 10 != 0) continue;
    core::UnitDetail detail;
    detail.failure.message = "failure " + std::to_string(i);
    unit.status = core::UnitStatus::failed;
    unit.detail = std::make_shared<const core::UnitDetail>(std::move(detail));
  }
  core::rebuild_derived(state);
  return state;
}

void check_same_units(const core::Run& run, const core::Run& archived) {
  REQUIRE(archived.units.size() == run.units.size());
  for (size_t i = 0; i < run.units.size(); i++) {
    const core::Unit &before = run.units[i], &after = archived.units[i];
    bool is_same = before.node == after.node && before.status == after.status &&
                   before.result == after.result && !before.detail == !after.detail;
    REQUIRE(is_same);
    if (before.detail) CHECK(after.detail->failure.message == before.detail->failure.message);
  }
}

}  // namespace

TEST_CASE("a run is loaded from its archive") {
  TempFolder temp;
  auto store = make_memory_store();
  Blobs blobs(*store, temp.path.string());
  for (uint32_t count : {1, 5000}) {
    core::State state = state_with_run(count, blobs, *store);
    const core::Run& run = state.runs.at("r");
    auto archive = archive_run(state, run, blobs);
    REQUIRE(archive.ok());
    bool is_long = count > 1;
    CHECK(archive_blob(*archive).has_value() == is_long);
    auto loaded = load_archived_run(*archive, blobs);
    REQUIRE(loaded.ok());
    check_same_units(run, loaded->runs.at("r"));
    auto again = archive_run(state, run, blobs);  // the blob is there already
    REQUIRE(again.ok());
    CHECK(*again == *archive);
  }
}

TEST_CASE("the pieces of a snapshot have the announced size") {
  TempFolder temp;
  auto store = make_memory_store();
  Blobs blobs(*store, temp.path.string());
  core::State state = state_with_run(5000, blobs, *store);
  std::string bytes;
  size_t pieces = 0, announced = 0;
  encode_snapshot_of(state, state.runs.at("r"), [&](std::string_view piece, size_t total) {
    bytes += piece;
    pieces++;
    announced = total;
  });
  CHECK(pieces > 1);
  CHECK(bytes.size() == announced);
  CHECK(bytes == encode_snapshot(state));
}

TEST_CASE("a blob that cannot be written in pieces is an error") {
  auto store = make_memory_store();
  Blobs blobs(*store, "/dev/null");  // not a folder
  Blobs::Writer writer(blobs);
  writer.add("piece");
  CHECK_FALSE(writer.finish().ok());
}
