// flow logs [RUN] [TASK[@ATTEMPT]] [--rank N] [-f], flow logs TASK
#include <unistd.h>

#include <chrono>
#include <climits>
#include <deque>
#include <set>
#include <thread>

#include "engine/cli/display/display.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

constexpr auto kFollowEvery = std::chrono::milliseconds(400);
constexpr int kStderr = 2;

const char* stream_name(int stream) {
  switch (stream) {
    case 0:
      return "log";
    case 1:
      return "stdout";
    default:
      return "stderr";
  }
}

/// The label before each line.
struct LinePrefix {
  bool task = false;
  std::set<std::string> gangs;  // tasks whose lines show their rank
};

void print_log(const LogLine& line, bool json, const LinePrefix& prefix) {
  if (json) {
    print_line("{\"task\":" + json_text(line.task) +
               (line.tag.empty() ? "" : ",\"tag\":" + json_text(line.tag)) + ",\"attempt\":" +
               std::to_string(line.attempt) + ",\"rank\":" + std::to_string(line.rank) +
               ",\"stream\":" + json_text(stream_name(line.stream)) + ",\"at\":" +
               json_text(iso_time(line.at_ms)) + ",\"text\":" + json_text(line.text) + "}");
    return;
  }
  std::string label;
  if (prefix.task)
    label = tagged_name(line.task, line.tag) +
            (line.attempt > 1 ? "@" + std::to_string(line.attempt) : "");
  if (line.rank > 0 || prefix.gangs.contains(line.task))
    label += (label.empty() ? "rank " : " rank ") + std::to_string(line.rank);
  print_raw((label.empty() ? line.text : label + " | " + line.text) + "\n");
}

bool is_active(const std::string& status) {
  return status == "pending" || status == "running" || status == "serving" || status == "waiting";
}

/// Prints the lines after the first `printed` ones of each task and attempt; updates the counts.
class Printer {
 public:
  Printer(bool json, int rank) : json_(json), rank_(rank) {}
  void print(const std::vector<LogLine>& lines, const LinePrefix& prefix) {
    std::map<Source, size_t> seen;
    for (const LogLine& line : lines) {
      Source source(line.task, line.attempt);
      bool is_new = ++seen[source] > printed_[source];
      bool is_asked = rank_ < 0 || line.rank == static_cast<uint32_t>(rank_);
      if (is_new && is_asked) print_log(line, json_, prefix);
      if (is_new && is_asked && line.stream == kStderr) keep_stderr(source, line.text);
    }
    for (const auto& [source, count] : seen) printed_[source] = std::max(printed_[source], count);
    flush_output();
  }
  bool has_lines_of(const std::string& task) const {
    auto first = printed_.lower_bound({task, 0});
    return first != printed_.end() && first->first.first == task;
  }
  /// The error without what it repeats: the end of the attempt's stderr, if that is printed.
  std::string without_printed(std::string error, const std::string& task, uint32_t attempt) const {
    auto found = stderr_ends_.find({task, attempt});
    if (found == stderr_ends_.end()) return error;
    const std::deque<std::string>& printed = found->second;
    if (error.ends_with('\n')) error.pop_back();
    for (auto line = printed.rbegin(); line != printed.rend(); line++) {
      if (!error.ends_with("\n" + *line)) break;
      error.resize(error.size() - line->size() - 1);
    }
    return error;
  }

 private:
  using Source = std::pair<std::string, uint32_t>;  // task and attempt
  void keep_stderr(const Source& source, const std::string& line) {
    constexpr size_t kKeptMax = 100;  // an error repeats fewer
    std::deque<std::string>& kept = stderr_ends_[source];
    kept.push_back(line);
    if (kept.size() > kKeptMax) kept.pop_front();
  }

  bool json_;
  int rank_;  // -1: all
  std::map<Source, std::deque<std::string>> stderr_ends_;
  std::map<Source, size_t> printed_;
};

struct TaskAttempt {
  std::string task;
  uint32_t attempt = 0;  // 0: all
};

/// "train@2"
TaskAttempt task_attempt(const std::string& text) {
  size_t at = text.rfind('@');
  bool has_attempt = at != std::string::npos && at + 1 < text.size() &&
                     text.find_first_not_of("0123456789", at + 1) == std::string::npos;
  if (!has_attempt) return {text, 0};
  return {text.substr(0, at),
          static_cast<uint32_t>(std::strtoul(text.c_str() + at + 1, nullptr, 10))};
}

/// Prints on stderr why the selected tasks failed. `task`: as on the command line; "" for all.
void print_failures(const RunInfo& run, const std::string& task, const Printer& printed) {
  TaskAttempt selected = task_attempt(task);
  size_t shown = 0, more = 0;
  for (const TaskInfo& each : run.tasks) {
    // Skipped tasks have no log either. Their reasons are printed only if they are named.
    bool has_failed = each.status == "failed" || (each.status == "skipped" && !task.empty());
    bool is_asked = task.empty() || is_selected(each, selected.task);
    bool is_attempt = selected.attempt == 0 || selected.attempt == each.attempts;
    if (!has_failed || !is_asked || !is_attempt || each.error.empty()) continue;
    if (shown == kFailuresShownMax) {
      more++;
      continue;
    }
    shown++;
    std::string what = each.status == "skipped" ? "was skipped" : "failed";
    if (each.ignored) what += " (ignored)";
    if (each.attempts > 1) what += " in attempt " + std::to_string(each.attempts);
    print_error("`" + tagged_name(each.name, each.tag) + "` " + what + ": " +
                printed.without_printed(each.error, each.name, each.attempts));
  }
  if (more > 0)
    print_error(plural(more, "more task") + " failed: `flow show " + run.id + "` lists them.");
}

/// Says why there are no lines of cached tasks.
void print_cached(const RunInfo& run, const std::string& task, const Printer& printed) {
  size_t count = 0;
  std::string first;
  for (const TaskInfo& each : run.tasks) {
    if (!each.cached || !is_selected(each, task) || printed.has_lines_of(each.name)) continue;
    if (count++ == 0) first = "`" + tagged_name(each.name, each.tag) + "`";
  }
  if (count == 0) return;
  flush_output();
  print_printed(first + (count > 1 ? " and " + std::to_string(count - 1) + " more are" : " is") +
                " cached: the run that computed " + (count > 1 ? "their results" : "its result") +
                " has no log of it");
}

}  // namespace

void add_logs(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto task = std::make_shared<std::string>();
  auto follow = std::make_shared<bool>(false);
  auto rank = std::make_shared<int>(-1);
  CLI::App* verb = add_verb(app, context, "logs", "print the logs and output of tasks");
  add_run_argument(verb, *selector);
  verb->add_option("task", *task, "a task, or one attempt of it: train@2")
      ->type_name("TASK[@ATTEMPT]");
  verb->add_flag("-f,--follow", *follow, "follow until the run ends");
  verb->add_option("--rank", *rank, "only output of this rank of a gang (default: all ranks)")
      ->type_name("N")
      ->check(whole_number("--rank", 0, INT_MAX));
  verb->callback([&context, selector, task, follow, rank] {
    context.action = [&context, selector, task, follow, rank] {
      EngineOptions options = context.engine();
      bool is_of_last = select_task_of_last(Reader(options), *selector, *task);
      RunInfo chosen = Reader(options).show(*selector);
      std::string run = chosen.id;
      // In a pipe or a file there are only the task's own lines.
      if (is_of_last && !context.json && isatty(STDOUT_FILENO) == 1)
        print_line(of_last_run(*task, chosen));
      Printer printer(context.json, *rank);
      while (true) {
        // A reader sees the state as of the time when it was opened.
        Reader reader(options);
        RunInfo now = reader.show(run);
        LinePrefix prefix{task->empty(), {}};
        for (const TaskInfo& each : now.tasks)
          if (each.ranks > 1) prefix.gangs.insert(each.name);
        printer.print(reader.logs(run, *task), prefix);
        if (output_error() != 0) return int{kDone};
        if (*follow && is_active(now.status)) {
          std::this_thread::sleep_for(kFollowEvery);
          continue;
        }
        print_failures(now, *task, printer);
        if (!task->empty()) print_cached(now, *task, printer);
        if (!*follow || now.status != "interrupted") return int{kDone};
        print_error("the run " + run + " is interrupted: its process has ended, and " +
                    "later lines are shown once `flow resume " + run +
                    "`, or its restarted head, continues it.");
        return int{kInterrupted};
      }
    };
  });
}

}  // namespace flow::cli
