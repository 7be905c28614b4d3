// Events arrive on the calling thread; signals have their own thread.
#include "engine/cli/display/watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "engine/cli/display/background.hpp"
#include "engine/cli/display/result_text.hpp"
#include "engine/cli/display/screen.hpp"
#include "flow/process.hpp"

namespace flow::cli {

namespace {

/// Suffix for commands that only a machine with the state can run.
std::string on_head_text(const VerbContext& context) {
  return context.head.empty() ? "" : " on the head's machine";
}

/// The failures that `screen` (null: none) did not print when they happened.
void print_failures(const RunInfo& run, const VerbContext& context, const Screen* screen) {
  size_t shown = 0, failed = 0;
  for (const TaskInfo& task : run.tasks) {
    if (task.status != "failed" || task.ignored) continue;
    failed++;
    std::string name = tagged_name(task.name, task.tag);
    bool is_explained = screen != nullptr && screen->is_explained(name);
    if (!is_explained && shown == kFailuresShownMax) continue;
    shown++;
    if (is_explained) continue;
    std::string attempts = task.attempts > 1 ? " after " + plural(task.attempts, "attempt") : "";
    print_error("`" + name + "` failed" + attempts + ": " + task.error);
  }
  if (failed > shown) {
    print_error(plural(failed - shown, "more task") + " failed: `flow show " + run.id + "`" +
                on_head_text(context) + " lists them.");
  }
}

/// "`qc[2]`, `qc[7]` and 3 more": the tasks that are `chosen`.
template <class Chosen>
std::string names_of(const RunInfo& run, Chosen chosen) {
  constexpr size_t kNamesShownMax = 20;
  std::string names;
  size_t count = 0;
  for (const TaskInfo& task : run.tasks) {
    if (!chosen(task) || ++count > kNamesShownMax) continue;
    names += (names.empty() ? "`" : ", `") + tagged_name(task.name, task.tag) + "`";
  }
  if (count > kNamesShownMax) names += " and " + std::to_string(count - kNamesShownMax) + " more";
  return names;
}

/// The tasks whose failures were ignored.
std::string ignored_text(const RunInfo& run) {
  return names_of(run, [](const TaskInfo& task) { return task.ignored; });
}

/// The tasks of a successful run that were skipped because a failure was ignored. Tasks in a branch
/// that was not taken have no error.
std::string skipped_text(const RunInfo& run) {
  return names_of(
      run, [](const TaskInfo& task) { return task.status == "skipped" && !task.error.empty(); });
}

/// "ignored: `qc[2]`; skipped because of it: `merge`; `flow retry RUN` runs it again"
std::string ignored_line(const RunInfo& run, const VerbContext& context) {
  const char* them = run.counts.ignored == 1 ? "it" : "them";
  std::string skipped = run.status == "succeeded" ? skipped_text(run) : "";
  if (!skipped.empty()) skipped = std::string("; skipped because of ") + them + ": " + skipped;
  return "ignored: " + ignored_text(run) + skipped + "; `flow retry " + run.id +
         context.head_option() + "` runs " + them + " again";
}

/// How an edit takes effect without repeating the rest.
std::string edit_hint(const std::string& resume) {
  return "If you edit the script or an input, `" + resume +
         " --code new` or a new `flow run` uses the edited version; finished tasks that the edit "
         "does not affect are not repeated.\n";
}

int code_of(const std::string& status) {
  if (status == "succeeded") return kDone;
  if (status == "failed" || status == "cancelled") return kTaskFailed;
  return kInterrupted;
}

/// Whether the value consists only of nulls, which stand for failed parts.
bool is_only_null(const Value& value) {
  if (value.is_nil() || value.kind() == Value::Kind::null) return true;
  if (value.kind() != Value::Kind::table) return false;
  const Value::Table& table = value.as_table();
  return std::ranges::all_of(table.list, is_only_null) &&
         std::ranges::all_of(table.fields,
                             [](const auto& field) { return is_only_null(field.second); });
}

/// The result in a few lines, and where the rest of it is.
std::vector<std::string> result_lines(const RunInfo& run, const VerbContext& context) {
  // Programs that read the line from a file or a pipe get the whole of a longer one.
  constexpr size_t kPipeColumnsMax = 2000;
  bool is_terminal = isatty(STDOUT_FILENO) == 1;
  ResultText text = result_text(run.result, is_terminal ? output_columns() : kPipeColumnsMax);
  if (text.is_cut)
    text.lines.push_back("  `flow get " + run.id + "`" + on_head_text(context) +
                         " prints all of it, `flow show " + run.id + " --json` with the tasks");
  return text.lines;
}

Color color_of(const std::string& status) {
  if (status == "succeeded") return Color::green;
  return status == "failed" ? Color::red : Color::yellow;
}

void print_end(const Engine& engine, Run& run, const RunInfo& summary, int64_t elapsed_ms,
               const VerbContext& context, const Screen& screen, bool shown,
               bool is_strict_failure) {
  const bool quiet = context.quiet;
  bool has_failures = summary.status == "failed" || summary.counts.failed > 0;
  RunInfo whole = has_failures ? run.info() : summary;
  if (summary.status == "failed") print_failures(whole, context, quiet ? nullptr : &screen);
  if (summary.status == "failed" && !quiet) {
    std::string resume = "flow resume " + summary.id + context.head_option();
    std::fprintf(
        stderr, "\n`flow logs %s TASK`%s shows a task's log; `%s` runs the failed tasks again.\n%s",
        summary.id.c_str(), on_head_text(context).c_str(), resume.c_str(),
        edit_hint(resume).c_str());
  }
  if (summary.status == "cancelled") print_error("the run " + summary.id + " was cancelled.");
  if (code_of(summary.status) == kInterrupted) {
    bool is_spent = summary.budget && summary.budget->is_spent;
    std::string again = is_spent ? " --budget \"N " + summary.budget->currency + "\"" : "";
    std::string why = is_spent ? ", with " + summary.budget->text() + " of its budget used" : "";
    print_error("the run " + summary.id + " is " + summary.status + why + ": `flow resume " +
                summary.id + context.head_option() + again + "` continues it.");
  }
  // Otherwise it is on stdout, below the result. With --strict the failures are an error.
  if (quiet && whole.counts.ignored > 0 && !is_strict_failure)
    print_warning(ignored_line(whole, context));
  if (quiet) return;
  bool is_lost = summary.status == "failed" && is_only_null(summary.result);
  if (!summary.result.is_nil() && !shown && !is_lost)
    for (const std::string& line : result_lines(summary, context)) print_line(line);
  if (summary.counts.ignored > 0) print_line(ignored_line(whole, context));
  if (summary.counts.ignored > 0 && summary.status == "succeeded") {
    flush_output();
    std::fputs(edit_hint("flow resume " + summary.id + context.head_option()).c_str(), stderr);
  }
  print_painted(summary.status, color_of(summary.status));
  print_line(": " + summary_line(whole, elapsed_ms, engine.state_bytes()));
}

void copy_out(Engine& engine, const VerbContext& context, const std::string& run,
              const std::string& out) {
  for (const std::string& path : engine.get(run, "", out)) {
    if (!context.json && !context.quiet) print_line("wrote " + path);
  }
}

}  // namespace

namespace {

constexpr auto kCreationMax = std::chrono::seconds(10);

[[noreturn]] void exit_before_creation() {
  std::fputs(
      "error: stopped while the run was being created. If `flow ls` shows it, `flow resume` "
      "continues it.\n",
      stderr);
  _exit(kTaskFailed);
}

}  // namespace

Interrupts::Interrupts()
    : began_ms_(steady_ms()), signals_([this](int count) { on_signal(count); }) {}

void Interrupts::attach(Run run, int64_t grace_ms, std::function<void(const std::string&)> note) {
  std::lock_guard lock(mutex_);
  run_ = std::move(run);
  grace_ms_ = grace_ms;
  note_ = std::move(note);
  *is_attached_ = true;
  if (early_ > 0) stop();
}

int64_t Interrupts::elapsed_ms() const { return steady_ms() - began_ms_; }

void Interrupts::begin_copy() {
  std::lock_guard lock(mutex_);
  is_copying_ = true;
}

void Interrupts::detach(int code) {
  std::lock_guard lock(mutex_);
  run_.reset();
  end_code_ = code;
}

void Interrupts::on_signal(int) {
  std::lock_guard lock(mutex_);
  if (end_code_) _exit(*end_code_);
  if (is_copying_) {
    if (std::exchange(copy_stopped_, true)) _exit(kInterrupted);
    return stop_copies();
  }
  if (!run_) {
    // It is not known yet whether the run is committed. It stops after the commit and can be
    // resumed.
    if (++early_ > 1) exit_before_creation();
    std::fputs(
        "stopping as soon as the run is created, so that it can be resumed; press again to leave "
        "now\n",
        stderr);
    begin_thread([is_attached = is_attached_] {
      std::this_thread::sleep_for(kCreationMax);
      if (!*is_attached) exit_before_creation();
    }).detach();
    return;
  }
  stop();
}

void Interrupts::stop() {
  stop_requests_++;
  if (stop_requests_ > 1) return run_->interrupt(true);
  if (serving_) return run_->end_serving();
  note_("stopping: running tasks have " + format_duration(grace_ms_) +
        " to save their state; press again to kill them now");
  run_->interrupt(false);
}

namespace {

/// The exit code of a version that was stopped. One that had not taken over the traffic of its name
/// did not do what it was started for, and says so.
int code_of_version(const RunInfo& run, int code) {
  if (code != kDone || run.rollover.phase != "stopped") return code;
  print_error("`" + run.name + "` is not served by the run " + run.id + ": " + run.rollover.reason +
              ".");
  return kTaskFailed;
}

}  // namespace

int watch(Engine& engine, Run run, const VerbContext& context, const WatchOptions& options,
          Interrupts& interrupts) {
  const bool leaves = options.leaves && !is_background();
  RunInfo first = run.summary();
  std::string title = (first.name.empty() ? first.pipeline : first.name) + "  " + first.id;
  ScreenStyle style = context.quiet || leaves ? ScreenStyle::silent
                      : context.json          ? ScreenStyle::json
                      : is_terminal()         ? ScreenStyle::live
                                              : ScreenStyle::plain;
  bool talks = style == ScreenStyle::plain || style == ScreenStyle::live;
  if (style == ScreenStyle::live && !has_unicode_locale()) use_ascii();
  bool shown = false;  // whether the result was shown
  if (talks) {
    print_line("run " + first.id + " of " + first.pipeline);
  }
  auto screen = std::make_shared<Screen>(run, style, title);
  interrupts.attach(run, options.grace_ms,
                    [screen](const std::string& line) { screen->note(line); });
  bool is_waited_for = leaves || is_background();
  auto becomes_ready = [&](const RunInfo& now) {
    bool is_now = is_waited_for && is_ready(now);
    if (is_now) report_services(now);
    is_waited_for = is_waited_for && !is_now;
    return is_now;
  };
  report_start(first);
  bool is_left = becomes_ready(first) && leaves;
  while (std::optional<Event> event = is_left ? std::nullopt : run.next_event()) {
    bool is_runs = event->type == "run";
    // Before it is shown, because a user who sees that it serves may end it.
    if (is_runs) interrupts.set_serving(event->status == "serving");
    screen->show(*event);
    // Only services are left: the result is final and can be printed.
    if (is_runs && event->status == "serving" && talks && !shown) {
      for (const std::string& line : result_lines(run.summary(), context)) screen->line(line);
      shown = true;
    }
    if (!is_runs) interrupts.set_serving(screen->serving());
    bool may_be_ready = is_waited_for && (is_runs || event->type == "serving");
    is_left = may_be_ready && becomes_ready(run.summary()) && leaves;
  }
  screen->close();
  if (is_left) {
    print_left(context, run.summary());
    flush_output();
    interrupts.detach(kDone);
    return kDone;
  }
  try {
    run.wait();
  } catch (const RunFailed&) {  // shown below, task by task
  } catch (const Failed& failed) {
    if (failed.error.kind != ErrorKind::interrupted) throw;
  }

  RunInfo summary = run.summary();
  int code = code_of(summary.status);
  if (code == kDone && !options.out.empty()) {
    interrupts.begin_copy();
    copy_out(engine, context, summary.id, options.out);
    interrupts.detach(code);
  }
  bool is_strict_failure = code == kDone && options.strict && summary.counts.ignored > 0;
  if (is_strict_failure) code = kTaskFailed;
  if (context.json) {
    RunInfo whole = run.info();
    if (whole.status == "failed") print_failures(whole, context, nullptr);
    if (whole.counts.ignored > 0 && !is_strict_failure) print_warning(ignored_line(whole, context));
    print_line(whole.json());
  } else {
    print_end(engine, run, summary, interrupts.elapsed_ms(), context, *screen, shown,
              is_strict_failure);
  }
  if (is_strict_failure) {
    print_error(plural(summary.counts.ignored, "failure") + " ignored (" +
                ignored_text(run.info()) +
                "), and with --strict the exit code is 1. The run itself succeeded: `flow why " +
                summary.id + " TASK`" + on_head_text(context) + " says why a task failed.");
  }
  flush_output();
  code = code_of_version(summary, code);

  interrupts.detach(code);
  if (uint32_t others = engine.client_runs()) {
    std::fprintf(stderr,
                 "still running %s of other flow commands on this state; Ctrl-C hands them over to "
                 "those commands\n",
                 plural(others, "run").c_str());
    engine.wait_for_clients();
  }
  return code;
}

}  // namespace flow::cli
