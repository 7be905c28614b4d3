// Group commit without threads: the test performs the deferred writes.
#include <catch2/catch.hpp>
#include <string>

#include "engine/runtime/group_commit.hpp"
#include "engine/store/row_keys.hpp"

using namespace flow;

namespace {

class FailingStore final : public Store {
 public:
  Status commit(Batch batch, bool sync) override {
    if (fails) return environment_error("the disk is gone");
    syncs += sync ? 1 : 0;
    return store_->commit(std::move(batch), sync);
  }
  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    return store_->get(family, key);
  }
  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    return store_->get_many(family, keys);
  }
  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    return store_->scan(family, prefix, from, visit);
  }
  uint64_t bytes() const override { return store_->bytes(); }
  bool fails = false;
  int syncs = 0;

 private:
  std::unique_ptr<Store> store_ = make_memory_store();
};

struct Steps final : public CommitSteps {
  bool has_speculative_start() const override { return false; }
  void prefetch_orders(uint64_t commit) override { add("prefetch " + std::to_string(commit)); }
  void deliver(std::vector<Event>) override { add("deliver"); }
  void execute(const std::vector<core::Command>&) override { add("execute"); }
  void ack_logs(size_t cost) override { add("logs " + std::to_string(cost)); }
  void release(uint64_t commit) override { add("release " + std::to_string(commit)); }
  void on_written() override { add("written"); }
  void add(std::string call) { calls.push_back(std::move(call)); }
  std::vector<std::string> take() { return std::exchange(calls, {}); }
  std::vector<std::string> calls;
};

using Calls = std::vector<std::string>;

struct DeferredCommits {
  FailingStore store;
  core::State state;
  Commits commits;
  StopCause stop;
  Steps steps;
  EngineTelemetry telemetry{nullptr, {}};
  GroupCommit group_commit{store, state, commits, stop, steps, telemetry, "/nowhere"};

  /// More records than a turn writes itself, and an outcome.
  void decide(const std::string& name, int records = 10) {
    for (int i = 0; i < records; i++) {
      core::Record record{++state.sequence, 1, core::WorkersAnnounced{1}};
      commits.open.records.push_back(std::move(record));
    }
    commits.open.is_durable = true;
    commits.open.outcomes.emplace_back(
        [this, name](bool admitted) { steps.add(name + (admitted ? " yes" : " no")); }, true);
  }
  size_t rows(Family family) const {
    size_t count = 0;
    REQUIRE(store
                .scan(family, "", "",
                      [&](std::string_view, std::string_view) {
                        count++;
                        return true;
                      })
                .ok());
    return count;
  }
};

}  // namespace

TEST_CASE("a small commit is written by the turn, then outcomes and effects follow in order") {
  DeferredCommits engine;
  engine.decide("one", 2);
  engine.commits.open.log_cost = 7;
  engine.commits.open.outcomes.emplace_back(
      [&](bool) { engine.group_commit.after_effects([&] { engine.steps.add("after"); }); }, true);
  engine.group_commit.commit(true);
  CHECK(engine.steps.take() ==
        Calls{"prefetch 1", "logs 7", "release 1", "deliver", "one yes", "execute", "after"});
  CHECK(engine.rows(Family::journal) == 1);
  CHECK_FALSE(engine.group_commit.has_work());
  engine.group_commit.commit(true);  // nothing is open
  CHECK(engine.steps.take().empty());
}

TEST_CASE("nothing of a deferred commit is visible before a turn finishes it") {
  DeferredCommits engine;
  engine.decide("one");
  engine.group_commit.commit(true);
  CHECK(engine.steps.take() == Calls{"prefetch 1"});
  engine.decide("two");  // collects for the next commit meanwhile
  engine.group_commit.commit(true);
  CHECK(engine.steps.take() == Calls{"prefetch 2"});
  CHECK(engine.store.syncs == 0);
  CHECK(engine.group_commit.write_deferred());
  CHECK_FALSE(engine.group_commit.write_deferred());
  CHECK(engine.steps.take() == Calls{"release 1", "written"});
  CHECK(engine.group_commit.is_written());
  CHECK(engine.group_commit.has_work());
  engine.group_commit.await();
  CHECK(engine.steps.take() == Calls{"deliver", "one yes", "execute"});
  CHECK(engine.group_commit.has_work());  // the open batch has work
  engine.group_commit.commit(false);
  CHECK(engine.steps.take() == Calls{"prefetch 2", "release 2", "deliver", "two yes", "execute"});
  CHECK(engine.store.syncs == 2);
}

TEST_CASE("a failed write stops the engine, and nothing follows from the commit") {
  bool is_deferred = GENERATE(false, true);
  DeferredCommits engine;
  engine.store.fails = true;
  engine.decide("one");
  engine.group_commit.commit(is_deferred);
  engine.group_commit.await();
  Calls expected{"prefetch 1", "one no"};
  if (is_deferred) expected = {"prefetch 1", "written", "one no"};
  CHECK(engine.steps.take() == expected);
  REQUIRE(engine.stop.get());
  CHECK(engine.stop.get()->message == "the disk is gone");
  engine.store.fails = false;
  engine.decide("two");
  engine.group_commit.commit(false);  // a stopped engine writes nothing any more
  CHECK(engine.steps.take() == Calls{"prefetch 2", "two no"});
  CHECK(engine.rows(Family::journal) == 0);
}

TEST_CASE("a snapshot is due when the journal has twice the bytes that it will have") {
  DeferredCommits engine;
  core::Run& run = engine.state.runs["r"];
  run.id = "r";
  run.units.resize(100'000);
  uint64_t expected = expected_snapshot_bytes(engine.state);
  constexpr uint64_t kSlack = 100'000;  // more than these commits have
  REQUIRE(expected > 10'000'000);
  engine.group_commit.set_journal_bytes(2 * expected - kSlack);
  engine.decide("one", 2);
  engine.group_commit.commit(false);
  CHECK(engine.rows(Family::snapshots) == 0);
  engine.group_commit.set_journal_bytes(2 * expected + 1);
  engine.decide("two", 2);
  engine.group_commit.commit(false);
  CHECK(engine.rows(Family::snapshots) == 1);
}

TEST_CASE("a snapshot replaces the journal that it covers") {
  DeferredCommits engine;
  engine.decide("one", 2);
  engine.group_commit.commit(false);
  engine.decide("two", 2);
  engine.group_commit.request_snapshot();
  engine.group_commit.commit(true);
  CHECK(engine.rows(Family::journal) == 0);
  CHECK(engine.rows(Family::snapshots) == 1);
  engine.decide("three", 2);
  engine.group_commit.request_snapshot();
  engine.group_commit.commit(true);
  CHECK(engine.rows(Family::snapshots) == 1);
}
