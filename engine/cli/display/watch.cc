// Events arrive on the calling thread; a ticker thread draws the terminal's frame; signals have
// their own thread.
#include "engine/cli/display/watch.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/cli/display/display.hpp"
#include "flow/process.hpp"

namespace flow::cli {

namespace {

constexpr auto kTick =
    std::chrono::milliseconds(100);  // interval of frames, or of flushes to a pipe
constexpr size_t kErrorsShownMax = 10;

int64_t steady_ms() {
  timespec now{};
  // This clock also counts suspended time, as the state's clock does.
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

void terminal_size(size_t& width, size_t& height) {
  winsize size{};
  bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  width = known ? size.ws_col : 80;
  height = known ? size.ws_row : 24;
}

enum class Style { json, plain, live, silent };

/// Each line of what a task wrote, after the task's name: "align[s3] | 12 reads".
std::string log_lines(const Event& event) {
  std::string label = tagged_name(event.task, event.tag);
  if (event.attempt > 1) label += "@" + std::to_string(event.attempt);
  if (event.rank > 0) label += " rank " + std::to_string(event.rank);
  std::string_view text = event.text;
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::string lines;
  while (true) {
    size_t end = std::min(text.find('\n'), text.size());
    lines += label + " | " + std::string(text.substr(0, end)) + "\n";
    if (end == text.size()) return lines;
    text.remove_prefix(end + 1);
  }
}

/// Owns stdout while the run is active.
class Screen {
 public:
  Screen(Run run, Style style, std::string title)
      : run_(std::move(run)),
        style_(style),
        view_(std::move(title)),
        ticker_(begin_thread([this] { tick(); })) {}
  ~Screen() { close(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const Event& event) {
    std::lock_guard lock(mutex_);
    if (style_ == Style::json) return print_line(event.json());
    if (event.type == "warning") {
      erase();
      return print_warning(event.text);
    }
    if (event.type == "print") {
      erase();
      return print_printed(event.text);
    }
    if (event.type == "log") {
      erase();
      return print_raw(log_lines(event));
    }
    // Events of a plan are stamped before the run begins.
    if (event.type != "plan") {
      event_ms_ = event.at_ms;
      event_steady_ms_ = steady_ms();
    }
    std::vector<std::string> lines = view_.on_event(event);
    if (style_ == Style::silent) return;
    if (style_ == Style::live) {
      if (!RunView::stays_on_terminal(event)) return;
      erase();
    }
    for (const std::string& line : lines) print_line(line);
  }

  void line(const std::string& text) {
    std::lock_guard lock(mutex_);
    erase();
    print_line(text);
  }

  /// Prints a line to stderr without damaging the frame.
  void note(const std::string& line) {
    std::lock_guard lock(mutex_);
    erase();
    flush_output();
    std::fprintf(stderr, "%s\n", line.c_str());
  }

  bool serving() {
    std::lock_guard lock(mutex_);
    return view_.serving();
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
    }
    wake_.notify_all();
    ticker_.join();
    erase();
    if (style_ == Style::live) print_raw("\x1b[?25h");
    flush_output();
  }

 private:
  void tick() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kTick, [this] { return closed_; })) {
      if (style_ == Style::live) {
        lock.unlock();
        Counts counts = run_.counts();  // may wait for the engine; other events arrive meanwhile
        lock.lock();
        if (closed_) return;
        draw(counts);
      }
      flush_output();
    }
  }

  void draw(const Counts& counts) {
    size_t width, height;
    terminal_size(width, height);
    std::string out = "\x1b[?25l" + to_top();
    std::vector<std::string> lines = view_.frame(counts, run_now_ms(), width - 1, height - 1);
    for (const std::string& line : lines) out += line + "\x1b[K\n";
    if (lines.size() < drawn_) out += "\x1b[J";
    drawn_ = lines.size();
    print_raw(out);
  }

  /// The current time on the clock that stamps the run's events, independent of this machine's wall
  /// clock.
  int64_t run_now_ms() const { return event_ms_ + steady_ms() - event_steady_ms_; }

  /// Moves the cursor from the line below the frame to its first line.
  std::string to_top() const { return drawn_ == 0 ? "" : "\x1b[" + std::to_string(drawn_) + "A\r"; }

  /// Line by line: terminal multiplexers treat an erasure of the whole screen as text for their
  /// history.
  std::string erasing() const {
    std::string out = to_top();
    for (size_t i = 0; i < drawn_; i++) out += "\x1b[K\x1b[B";
    return out + to_top();
  }

  void erase() {
    std::string out = erasing();
    print_raw(out);
    drawn_ = 0;
  }

  Run run_;
  const Style style_;
  std::mutex mutex_;
  std::condition_variable wake_;
  RunView view_;
  int64_t event_ms_ = 0, event_steady_ms_ = 0;  // of the last event, and when it arrived
  size_t drawn_ = 0;
  bool closed_ = false;
  std::thread ticker_;  // last: uses the other members
};

/// Suffix for commands that only a machine with the state can run.
std::string on_head_text(const VerbContext& context) {
  return context.head.empty() ? "" : " on the head's machine";
}

void print_failures(const RunInfo& run, const VerbContext& context) {
  size_t shown = 0, failed = 0;
  for (const TaskInfo& task : run.tasks) {
    if (task.status != "failed" || task.ignored || ++failed > kErrorsShownMax) continue;
    shown++;
    std::string attempts = task.attempts > 1 ? " after " + plural(task.attempts, "attempt") : "";
    print_error("`" + tagged_name(task.name, task.tag) + "` failed" + attempts + ": " + task.error);
  }
  if (failed > shown) {
    print_error(plural(failed - shown, "more task") + " failed: `flow show " + run.id + "`" +
                on_head_text(context) + " lists them.");
  }
}

/// "`qc[2]`, `qc[7]` and 3 more": the tasks whose failures were ignored.
std::string ignored_text(const RunInfo& run) {
  constexpr size_t kNamesShownMax = 20;
  std::string names;
  size_t count = 0;
  for (const TaskInfo& task : run.tasks) {
    if (!task.ignored || ++count > kNamesShownMax) continue;
    names += (names.empty() ? "`" : ", `") + tagged_name(task.name, task.tag) + "`";
  }
  if (count > kNamesShownMax) names += " and " + std::to_string(count - kNamesShownMax) + " more";
  return names;
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

void print_end(const Engine& engine, Run& run, const RunInfo& summary, int64_t elapsed_ms,
               const VerbContext& context, bool shown) {
  const bool quiet = context.quiet;
  bool has_failures = summary.status == "failed" || summary.counts.failed > 0;
  RunInfo whole = has_failures ? run.info() : summary;
  if (summary.status == "failed") print_failures(whole, context);
  if (summary.status == "failed" && !quiet) {
    std::string resume = "flow resume " + summary.id + context.head_option();
    std::fprintf(stderr,
                 "\n`flow logs %s TASK`%s shows a task's log; `%s` runs the failed tasks again.\n"
                 "If you edit the script or an input, `%s --code new` or a new `flow run` uses the "
                 "edited version; finished tasks that the edit does not affect are not repeated.\n",
                 summary.id.c_str(), on_head_text(context).c_str(), resume.c_str(), resume.c_str());
  }
  if (summary.status == "cancelled") print_error("the run " + summary.id + " was cancelled.");
  if (code_of(summary.status) == kInterrupted) {
    print_error("the run " + summary.id + " is " + summary.status + ": `flow resume " + summary.id +
                context.head_option() + "` continues it.");
  }
  if (quiet) return;
  bool is_lost = summary.status == "failed" && is_only_null(summary.result);
  if (!summary.result.is_nil() && !shown && !is_lost)
    print_line("result: " + result_text(summary.result));
  if (summary.counts.ignored > 0)
    print_line("ignored: " + ignored_text(whole) + "; `flow retry " + summary.id +
               context.head_option() + "` runs them again");
  print_line(summary.status + ": " + summary_line(whole, elapsed_ms, engine.state_bytes()));
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

int watch(Engine& engine, Run run, const VerbContext& context, const WatchOptions& options,
          Interrupts& interrupts) {
  RunInfo first = run.summary();
  std::string title = (first.name.empty() ? first.pipeline : first.name) + "  " + first.id;
  Style style = context.quiet   ? Style::silent
                : context.json  ? Style::json
                : is_terminal() ? Style::live
                                : Style::plain;
  bool talks = style == Style::plain || style == Style::live;
  bool shown = false;  // whether the result was shown
  if (talks) {
    print_line("run " + first.id + " of " + first.pipeline);
  }
  auto screen = std::make_shared<Screen>(run, style, title);
  interrupts.attach(run, options.grace_ms,
                    [screen](const std::string& line) { screen->note(line); });
  while (std::optional<Event> event = run.next_event()) {
    bool is_runs = event->type == "run";
    // Before it is shown, because a user who sees that it serves may end it.
    if (is_runs) interrupts.set_serving(event->status == "serving");
    screen->show(*event);
    // Only services are left: the result is final and can be printed.
    if (is_runs && event->status == "serving" && talks && !shown) {
      screen->line("result: " + result_text(run.summary().result));
      shown = true;
    }
    if (!is_runs) interrupts.set_serving(screen->serving());
  }
  screen->close();
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
    if (whole.status == "failed") print_failures(whole, context);
    print_line(whole.json());
  } else {
    print_end(engine, run, summary, interrupts.elapsed_ms(), context, shown);
  }
  if (is_strict_failure) {
    print_error(plural(summary.counts.ignored, "failure") + " ignored (" +
                ignored_text(run.info()) +
                "), and with --strict the exit code is 1. The run itself succeeded: `flow why " +
                summary.id + " TASK`" + on_head_text(context) + " says why a task failed.");
  }
  flush_output();

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
