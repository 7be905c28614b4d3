// The parts of a turn: staged blobs, cache lookups, records, queries, log rows and timers, with a
// store in memory.
#include <catch2/catch.hpp>

#include "engine/runtime/log_rows.hpp"
#include "engine/runtime/query_handler.hpp"
#include "engine/runtime/timers.hpp"
#include "tests/runtime/open_engine.hpp"

using namespace flow;

namespace {

struct Parts {
  std::unique_ptr<Store> store = make_memory_store();
  Blobs blobs{*store, "/nowhere"};
  core::Time now = 100;
  StateClock clock{{[this] { return now; }, [this] { return now; }}};
  core::State state;
  Commits commits;
  StopCause stop;
  TurnBlobs turn_blobs{blobs, commits, stop};
  InputResolver resolver{[this](const Digest& digest) { return turn_blobs.read(digest); }};
  CacheLookup cache{*store, commits};
  ActiveRuns active_runs{state};
  RunEventFeed feed{state, clock, active_runs, commits.open.events};
  EngineTelemetry telemetry{nullptr, {}};
  Recorder recorder{state, commits.open, turn_blobs, resolver, feed, telemetry};
  QueryHandler queries{state, recorder, turn_blobs, cache, resolver, feed, stop};

  void submit(const std::string& id) {
    REQUIRE(recorder.record_if_admitted(core::EngineStarted{1, 1000, INT64_MAX}, now));
    core::RunSubmitted submitted;
    submitted.run = id;
    submitted.plan = chain_plan(1);
    REQUIRE(recorder.record_if_admitted(submitted, now));
    recorder.drain_commands([this](core::Command&& command) {
      if (is_query(command)) queries.push(std::move(command));
    });
  }
  const core::Unit& unit() { return state.runs.at("r").units[0]; }
  /// Places the first unit and returns its attempt.
  core::AttemptId start() {
    while (!queries.empty()) queries.resolve_some(now);
    for (core::Event& event : core::schedule(state, 1)) recorder.record(std::move(event), now);
    return core::current_attempt(state.runs.at("r"), 0);
  }
  void succeed(const core::AttemptId& id, const Value& value) {
    std::string bytes = encode_value(value);
    core::AttemptSucceeded success;
    success.id = id;
    success.result = sha256(bytes);
    turn_blobs.stage(success.result, std::move(bytes));
    REQUIRE(recorder.record_if_admitted(success, now));
  }
};

CacheEntry entry_of(const std::string& run) {
  CacheEntry entry;
  entry.run = run;
  return entry;
}

}  // namespace

TEST_CASE("a staged blob is read before it is written, and put into the batch once") {
  Parts parts;
  Digest digest = sha256("bytes");
  CHECK_FALSE(parts.turn_blobs.read(digest).ok());
  parts.turn_blobs.stage(digest, "bytes");
  parts.turn_blobs.stage(digest, "bytes");
  CHECK(parts.commits.open.batch.writes.size() == 1);
  CHECK(parts.commits.open.staged_bytes == 5);
  CHECK(*parts.turn_blobs.read(digest) == "bytes");
  parts.commits.in_flight = std::exchange(parts.commits.open, {});
  CHECK(*parts.turn_blobs.staged(digest) == "bytes");
  REQUIRE(parts.store->commit(parts.commits.in_flight.batch).ok());
  parts.commits.in_flight = {};
  CHECK(parts.turn_blobs.staged(digest) == nullptr);
  CHECK(*parts.turn_blobs.read(digest) == "bytes");
}

TEST_CASE("a cache entry holds its result if all blobs that it refers to are there") {
  Parts parts;
  CacheEntry entry;
  CHECK(parts.turn_blobs.holds_result_of(entry));  // short results are rows like the entry itself
  entry.result = sha256("calls");
  entry.fragment = sha256("fragment");
  entry.has_fragment = true;
  CHECK_FALSE(parts.turn_blobs.holds_result_of(entry));
}

TEST_CASE("a lookup finds entries of the open batch, of the commit in flight and of the store") {
  Parts parts;
  Digest open = sha256("open"), in_flight = sha256("in flight"), stored = sha256("stored");
  parts.commits.open.cached[open] = entry_of("a");
  parts.commits.in_flight.cached[in_flight] = entry_of("b");
  Batch batch;
  batch.put(Family::cache, cache_key(stored), encode_cache_entry(entry_of("c")));
  REQUIRE(parts.store->commit(batch).ok());
  std::vector<CacheRequest> requests(4);
  requests[0] = {"r", 0, open, true};
  requests[1] = {"r", 1, in_flight, true};
  requests[2] = {"r", 2, stored, true};
  requests[3] = {"r", 3, stored, false};
  REQUIRE(parts.cache.look_up(requests).ok());
  CHECK(requests[0].entry->run == "a");
  CHECK(requests[1].entry->run == "b");
  CHECK(requests[2].entry->run == "c");
  CHECK_FALSE(requests[3].entry);
  CHECK((*parts.cache.find(stored))->run == "c");
  CHECK_FALSE(*parts.cache.find(sha256("none")));
}

TEST_CASE("a run uses its own entries, and those of others unless it is fresh or they waited") {
  Parts parts;
  parts.submit("r");
  core::Run& run = parts.state.runs.at("r");
  CacheEntry other = entry_of("other");
  CHECK(CacheLookup::may_hit(run, 0, other));
  other.has_wait = true;
  CHECK_FALSE(CacheLookup::may_hit(run, 0, other));
  run.fresh = true;
  CHECK_FALSE(CacheLookup::may_hit(run, 0, entry_of("other")));
  CHECK(CacheLookup::may_hit(run, 0, entry_of("r")));
}

TEST_CASE(
    "an event that is not admitted leaves no trace, and the others are numbered without gaps") {
  Parts parts;
  CHECK_FALSE(parts.recorder.record_if_admitted(core::RunDeleted{"r"}, 1));
  CHECK(parts.commits.open.records.empty());
  parts.submit("r");
  const auto& records = parts.commits.open.records;
  REQUIRE(records.size() == 2);
  CHECK(records[0].sequence == 1);
  CHECK(records[1].sequence == 2);
  CHECK(records[1].at == 100);
  CHECK(parts.state.sequence == 2);
}

TEST_CASE("a result enters the cache with its event, and the next run uses it") {
  Parts parts;
  parts.submit("r");
  parts.succeed(parts.start(), Value(true));
  REQUIRE(parts.commits.open.cached.size() == 1);
  const auto& [key, entry] = *parts.commits.open.cached.begin();
  CHECK(key == parts.unit().key);
  CHECK(entry.run == "r");
  CHECK(entry.value == encode_value(Value(true)));
  core::RunSubmitted again;
  again.run = "s";
  again.plan = chain_plan(1);
  REQUIRE(parts.recorder.record_if_admitted(again, 101));
  parts.recorder.drain_commands([&](core::Command&& command) {
    if (is_query(command)) parts.queries.push(std::move(command));
  });
  while (!parts.queries.empty()) CHECK(parts.queries.resolve_some(101) == 1);
  const core::Unit& unit = parts.state.runs.at("s").units[0];
  CHECK(unit.cached);
  CHECK(unit.result == parts.unit().result);
}

TEST_CASE("an input that cannot be read fails its task with the cause staging") {
  Parts parts;
  parts.submit("r");
  core::AttemptId id = parts.start();
  core::Failure failure{core::Cause::staging, "it is damaged", "", 0};
  REQUIRE(parts.recorder.record_if_admitted(core::AttemptFailed{id, failure}, 101));
  // Its arguments refer to no blob, so none is missing, as the code shows.
  CHECK(parts.unit().detail->failure.code == 0);
}

TEST_CASE("log lines are numbered by epoch, and lines of a removed run come last") {
  core::State state;
  state.epoch = 2;
  state.runs["r"].id = "r";
  LogRows logs(state);
  Batch batch;
  logs.add({{"r", 0, 1, 1}, 0, 1, 5, "first", 0}, batch);
  logs.add({{"r", 0, 1, 1}, 0, 3, 6, "warning", 0}, batch);
  logs.add({{"gone", 0, 1, 1}, 0, 1, 7, "late", 0}, batch);
  REQUIRE(batch.writes.size() == 4);
  uint64_t first = uint64_t{2} << 40;
  CHECK(batch.writes[0].key == log_key("r", 0, 1, first));
  CHECK(batch.writes[1].key == warning_key("r", 0, 1, first + 1));
  CHECK(batch.writes[2].key == log_key("r", 0, 1, first + 1));
  CHECK(decode_log(*batch.writes[2].value)->stream == 0);
  CHECK(batch.writes[3].key == log_key("gone", 0, 1, first | uint64_t{1} << 39));
}

TEST_CASE("timers are due in order, and leave with their run") {
  Timers timers;
  CHECK(timers.next_due() == INT64_MAX);
  timers.set({"r", 1, 7, 20});
  timers.set({"r", 2, 8, 10});
  timers.set({"s", 3, 9, 10});
  timers.end_serving("t", 15);
  CHECK(timers.next_due() == 10);
  timers.forget("s");
  CHECK(timers.take_due(9).empty());
  std::vector<TurnInput> due = timers.take_due(15);
  REQUIRE(due.size() == 2);
  auto event_of = [](const TurnInput& input) { return std::get<PostedEvent>(input.what).event; };
  CHECK(std::get<core::TimerFired>(event_of(due[0])).unit == 2);
  CHECK(std::get<core::ServeEnded>(event_of(due[1])).run == "t");
  CHECK(timers.next_due() == 20);
}

TEST_CASE("a new end of serving replaces the one before") {
  Timers timers;
  timers.end_serving("r", 10);
  timers.end_serving("s", 12);
  timers.end_serving("r", 30);
  CHECK(timers.take_due(11).empty());
  CHECK(timers.take_due(20).size() == 1);
  CHECK(timers.next_due() == 30);
}

TEST_CASE("the time that a detached run serves continues in the next process") {
  Parts parts;
  parts.submit("r");
  parts.state.runs.at("r").status = core::RunStatus::serving;
  RunContext first;
  first.record.id = "r";
  first.is_detached = true;
  first.serve_for_ms = 50;
  parts.active_runs.put("r", first);
  Batch batch;
  CHECK(parts.active_runs.take_serve_end("r", 100, batch) == 150);
  REQUIRE(batch.writes.size() == 1);
  CHECK(batch.writes[0].key == detached_key("r"));
  const DetachedRun row = decode_detached_run(*batch.writes[0].value);
  CHECK(row.serve_for_ms == 50);
  CHECK(row.serve_until_ms == 150);
  for (core::Time now : {120, 200}) {  // also if the time is over
    RunContext next;
    next.record.id = "r";
    next.is_detached = true;
    keep_options(next, row);
    parts.active_runs.put("r", next);
    Batch again;
    CHECK(parts.active_runs.take_serve_end("r", now, again) == 150);
    CHECK(again.writes.empty());
  }
  RunContext other;  // a request that sets it
  other.serve_for_ms = 80;
  keep_options(other, row);
  parts.active_runs.put("r", other);
  CHECK(parts.active_runs.take_serve_end("r", 200, batch) == 280);
}

TEST_CASE("a run that is followed keeps the options that it was given") {
  RunContext first;
  first.record.id = "r";
  Batch none;
  put_kept_options(first, none);
  REQUIRE(none.writes.size() == 1);
  CHECK_FALSE(none.writes[0].value);  // erased
  first.front_lease_ms = 3;
  Batch batch;
  put_kept_options(first, batch);
  REQUIRE(batch.writes.size() == 1);
  const DetachedRun row = decode_detached_run(*batch.writes[0].value);
  CHECK_FALSE(row.is_detached);
  RunContext next;
  keep_options(next, row);
  CHECK(next.front_lease_ms == 3);
  CHECK(next.serve_for_ms == -1);
}

TEST_CASE("a listener gets its run's events in one call, and an interrupted run's end once") {
  Parts parts;
  parts.submit("r");
  auto listener = std::make_shared<KeepingListener>();
  RunContext context;
  context.listener = listener;
  context.serve_for_ms = 50;
  parts.active_runs.put("r", context);
  parts.feed.notify_run("r");
  parts.feed.notify_unit("r", 0);  // a pending task causes no event
  parts.feed.warn("none", "no listener");
  REQUIRE(parts.commits.open.events.size() == 1);
  parts.feed.deliver(std::move(parts.commits.open.events));
  Batch batch;
  CHECK_FALSE(parts.active_runs.take_serve_end("r", 100, batch));
  core::Run& run = parts.state.runs.at("r");
  run.status = core::RunStatus::serving;
  CHECK(parts.active_runs.take_serve_end("r", 100, batch) == 150);
  CHECK_FALSE(parts.active_runs.take_serve_end("r", 100, batch));
  CHECK(batch.writes.size() == 1);  // the end is kept, once
  run.status = core::RunStatus::running;
  run.stopping = true;
  CHECK(parts.active_runs.is_being_interrupted("r"));
  auto latch = std::make_shared<Latch>();
  parts.active_runs.await_interruption("r", latch);
  std::vector<std::pair<OnAdmission, bool>> outcomes;
  parts.active_runs.end_waiting_calls(outcomes);
  CHECK(outcomes.empty());
  run.status = core::RunStatus::interrupted;
  parts.active_runs.end_waiting_calls(outcomes);
  REQUIRE(outcomes.size() == 1);
  outcomes[0].first(true);
  CHECK(latch->wait());
  parts.active_runs.end_if_interrupted("r");
  parts.active_runs.end_if_interrupted("r");
  CHECK(listener->texts == std::vector<std::string>{" " + std::string("running"), "end"});
}
