// flow logs [RUN] [TASK[@ATTEMPT]] [--rank N] [-f], flow logs TASK
#include <unistd.h>

#include <chrono>
#include <climits>
#include <set>
#include <thread>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

constexpr auto kFollowEvery = std::chrono::milliseconds(400);

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
    std::map<std::pair<std::string, uint32_t>, size_t> seen;
    for (const LogLine& line : lines) {
      std::pair<std::string, uint32_t> source(line.task, line.attempt);
      bool is_new = ++seen[source] > printed_[source];
      bool is_asked = rank_ < 0 || line.rank == static_cast<uint32_t>(rank_);
      if (is_new && is_asked) print_log(line, json_, prefix);
    }
    for (const auto& [source, count] : seen) printed_[source] = std::max(printed_[source], count);
    flush_output();
  }

 private:
  bool json_;
  int rank_;  // -1: all
  std::map<std::pair<std::string, uint32_t>, size_t> printed_;
};

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
      for (bool was_active = false;;) {
        // A reader sees the state as of the time when it was opened.
        Reader reader(options);
        RunInfo now = reader.show(run);
        bool more = *follow && is_active(now.status);
        LinePrefix prefix{task->empty(), {}};
        for (const TaskInfo& each : now.tasks)
          if (each.ranks > 1) prefix.gangs.insert(each.name);
        printer.print(reader.logs(run, *task), prefix);
        if (was_active && now.status == "interrupted") {
          print_error("the run " + run + " is interrupted: its process has ended, and " +
                      "later lines are shown once `flow resume " + run +
                      "`, or its restarted head, continues it.");
          return int{kInterrupted};
        }
        if (!more || output_error() != 0) return int{kDone};
        was_active = true;
        std::this_thread::sleep_for(kFollowEvery);
      }
    };
  });
}

}  // namespace flow::cli
