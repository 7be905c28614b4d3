// The end of a gang in the engine: without store, threads and executors.
#include "engine/runtime/gang_supervisor.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

constexpr int64_t kGraceMs = 1'000;

core::Time now_ = 0;  // of the test's clock

/// Records the commands to a worker, behind its name.
class RecordingWorker final : public WorkerConnection {
 public:
  RecordingWorker(std::string name, std::vector<std::string>& calls)
      : name_(std::move(name)), calls_(calls) {}
  void stage(std::vector<AttemptOrder>, uint64_t) override {}
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&,
                          const std::vector<std::string>& addresses) override {
    std::string call = name_ + " addresses";
    for (const std::string& address : addresses) call += " " + address;
    calls_.push_back(call);
  }
  void stop(const core::AttemptId&, bool) override { calls_.push_back(name_ + " stop"); }
  void interrupt(const core::AttemptId&) override { calls_.push_back(name_ + " interrupt"); }
  void kill_after_flush(const core::AttemptId&) override {
    calls_.push_back(name_ + " kill after flush");
  }
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
  void accept_join(uint64_t) override {}
  void ack_reports(uint64_t) override {}
  void disconnect(const std::string&) override {}

 private:
  const std::string name_;
  std::vector<std::string>& calls_;
};

/// A gang of three ranks, on this machine and on the workers `a` and `b`; unit 1 has one rank.
struct Gang {
  core::State state;
  StateClock clock{{[] { return now_; }, [] { return now_; }}};
  WorkerRegistry workers;
  std::vector<std::string> calls;
  std::vector<core::Event> events;
  GangSupervisor gangs{state, clock, workers,
                       [this](core::Event event) { events.push_back(std::move(event)); },
                       [](const core::RunId&) { return kGraceMs; }};
  const core::AttemptId id{"r", 0, 1, core::fencing_token(1, 0)};

  Gang() {
    now_ = 1'000'000;
    clock.resume(now_, now_, true);
    state.workers.resize(3);
    workers.set_own(std::make_unique<RecordingWorker>("own", calls));
    for (core::WorkerId worker : {1, 2}) {
      std::string name = worker == 1 ? "a" : "b";
      state.workers[worker].info.name = name;
      workers.attach(name, std::make_shared<RecordingWorker>(name, calls), name + ":1");
    }
    core::Run& run = state.runs["r"];
    run.id = core::RunId("r");
    run.units.resize(2);
    for (core::Unit& unit : run.units) {
      unit.phase = core::Phase::running;
      unit.attempts = 1;
      unit.epoch = id.epoch;
    }
    auto detail = std::make_shared<core::UnitDetail>();
    for (core::WorkerId worker : {1, 2}) detail->others.emplace_back().worker = worker;
    run.units[0].detail = detail;
  }
  core::Unit& unit() { return state.runs["r"].units[0]; }
  /// Advances the time, and records what is due.
  void pass(int64_t ms) {
    now_ += ms;
    for (const core::AttemptId& due : gangs.take_due(clock.now())) gangs.report_due_failure(due);
  }
  void fail(uint32_t rank, core::Cause cause, bool is_timeout = false) {
    gangs.note_failure(id, rank, {cause, "rank " + std::to_string(rank) + " failed", "", 0},
                       is_timeout);
  }
  const core::AttemptFailed& failure() const {
    REQUIRE(events.size() == 1);
    REQUIRE(std::holds_alternative<core::AttemptFailed>(events[0]));
    return std::get<core::AttemptFailed>(events[0]);
  }
};

using Calls = std::vector<std::string>;
const Calls kKilled = {"own kill after flush", "a kill after flush", "b kill after flush"};

std::string inside(uint64_t number) {
  RankProgress progress;
  progress.number = number;
  progress.is_inside = true;
  return encode_rank_progress(progress);
}

}  // namespace

TEST_CASE("every worker gets the addresses of all ranks when the last one is known") {
  Gang gang;
  gang.gangs.note_rank_address(gang.id, 0, "x");
  gang.gangs.note_rank_address(gang.id, 2, "z");
  gang.gangs.note_rank_address(gang.id, 3, "no such rank");
  gang.gangs.note_rank_address(gang.id, 1, "");
  gang.gangs.note_rank_address({"r", 0, 2, gang.id.epoch}, 1, "of another attempt");
  CHECK(gang.calls.empty());
  gang.gangs.note_rank_address(gang.id, 1, "y");
  CHECK(gang.calls == Calls{"own addresses x y z", "a addresses x y z", "b addresses x y z"});
  gang.calls.clear();
  gang.gangs.note_rank_address(gang.id, 1, "w");  // after a new connection
  CHECK(gang.calls == Calls{"own addresses x w z", "a addresses x w z", "b addresses x w z"});
}

TEST_CASE("a failure of an attempt with one rank is recorded at once") {
  Gang gang;
  gang.gangs.note_failure({"r", 1, 1, gang.id.epoch}, 0, {core::Cause::signal, "died", "", 9});
  CHECK(gang.failure().failure.message == "died");
  CHECK(gang.calls.empty());
}

TEST_CASE("the first failure ends the gang after rank 0 has written its state") {
  Gang gang;
  gang.fail(1, core::Cause::exit_code);
  CHECK(gang.events.empty());
  CHECK(gang.calls == kKilled);
  gang.fail(2, core::Cause::exit_code);  // a consequence
  CHECK(gang.events.empty());
  CHECK(gang.gangs.has_finalizing_gang(1));
  CHECK_FALSE(gang.gangs.has_finalizing_gang(0));  // rank 0 still runs
  core::Event end = core::AttemptStopped{gang.id};
  gang.gangs.replace_by_first_failure(end);
  REQUIRE(std::holds_alternative<core::AttemptFailed>(end));
  CHECK(std::get<core::AttemptFailed>(end).rank == 1);
  CHECK(std::get<core::AttemptFailed>(end).failure.message == "rank 1 failed");
  core::Event again = core::AttemptStopped{gang.id};
  gang.gangs.replace_by_first_failure(again);  // the failure is recorded once
  CHECK(std::holds_alternative<core::AttemptStopped>(again));
}

TEST_CASE("a failure is recorded if rank 0 does not end within its grace period") {
  Gang gang;
  gang.fail(1, core::Cause::exit_code);
  core::Time due = gang.gangs.next_report_at();
  CHECK(due == now_ + kGraceMs + 2'000);
  gang.pass(due - now_ - 1);
  CHECK(gang.events.empty());
  gang.pass(1);
  CHECK(gang.failure().rank == 1);
  CHECK(gang.gangs.next_report_at() == INT64_MAX);
}

TEST_CASE("a rank that died is explained by the rank that saw it end") {
  Gang gang;
  gang.fail(1, core::Cause::signal);
  CHECK(gang.calls.empty());
  gang.gangs.note_peer_failure(gang.id, 2, "rank 2 lost rank 1 in all_reduce #7");
  CHECK(gang.calls == kKilled);
  gang.fail(0, core::Cause::exit_code);  // rank 0 has ended
  CHECK(gang.failure().rank == 1);
  CHECK(gang.failure().failure.message == "rank 1 failed\nrank 2 lost rank 1 in all_reduce #7");
}

TEST_CASE("a rank that died is reported without an explanation if none arrives") {
  Gang gang;
  gang.fail(1, core::Cause::signal);
  gang.pass(299);
  CHECK(gang.calls.empty());
  gang.pass(1);
  CHECK(gang.calls == kKilled);
}

TEST_CASE("a peer's failure without an explanation is a loss, and names the machines") {
  Gang gang;
  gang.gangs.note_peer_failure(gang.id, 2, "rank 2 lost rank 1");
  gang.pass(4'999);
  CHECK(gang.calls.empty());
  gang.pass(1);
  CHECK(gang.calls == kKilled);
  gang.fail(0, core::Cause::exit_code);
  CHECK(gang.failure().rank == 2);
  CHECK(gang.failure().failure.cause == core::Cause::lost);
  CHECK(gang.failure().failure.message ==
        "rank 2 lost rank 1\nrank 0 is on this machine, rank 1 on `a`, rank 2 on `b`");
}

TEST_CASE("after a timeout all ranks are asked for their positions") {
  Gang gang;
  gang.fail(0, core::Cause::timeout, true);
  CHECK(gang.calls == Calls{"own interrupt", "a interrupt", "b interrupt"});
  gang.gangs.note_rank_progress(gang.id, 0, inside(7));
  gang.gangs.note_rank_progress(gang.id, 2, inside(7));
  gang.gangs.note_rank_progress(gang.id, 1, "not a position");
  CHECK(gang.events.empty());
  gang.gangs.note_rank_progress(gang.id, 1, inside(6));
  CHECK(gang.failure().failure.message ==
        "the ranks wait for each other: rank 1 waits in barrier #6, ranks 0 and 2 wait in barrier "
        "#7. rank 0 failed");
}

TEST_CASE("a timeout names the rank if the others do not report their positions") {
  Gang gang;
  gang.fail(1, core::Cause::timeout, true);
  gang.pass(2'000);
  gang.fail(0, core::Cause::exit_code);
  CHECK(gang.failure().failure.message == "rank 1 of 3: rank 1 failed");
}

TEST_CASE("a rank that stops by itself ends the attempt, and one that was asked to stop does not") {
  Gang gang;
  SECTION("by itself") {
    gang.gangs.note_rank_stopped(gang.id, 1);
    REQUIRE(gang.events.size() == 1);
    CHECK(std::get<core::AttemptStopped>(gang.events[0]).id == gang.id);
  }
  SECTION("its run is being stopped") { gang.state.runs["r"].stopping = true; }
  SECTION("a worker of the gang drains") { gang.state.workers[2].is_draining = true; }
  SECTION("the gang has failed") {
    gang.fail(2, core::Cause::exit_code);
    gang.gangs.note_rank_stopped(gang.id, 1);
    CHECK(gang.events.empty());
  }
  size_t before = gang.events.size();
  if (before == 0) gang.gangs.note_rank_stopped(gang.id, 1);
  CHECK(gang.events.size() == before);
}

TEST_CASE("a worker that rejoins is notified that its gang is about to end") {
  Gang gang;
  gang.fail(2, core::Cause::exit_code);
  gang.calls.clear();
  gang.gangs.kill_finalizing_on(1);
  CHECK(gang.calls == Calls{"a kill after flush"});
  CHECK(gang.gangs.gangs_on(1) == std::vector<core::AttemptId>{gang.id});
  CHECK(first_rank_on(gang.state, gang.id, 2) == 2);
}

TEST_CASE("a gang that succeeded awaits the ends of its other ranks") {
  Gang gang;
  CHECK_FALSE(gang.gangs.has_rank_ended(gang.id, 1));
  gang.gangs.note_rank_end(gang.id, 1);  // before rank 0's
  CHECK(gang.gangs.has_rank_ended(gang.id, 1));
  CHECK_FALSE(gang.gangs.has_rank_ended(gang.id, 2));
  gang.gangs.expect_rank_ends(gang.id);
  CHECK(gang.gangs.has_unreported_ranks());
  gang.gangs.note_rank_end(gang.id, 2);
  CHECK_FALSE(gang.gangs.has_unreported_ranks());
}

TEST_CASE("what all ranks that have ended used counts") {
  auto used = [](int64_t figure) {
    core::AttemptUsage usage;
    usage.cpu_us = usage.peak_memory = usage.read_bytes = usage.stage_us = figure;
    usage.gpu_used_us = usage.commit_us = figure;
    usage.gpu_measured_us = 2 * figure;
    return usage;
  };
  auto sum_of = [&](int64_t sum, int64_t most, int64_t of_first) {
    core::AttemptUsage usage = used(sum);
    usage.peak_memory = usage.stage_us = most;
    usage.commit_us = of_first;
    return usage;
  };
  Gang gang;
  gang.gangs.note_rank_end(gang.id, 1, used(10));
  gang.gangs.note_rank_end(gang.id, 1, used(10));  // it was reported twice
  core::AttemptUsage success = used(300);
  gang.gangs.add_use_of_ranks(gang.id, success);
  CHECK(success == sum_of(310, 300, 300));
  core::AttemptUsage small = used(4);
  gang.gangs.add_use_of_ranks(gang.id, small);
  CHECK(small == sum_of(14, 10, 4));
  core::AttemptUsage unknown;
  gang.gangs.add_use_of_ranks(gang.id, unknown);
  CHECK(unknown == sum_of(10, 10, -1));
  gang.gangs.note_rank_end(gang.id, 2, used(20));
  gang.fail(1, core::Cause::exit_code);
  core::AttemptStopped stopped{gang.id};
  stopped.usage = used(300);
  core::Event end = stopped;
  CHECK(gang.gangs.replace_by_first_failure(end));
  CHECK(std::get<core::AttemptFailed>(end).usage == sum_of(330, 300, 300));
  core::AttemptUsage other = used(300);
  gang.gangs.add_use_of_ranks({"r", 0, 2, gang.id.epoch}, other);
  CHECK(other == used(300));
}

TEST_CASE("ranks that are ready wait for the last one") {
  Gang gang;
  core::AttemptUsage usage;
  gang.gangs.note_rank_address(gang.id, 1, "y");
  gang.pass(3000);
  gang.gangs.note_rank_address(gang.id, 0, "x");
  gang.gangs.note_rank_address(gang.id, 1, "y");  // again
  SECTION("until it is ready") {
    gang.pass(500);
    gang.gangs.note_rank_address(gang.id, 2, "z");
    gang.pass(7000);
    gang.gangs.add_use_of_ranks(gang.id, usage);
    CHECK(usage.connect_wait_us == 4'000'000);
  }
  SECTION("or until the attempt ends") {
    gang.pass(1000);
    gang.fail(2, core::Cause::exit_code);
    core::Event end = core::AttemptStopped{gang.id};
    CHECK(gang.gangs.replace_by_first_failure(end));
    CHECK(std::get<core::AttemptFailed>(end).usage.connect_wait_us == 5'000'000);
  }
  SECTION("which is not known if it began with a former engine") {
    gang.state.epoch = 2;
    gang.gangs.note_rank_address(gang.id, 2, "z");
    gang.gangs.add_use_of_ranks(gang.id, usage);
    CHECK(usage.connect_wait_us == -1);
  }
}

TEST_CASE("a gang leaves no data when its run leaves or its attempt has ended") {
  Gang gang;
  gang.fail(1, core::Cause::exit_code);
  SECTION("the run leaves") { gang.gangs.forget("r"); }
  SECTION("the attempt has ended") { gang.unit().attempts = 2; }
  gang.pass(60'000);
  CHECK(gang.events.empty());
}
