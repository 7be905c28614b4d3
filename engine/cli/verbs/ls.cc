// flow ls: one line per run, oldest first.
#include <unistd.h>

#include <cstdio>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

std::string json_line(const RunInfo& run) {
  std::string whole = run.json();  // without tasks: like `flow show`, except for the task list
  size_t tasks = whole.rfind(",\"tasks\":[]");
  if (tasks != std::string::npos) whole.erase(tasks, sizeof(",\"tasks\":[]") - 1);
  return whole;
}

std::vector<std::string> row(const RunInfo& run) {
  const Counts& c = run.counts;
  uint64_t total = uint64_t{c.succeeded} + c.failed + c.skipped + c.cancelled + c.pending +
                   c.ready + c.running + c.waiting;
  std::string duration =
      run.finished_ms == 0 ? "-" : format_duration(run.finished_ms - run.started_ms);
  std::string name = run.name.empty() ? run.pipeline : run.pipeline + " (" + run.name + ")";
  std::string tasks = std::to_string(c.succeeded) + "/" + plural(total, "task");
  if (c.failed > 0) tasks += ", " + std::to_string(c.failed) + " failed";
  if (!run.url.empty()) tasks += ", serves at " + run.url;
  return {run.id, run.status, name, local_time(run.started_ms), duration, tasks};
}

}  // namespace

void add_ls(CLI::App& app, VerbContext& context) {
  CLI::App* verb = add_verb(app, context, "ls", "list the runs of the state");
  verb->callback([&context] {
    context.action = [&context] {
      std::vector<std::vector<std::string>> rows;
      Reader reader(context.engine());
      std::vector<RunInfo> runs = reader.list(context.json);
      if (runs.empty() && access(reader.state_dir().c_str(), F_OK) != 0) {
        std::fprintf(stderr, "there is no state `%s` yet: the first `flow run` creates it\n",
                     printable(reader.state_dir()).c_str());
      }
      for (const RunInfo& run : runs) {
        if (context.json) {
          print_line(json_line(run));
        } else {
          rows.push_back(row(run));
        }
      }
      std::string text = table(rows);
      print_text(text);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
