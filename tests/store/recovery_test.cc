// Recovery of a state from its snapshot and the records after it, also those of old schemas.
#include <catch2/catch.hpp>
#include <sstream>

#include "engine/store/journal_schema.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"
#include "tests/store/journal_records.hpp"

using namespace flow;
using namespace flow::test;

TEST_CASE("a snapshot and the records after it give the same state as all records") {
  Sources sources;
  core::State live;
  std::vector<core::Command> commands;
  std::vector<core::Record> records;
  auto feed = [&](core::Event event) {
    REQUIRE(core::admit(live, event));
    core::Record record{live.sequence + 1, 1000, std::move(event)};
    core::apply(live, record, commands);
    records.push_back(std::move(record));
  };
  feed(core::EngineStarted{1, 2000, 1 << 30});
  feed(core::RunSubmitted{"r", "", sources.digest, sources.plan, 0, false, false});
  feed(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  std::string snapshot = encode_snapshot(live);
  size_t at = records.size();
  core::AttemptId id = core::next_attempt(live, live.runs.at("r"), 0);
  feed(core::Assigned{id});
  feed(core::AttemptSucceeded{id, sha256("one"), nullptr, {}, 10});
  auto restored = decode_snapshot(snapshot, sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  for (size_t i = at; i < records.size(); i++) core::apply(*restored, records[i], commands);
  CHECK(core::check_invariants(*restored) == "");
  CHECK(encode_snapshot(*restored) == encode_snapshot(live));
}

TEST_CASE("recovery stops at a gap and reports it") {
  Sources sources;
  auto store = make_memory_store();
  Blobs blobs(*store, "/nowhere");
  Batch batch;
  batch.put(Family::journal, journal_key(1),
            encode_records({{1, 5, core::EngineStarted{1, 1000, 1}}}));
  batch.put(Family::journal, journal_key(3),
            encode_records({{3, 5, core::EngineStarted{2, 1000, 1}}}));
  REQUIRE(store->commit(batch).ok());
  auto state = recover(*store, blobs);
  REQUIRE_FALSE(state.ok());
  CHECK_THAT(state.error().message, Catch::Contains("no record 2"));
}

TEST_CASE("only records after those that a state has are applied to it") {
  auto store = make_memory_store();
  Blobs blobs(*store, "/nowhere");
  auto commit = [&](uint64_t sequence, uint64_t epoch) {
    Batch batch;
    batch.put(Family::journal, journal_key(sequence),
              encode_records({{sequence, 5, core::EngineStarted{epoch, 1000, 1}}}));
    REQUIRE(store->commit(batch).ok());
  };
  commit(1, 1);
  auto state = recover(*store, blobs);
  REQUIRE(state.ok());
  // A record that the state has is not read again.
  Batch damaged;
  damaged.put(Family::journal, journal_key(1), "damaged");
  REQUIRE(store->commit(damaged).ok());
  auto applied = apply_new_records(*store, blobs, *state);
  REQUIRE(applied.ok());
  CHECK(*applied);
  CHECK(state->sequence == 1);
  commit(2, 2);
  commit(3, 3);
  applied = apply_new_records(*store, blobs, *state);
  REQUIRE(applied.ok());
  CHECK(*applied);
  CHECK(state->sequence == 3);
  CHECK(state->epoch == 3);

  // A snapshot replaces records that the state does not have.
  core::State newer = *state;
  std::vector<core::Command> ignored;
  core::apply(newer, {4, 6, core::EngineStarted{4, 1000, 1}}, ignored);
  Batch snapshot;
  snapshot.put(Family::snapshots, journal_key(3), encode_snapshot(*state));
  for (uint64_t sequence : {1, 2, 3}) snapshot.erase(Family::journal, journal_key(sequence));
  REQUIRE(store->commit(snapshot).ok());
  applied = apply_new_records(*store, blobs, *state);
  REQUIRE(applied.ok());
  CHECK(*applied);
  Batch next;
  next.erase(Family::snapshots, journal_key(3));
  next.put(Family::snapshots, journal_key(4), encode_snapshot(newer));
  REQUIRE(store->commit(next).ok());
  applied = apply_new_records(*store, blobs, *state);
  REQUIRE(applied.ok());
  CHECK_FALSE(*applied);
}

TEST_CASE("a state of schemas 1 to 14 opens, and new records have the newest schema") {
  Sources sources;
  auto store = make_memory_store();
  Blobs blobs(*store, "/nowhere");
  Batch batch;
  REQUIRE(blobs.put(encode_plan(*sources.plan), batch).ok());
  std::istringstream lines(pinned("state-14"));
  std::string line;
  std::vector<int> schemas;
  std::vector<core::Record> records;
  while (lines >> line) {
    std::string bytes = unhex(line);
    schemas.push_back(bytes.at(1));
    auto back = decode_records(bytes, sources.find_plan, sources.find_fragment);
    if (!back.ok()) FAIL(back.error().message);
    batch.put(Family::journal, journal_key(back->front().sequence), bytes);
    records.insert(records.end(), back->begin(), back->end());
  }
  CHECK(schemas == std::vector<int>{1, 4, 1, 14});
  REQUIRE(store->commit(batch).ok());
  auto old = recover(*store, blobs);
  if (!old.ok()) FAIL(old.error().message);
  CHECK(core::check_invariants(*old) == "");
  core::State live;
  std::vector<core::Command> ignored;
  for (const core::Record& record : records) {
    REQUIRE(core::admit(live, record.event));
    core::apply(live, record, ignored);
  }
  CHECK(encode_snapshot(*old) == encode_snapshot(live));
  const core::Run& run = live.runs.at("r");
  CHECK(run.units[0].status == core::UnitStatus::succeeded);
  CHECK(run.units[0].result == sha256("one"));
  CHECK(run.units[1].detail->failure.cause == core::Cause::staging);
  CHECK(live.workers.at(0).info.gpus.at(0).uuid == "GPU-a");
  CHECK(live.workers.at(1).info.name == "w1");

  core::Record restart{live.sequence + 1, 2000, core::EngineStarted{2, 2000, 1 << 30}};
  core::Record signal{live.sequence + 2, 2001, core::SignalReceived{"r", "go", sha256("true")}};
  std::string newest = encode_records({restart, signal});
  CHECK(newest.substr(0, 2) == schema_bytes(kJournalSchema));
  Batch more;
  more.put(Family::journal, journal_key(restart.sequence), newest);
  REQUIRE(store->commit(more).ok());
  core::apply(live, restart, ignored);
  core::apply(live, signal, ignored);
  auto both = recover(*store, blobs);
  if (!both.ok()) FAIL(both.error().message);
  CHECK(both->sequence == signal.sequence);
  CHECK(encode_snapshot(*both) == encode_snapshot(live));
  CHECK(encode_snapshot(*both).substr(0, 2) == schema_bytes(kJournalSchema));
}
