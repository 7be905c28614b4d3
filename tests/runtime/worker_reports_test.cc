// How a turn processes reports.
#include "engine/runtime/worker_reports.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

core::Time wall_ms = 0, elapsed_ms = 0;  // of the test's clocks

struct Reports {
  core::State state;
  StateClock clock{{[] { return wall_ms; }, [] { return elapsed_ms; }}};
  WorkerRegistry workers;
  StopCause stop;
  std::vector<core::Event> recorded;
  std::vector<double> published;
  GangSupervisor gangs{state, clock, workers,
                       [this](core::Event event) { recorded.push_back(std::move(event)); },
                       [](const core::RunId&) { return int64_t{0}; }};
  WorkerReports reports{gangs, clock, workers, stop, [this](const Report& report) {
                          published.push_back(report.as<ProgressReported>()->fraction);
                        }};
  const core::AttemptId id{"r", 3, 1, core::fencing_token(1, 0)};

  Reports() {
    wall_ms = 5'000;
    elapsed_ms = 0;
    clock.resume(1'000'000, 5'000, false);
  }
  template <typename Body>
  TurnInput input_of(Body body, uint32_t rank = 0, core::Time at = 0) const {
    return reports.input_of({id, rank, at, std::move(body)}, "w");
  }
  void run(const TurnInput& input) {
    REQUIRE(std::holds_alternative<StateCallback>(input.what));
    Batch batch;
    std::get<StateCallback>(input.what).run(batch, state);
  }
};

/// A worker that is connected; it counts the saves that are rejected.
class SavingWorker final : public WorkerConnection {
 public:
  int rejected = 0;
  void ack_saved(const core::AttemptId&, const std::string&, bool ok) override { rejected += !ok; }
  void stage(std::vector<AttemptOrder>, uint64_t) override {}
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_logs(size_t) override {}
  void accept_join(uint64_t) override {}
  void ack_reports(uint64_t) override {}
  void disconnect(const std::string&) override {}
};

template <typename Kind>
const Kind& event_of(const TurnInput& input) {
  REQUIRE(std::holds_alternative<PostedEvent>(input.what));
  const core::Event& event = std::get<PostedEvent>(input.what).event;
  REQUIRE(std::holds_alternative<Kind>(event));
  return std::get<Kind>(event);
}

TaskFinished ended(TaskFinished::Outcome outcome) {
  TaskFinished finished;
  finished.outcome = outcome;
  return finished;
}

}  // namespace

TEST_CASE("log lines keep their stream, time and cost") {
  Reports reports;
  TurnInput input = reports.input_of(LogLines{2, "line", 70}, 1, 1234);
  REQUIRE(std::holds_alternative<AttemptLog>(input.what));
  const auto& log = std::get<AttemptLog>(input.what);
  CHECK(log.attempt == reports.id);
  CHECK(log.rank == 1);
  CHECK(log.stream == 2);
  CHECK(log.at == 1234);
  CHECK(log.text == "line");
  CHECK(log.cost == 70);
}

TEST_CASE("a result is posted with its blobs, at the time of the state's clock") {
  Reports reports;
  TaskFinished finished = ended(TaskFinished::Outcome::succeeded);
  finished.value = "value";
  finished.blobs = {{sha256("blob"), "blob"}};
  finished.duration_us = 7;
  TurnInput input = reports.input_of(finished, 0, 4'000);  // one second ago
  const auto& event = event_of<core::AttemptSucceeded>(input);
  CHECK(event.id == reports.id);
  CHECK(event.result == sha256("value"));
  CHECK(event.duration_us == 7);
  CHECK(event.fragment == nullptr);
  const auto& posted = std::get<PostedEvent>(input.what);
  CHECK(posted.blobs == NamedBlobs{{sha256("blob"), "blob"}, {sha256("value"), "value"}});
  CHECK(posted.attempt == reports.id);
  CHECK(posted.reported_at == 999'000);
}

TEST_CASE("a damaged list of calls is an internal failure") {
  Reports reports;
  TaskFinished finished = ended(TaskFinished::Outcome::succeeded);
  finished.fragment = "damaged";
  TurnInput input = reports.input_of(finished);
  CHECK(event_of<core::AttemptFailed>(input).failure.cause == core::Cause::internal);
}

TEST_CASE("a failure that needs no other rank's report is posted, others go to the supervisor") {
  Reports reports;
  TaskFinished finished = ended(TaskFinished::Outcome::failed);
  finished.failure = {core::Cause::exit_code, "it exited", "", 3};
  TurnInput exited = reports.input_of(finished);
  CHECK(event_of<core::AttemptFailed>(exited).failure.code == 3);
  finished.failure.cause = core::Cause::signal;
  reports.run(reports.input_of(finished));
  finished.failure.cause = core::Cause::timeout;
  reports.run(reports.input_of(finished));
  finished.of_gang = true;  // of a collective
  TurnInput collective = reports.input_of(finished);
  CHECK(event_of<core::AttemptFailed>(collective).failure.cause == core::Cause::timeout);
  CHECK(reports.recorded.size() == 2);  // an attempt with one rank fails at once
}

TEST_CASE("every end of an attempt has what it used") {
  Reports reports;
  const core::AttemptUsage used{1, 2, 3, 4, 5, 6};
  auto input = [&](TaskFinished::Outcome outcome, core::Cause cause = core::Cause::none) {
    TaskFinished finished = ended(outcome);
    finished.failure.cause = cause;
    finished.usage = used;
    finished.received_us = 77;
    return reports.input_of(finished);
  };
  TurnInput succeeded = input(TaskFinished::Outcome::succeeded);
  CHECK(event_of<core::AttemptSucceeded>(succeeded).usage == used);
  CHECK(std::get<PostedEvent>(succeeded.what).received_us == 77);
  TurnInput failed = input(TaskFinished::Outcome::failed, core::Cause::exit_code);
  CHECK(event_of<core::AttemptFailed>(failed).usage == used);
  CHECK(event_of<core::AttemptWaiting>(input(TaskFinished::Outcome::waiting)).usage == used);
  CHECK(event_of<core::AttemptStopped>(input(TaskFinished::Outcome::stopped)).usage == used);
  reports.run(input(TaskFinished::Outcome::failed, core::Cause::signal));  // by the supervisor
  REQUIRE(reports.recorded.size() == 1);
  const auto& killed = std::get<core::AttemptFailed>(reports.recorded[0]);
  CHECK(killed.usage.peak_memory == 1);
  CHECK(killed.usage.commit_us > 6);  // since its report was received
}

TEST_CASE("the deadline of a wait counts from its report") {
  Reports reports;
  TaskFinished finished = ended(TaskFinished::Outcome::waiting);
  finished.signal = "go";
  finished.wait_name = "first";
  finished.wait_timeout_ms = 3'000;
  TurnInput late = reports.input_of(finished, 0, 4'000);
  CHECK(event_of<core::AttemptWaiting>(late).deadline == 1'002'000);
  CHECK(event_of<core::AttemptWaiting>(late).signal == "go");
  TurnInput ahead = reports.input_of(finished, 0, 9'000);  // by a clock that is ahead
  CHECK(event_of<core::AttemptWaiting>(ahead).deadline == 1'003'000);
  finished.wait_timeout_ms = -1;
  TurnInput forever = reports.input_of(finished);
  CHECK(event_of<core::AttemptWaiting>(forever).deadline == 0);
}

TEST_CASE("the end of another rank is not an event") {
  Reports reports;
  reports.run(reports.input_of(ended(TaskFinished::Outcome::succeeded), 1));
  CHECK(reports.recorded.empty());
}

TEST_CASE("a step and a checkpoint carry the digest of their value") {
  Reports reports;
  TurnInput step = reports.input_of(StepReported{"s", "bytes", {}});
  REQUIRE(std::holds_alternative<SavedProgress>(step.what));
  CHECK(std::get<SavedProgress>(step.what).step == "s");
  CHECK(std::get<SavedProgress>(step.what).value == "bytes");
  const auto& saved = std::get<core::StepSaved>(std::get<SavedProgress>(step.what).event);
  CHECK(saved.name == "s");
  TurnInput checkpoint = reports.input_of(CheckpointReported{"row", {}});
  REQUIRE(std::holds_alternative<SavedProgress>(checkpoint.what));
  CHECK(std::get<SavedProgress>(checkpoint.what).step == "");
  CHECK(std::holds_alternative<core::CheckpointSaved>(
      std::get<SavedProgress>(checkpoint.what).event));
}

TEST_CASE("progress is published in the turn") {
  Reports reports;
  reports.run(reports.input_of(ProgressReported{0.5, ""}));
  CHECK(reports.published == std::vector<double>{0.5});
}

TEST_CASE("a row is committed after the report, and both outcomes are known") {
  Reports reports;
  std::vector<std::string> heard;
  auto inputs = reports.reports.inputs_of(
      {reports.id, 0, 0, TaskRequeued{}}, "w", {"key", "value"},
      [&](bool admitted) { heard.push_back(admitted ? "admitted" : "rejected"); },
      [&] { heard.push_back("durable"); });
  REQUIRE(inputs.size() == 2);
  CHECK(event_of<core::AttemptRequeued>(inputs[0]).id == reports.id);
  reports.run(inputs[1]);
  inputs[0].outcome(false);
  inputs[1].outcome(true);
  inputs[1].outcome(false);  // the commit failed
  CHECK(heard == std::vector<std::string>{"rejected", "durable"});
}

TEST_CASE("a save is not rejected because the engine stops") {
  Reports reports;
  auto worker = std::make_shared<SavingWorker>();
  reports.workers.attach("w", worker, "");
  std::vector<bool> decisions;
  auto outcome = [&] {
    return reports.reports
        .inputs_of(
            {reports.id, 0, 0, StepReported{"step", "value", {}}}, "w", {"row", "1"},
            [&](bool admitted) { decisions.push_back(admitted); }, [] {})
        .front()
        .outcome;
  };
  outcome()(false);
  CHECK(worker->rejected == 1);
  CHECK(decisions == std::vector{false});
  reports.stop.set(environment_error("the disk failed"));
  outcome()(false);
  CHECK(worker->rejected == 1);
  CHECK(decisions == std::vector{false});
}
