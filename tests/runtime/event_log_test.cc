// The lines of records, with the pure core only.
#include "engine/runtime/event_log.hpp"

#include <catch2/catch.hpp>

#include "engine/base/log.hpp"
#include "engine/log/log_output.hpp"

using namespace flow;

namespace {

/// A state with one run of one task `t`, and a log whose lines are kept.
class Story {
 public:
  explicit Story(LogLevel level = LogLevel::debug) {
    LogOptions options;
    options.level = level;
    options.sink = [this](const EngineLogLine& line) { written.push_back(text_of(line)); };
    auto opened = log::open_log(options, "");
    REQUIRE(opened.ok());
    log_ = std::move(*opened);
    auto plan = std::make_shared<Plan>();
    TaskDef def;
    def.name = "t";
    plan->defs.push_back(def);
    TaskNode node;
    node.name = "t";
    plan->nodes.push_back(node);
    core::EngineStarted started;
    started.epoch = 1;
    started.cpus_milli = 1000;
    started.memory_bytes = 1 << 30;
    started.leads_workers = true;
    add(started);
    core::RunSubmitted submitted;
    submitted.run = "r";
    submitted.name = "first";
    submitted.plan = plan;
    add(submitted);
  }
  /// Applies the event and writes its lines, as a commit does.
  void add(core::Event event) {
    core::Record record{state.sequence + 1, static_cast<core::Time>(state.sequence), event};
    REQUIRE(core::admit(state, record.event));
    RecordLog record_log(state, record);
    std::vector<core::Command> commands;
    EngineLogLines lines;
    core::apply(state, record, commands);
    record_log.add_lines(state, record, commands, lines);
    write_lines(lines);
  }
  void join(const std::string& name) {
    core::WorkerJoined joined;
    joined.worker.name = name;
    joined.worker.cpus_milli = 1000;
    joined.worker.memory_bytes = 1 << 30;
    add(joined);
  }
  core::AttemptId assign(core::WorkerId worker) {
    core::Assigned assigned;
    assigned.id = core::next_attempt(state, state.runs.at("r"), 0);
    assigned.worker = worker;
    add(assigned);
    return assigned.id;
  }
  void resolve() {
    core::InputsResolved resolved;
    resolved.run = "r";
    add(resolved);
  }
  std::vector<std::string> take() { return std::exchange(written, {}); }

  core::State state;
  std::vector<std::string> written;

 private:
  static std::string text_of(const EngineLogLine& line) {
    std::string text = std::string(level_name(line.level)) + ": " + line.message;
    if (!line.task.empty()) text += " " + line.run + "/" + line.task;
    if (line.attempt > 0) text += "@" + std::to_string(line.attempt);
    if (!line.worker.empty()) text += " on " + line.worker;
    if (!line.detail.empty()) text += " (" + line.detail + ")";
    return text;
  }
  std::shared_ptr<void> log_;
};

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("an attempt that is requeued, lost and retried leaves one line each") {
  Story story;
  CHECK(story.take() ==
        Texts{"info: engine started (epoch 1, 1 CPU slots)", "info: run submitted (first)"});
  story.join("w");
  story.resolve();
  CHECK(story.take() == Texts{"info: worker joined on w (1 CPU slots, 0 GPUs)"});
  core::AttemptId first = story.assign(1);
  story.add(core::AttemptRequeued{first});
  story.assign(1);
  CHECK(story.take() == Texts{"debug: attempt assigned r/t@1 on w",
                              "info: attempt requeued r/t@1 on w",
                              "debug: attempt assigned r/t@1 on w"});
  story.add(core::WorkerDisconnected{1, "cut"});
  story.add(core::WorkerLost{1, "cut", true});
  CHECK(story.take() == Texts{"warning: worker disconnected on w (cut)",
                              "warning: worker lost on w (cut)",
                              "info: attempt lost, task is retried r/t@1 on w (lost: the worker "
                              "`w`, which ran it, was lost: cut)"});
  constexpr const char* kWhy = " (the attempt is not the current one, or has reported this)";
  core::AttemptFailed late{first, {}, 0, false};
  log_rejected_report(story.state, late, "");
  CHECK(story.take() == Texts{std::string("info: report rejected r/t@1 on w") + kWhy});
  story.join("v");
  story.add(core::TimerFired{"r", 0, story.state.runs.at("r").units[0].timer_serial});
  story.assign(2);
  story.take();
  log_rejected_report(story.state, late, "");
  log_rejected_report(story.state, late, "u");  // its worker says so itself
  CHECK(story.take() == Texts{std::string("info: report rejected r/t@1 on w") + kWhy,
                              std::string("info: report rejected r/t@1 on u") + kWhy});
  log_rejected_report(story.state, core::CancelRequested{"r"}, "");
  CHECK(story.take().empty());
}

TEST_CASE("each key of a service is redacted, and no other variable") {
  Plan plan;
  TaskDef& def = plan.defs.emplace_back();
  def.kind = TaskKind::service;
  def.service.keys.variable = "API_KEYS";
  hide_secrets(plan, {{"OTHER", "public-text"}, {"API_KEYS", "key-of-ann,key-of-bob"}});
  Story story(LogLevel::info);
  story.join("w");
  story.resolve();
  core::AttemptFailed failed;
  failed.id = story.assign(1);
  failed.failure = {core::Cause::user_error, "public-text: key-of-bob and key-of-ann", "", 0};
  story.take();
  story.add(failed);
  CHECK(story.take().front() ==
        "warning: task failed r/t@1 on w (user_error: public-text: *** and ***)");
}

TEST_CASE("a failure's text is redacted before it is cut") {
  Story story(LogLevel::info);
  log::hide({"head-s3cret"});
  story.join("w");
  story.resolve();
  core::AttemptFailed failed;
  failed.id = story.assign(1);
  std::string text(495, 'x');
  failed.failure = {core::Cause::user_error, text + "head-s3cret", "", 0};
  story.take();
  story.add(failed);
  CHECK(story.take().front() == "warning: task failed r/t@1 on w (user_error: " + text + "***)");
}

TEST_CASE("a task whose inputs fail has no attempt and no worker in its line") {
  Story story(LogLevel::info);
  story.take();
  core::InputsFailed failed;
  failed.run = "r";
  failed.failure = {core::Cause::user_error, "no such field", "", 0};
  story.add(failed);
  CHECK(story.take().front() == "warning: task failed r/t (user_error: no such field)");
}

TEST_CASE("what the engine's own process runs is on `local`") {
  Story story;
  story.resolve();
  story.take();
  story.assign(0);
  CHECK(story.take() == Texts{"debug: attempt assigned r/t@1 on local"});
}

TEST_CASE("a worker that reconnects rejoins, and a drained one leaves") {
  Story story;
  story.join("w");
  story.add(core::WorkerDisconnected{1, "cut"});
  story.take();
  story.join("w");
  CHECK(story.take() == Texts{"info: worker rejoined on w (1 CPU slots, 0 GPUs)"});
  story.add(core::WorkerDraining{1, "asked"});
  story.add(core::WorkerLost{1, "gone", false});
  CHECK(story.take() ==
        Texts{"info: worker draining on w (asked)", "info: worker left on w (gone)"});
}

TEST_CASE("a failure without another attempt is a warning, and the run ends") {
  Story story(LogLevel::info);
  story.join("w");
  story.resolve();
  core::AttemptFailed failed;
  failed.id = story.assign(1);
  failed.failure = {core::Cause::user_error, "no luck\nat all", "", 0};
  story.take();
  story.add(failed);
  Texts lines = story.take();
  REQUIRE(!lines.empty());
  CHECK(lines.front() == "warning: task failed r/t@1 on w (user_error: no luck)");
}

TEST_CASE("no line is made while the log is off") {
  Story story(LogLevel::off);
  story.join("w");
  EngineLogLines lines;
  add_snapshot_line(1, 2, lines);
  CHECK(lines.empty());
  CHECK(story.written.empty());
}
