// What StateFollower sees of a state that another store writes.
#include "engine/page/state_follower.hpp"

#include <catch2/catch.hpp>

#include "engine/store/lock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"
#include "tests/worker/temp_folder.hpp"

using namespace flow;

namespace {

/// Writes the journal of a run with one task.
class Writer {
 public:
  explicit Writer(const std::string& dir) : lock_(lock_of(dir)), dir_(dir) {
    store_ = store_of(dir);
    blobs_ = std::make_unique<Blobs>(*store_, dir);
    Plan plan;
    plan.pipeline = "p";
    plan.defs.resize(1);
    plan.defs[0].name = "t";
    plan.nodes.resize(1);
    plan.nodes[0].name = "t";
    plan.nodes[0].args = Value::list({});
    plan.result = Value(Ref{0, {}});
    std::string bytes = encode_plan(plan);
    Batch batch;
    auto digest = blobs_->put(bytes, batch);
    REQUIRE(digest.ok());
    RunRecord record;
    record.id = "r";
    record.pipeline = "p";
    record.status = "running";
    record.params = encode_value(Value::map({}));
    batch.put(Family::runs, run_key("r"), encode_run_record(record));
    REQUIRE(store_->commit(batch).ok());
    add(core::EngineStarted{1, 2000, 1 << 30});
    add(core::RunSubmitted{"r", "", *digest, std::make_shared<const Plan>(std::move(plan)), 0,
                           false, false});
    add(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  }

  void add(core::Event event) {
    core::Record record{state_.sequence + 1, 1000, std::move(event)};
    REQUIRE(core::admit(state_, record.event));
    Batch batch;
    batch.put(Family::journal, journal_key(record.sequence), encode_records({record}));
    REQUIRE(store_->commit(batch).ok());
    std::vector<core::Command> ignored;
    core::apply(state_, record, ignored);
  }
  void add_snapshot() {
    Batch batch;
    batch.put(Family::snapshots, journal_key(state_.sequence), encode_snapshot(state_));
    for (uint64_t sequence = 1; sequence <= state_.sequence; sequence++)
      batch.erase(Family::journal, journal_key(sequence));
    REQUIRE(store_->commit(batch).ok());
  }
  core::AttemptId begin_attempt() {
    core::AttemptId id = core::next_attempt(state_, state_.runs.at("r"), 0);
    add(core::Assigned{id});
    return id;
  }
  void reopen() {
    store_.reset();
    store_ = store_of(dir_);
  }

 private:
  static std::unique_ptr<StateLock> lock_of(const std::string& dir) {
    auto lock = StateLock::acquire(dir);
    REQUIRE(lock.ok());
    return std::move(*lock);
  }
  static std::unique_ptr<Store> store_of(const std::string& dir) {
    auto store = open_store(dir);
    if (!store.ok()) FAIL(store.error().message);
    return std::move(*store);
  }

  std::unique_ptr<StateLock> lock_;
  std::string dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Blobs> blobs_;
  core::State state_;
};

std::string state_of(const TempFolder& temp) { return temp / "state"; }

EngineOptions options_of(const TempFolder& temp) {
  EngineOptions options;
  options.state = state_of(temp);
  return options;
}

}  // namespace

TEST_CASE("a follower sees what was written since, and what a Reader sees") {
  TempFolder temp;
  Writer writer(state_of(temp));
  StateFollower follower(options_of(temp));
  auto same_as_reader = [&] {
    follower.refresh();
    std::string shown = Reader(options_of(temp)).show("r").json();
    CHECK(follower.show("r").json() == shown);
    CHECK(follower.list().at(0).json() == Reader(options_of(temp)).list().at(0).json());
    return follower.show("r");
  };
  CHECK(same_as_reader().counts.ready == 1);
  core::AttemptId attempt = writer.begin_attempt();
  CHECK(follower.show("r").counts.ready == 1);  // as of the last refresh
  CHECK(same_as_reader().counts.running == 1);
  const core::State* before = follower.summarize("r").loaded.state.get();
  writer.add(core::AttemptSucceeded{attempt, sha256("one"), nullptr, {}, 10});
  RunInfo ended = same_as_reader();
  CHECK(ended.counts.succeeded == 1);
  CHECK(ended.tasks.at(0).status == "succeeded");
  // The journal was not read again.
  CHECK(follower.summarize("r").loaded.state.get() == before);
}

TEST_CASE("a follower sees what a snapshot replaced, and what a later writer adds") {
  TempFolder temp;
  Writer writer(state_of(temp));
  StateFollower follower(options_of(temp));
  follower.refresh();
  writer.begin_attempt();
  writer.add_snapshot();
  follower.refresh();
  CHECK(follower.show("r").counts.running == 1);
  writer.reopen();  // its log becomes a table
  writer.add(core::EngineStarted{2, 2000, 1 << 30});
  follower.refresh();
  CHECK(follower.show("r").json() == Reader(options_of(temp)).show("r").json());
}

TEST_CASE("a follower finds a state that is made later, and another one in its place") {
  TempFolder temp;
  StateFollower follower(options_of(temp));
  follower.refresh();
  CHECK(follower.list().empty());
  {
    Writer writer(state_of(temp));
    follower.refresh();
    CHECK(follower.list().size() == 1);
    writer.begin_attempt();
    follower.refresh();
  }
  std::filesystem::rename(state_of(temp), state_of(temp) + "-before");
  Writer writer(state_of(temp));
  follower.refresh();
  CHECK(follower.show("r").counts.ready == 1);
}
