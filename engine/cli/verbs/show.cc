// flow show [RUN] [TASK], flow show TASK: a run, its tasks and its result.
#include <cmath>

#include "engine/cli/display/display.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

std::string indented(const std::string& text, const std::string& indent) {
  std::string out = indent;
  for (char c : text) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out;
}

/// "on GPU-8f3c2a1b": a prefix is unique enough, also for CUDA.
std::string gpus_text(const std::vector<std::string>& uuids) {
  constexpr size_t kShown = 12;
  std::string text;
  for (const std::string& uuid : uuids)
    text += (text.empty() ? "on " : ", ") + uuid.substr(0, kShown);
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// "GPUs used at 45%"; "" if that is not known.
std::string gpu_use_text(const TaskUsage& usage) {
  constexpr double kPercent = 100;
  if (usage.gpu_used_s < 0 || usage.gpu_measured_s <= 0) return "";
  auto percent = std::lround(usage.gpu_used_s / usage.gpu_measured_s * kPercent);
  return "GPUs used at " + std::to_string(percent) + "%";
}

/// "peak memory 210 MiB, CPU time 1.25s, GPUs used at 45%", as far as it is known.
std::string usage_text(const TaskUsage& usage) {
  constexpr double kMsPerSecond = 1000;
  std::string text;
  if (usage.peak_memory >= 0)
    text = "peak memory " + format_bytes(static_cast<uint64_t>(usage.peak_memory));
  auto add = [&](const std::string& more) {
    if (!more.empty()) text += (text.empty() ? "" : ", ") + more;
  };
  auto cpu_ms = static_cast<int64_t>(std::llround(usage.cpu_s * kMsPerSecond));
  if (usage.cpu_s >= 0) add("CPU time " + format_duration(cpu_ms));
  add(gpu_use_text(usage));
  return text;
}

std::vector<std::string> task_row(const TaskInfo& task, const std::string& run_status,
                                  bool with_usage) {
  std::string status = task.cached ? "cached" : task.status;
  if (run_status == "interrupted" && task.status == "running") status = "was running";
  std::string duration;
  if (task.started_ms != 0 && task.finished_ms != 0) {
    duration = format_duration(task.finished_ms - task.started_ms);
  }
  std::string note;
  if (task.attempts > 1) note = plural(task.attempts, "attempt");
  if (task.restarts > 0 && task.waits_for.empty())
    note += ", restarted " + (task.restarts == 1 ? "once" : plural(task.restarts, "time")) +
            (task.error.empty() ? "" : ", last: " + first_line(task.error));
  if (task.ignored) note += (note.empty() ? "" : ", ") + std::string("ignored");
  if (task.grew_from > 0)
    note += ", restarted with " + std::to_string(task.ranks) + " ranks after " +
            std::to_string(task.grew_from);
  if (task.fraction >= 0 && task.status == "running") {
    note +=
        (note.empty() ? "" : ", ") + std::to_string(static_cast<int>(task.fraction * 100)) + "%";
    std::string metrics = metrics_text(task.metrics);
    if (!metrics.empty()) note += " " + metrics;
  }
  std::string used = with_usage ? usage_text(task.usage) : "";
  if (!used.empty()) note += (note.empty() ? "" : ", ") + used;
  if (!task.gpus.empty()) note += (note.empty() ? "" : ", ") + gpus_text(task.gpus);
  if (!task.url.empty()) note += (note.empty() ? "" : ", ") + ("serves at " + task.url);
  if (!task.waits_for.empty()) note += (note.empty() ? "" : ", ") + task.waits_for;
  return {tagged_name(task.name, task.tag), status, duration, note};
}

std::string rollover_text(const RolloverInfo& rollover) {
  std::string text = rollover.phase;
  if (rollover.percent > 0)
    text += ", step " + std::to_string(rollover.step) + " of " + std::to_string(rollover.steps) +
            ", " + std::to_string(rollover.percent) + "% of the traffic";
  if (!rollover.previous.empty()) text += ", after " + rollover.previous;
  return text;
}

/// Removes all other tasks.
void keep_task(RunInfo& run, const std::string& task) {
  std::vector<std::string> names;
  std::vector<TaskInfo> kept;
  for (const TaskInfo& each : run.tasks) {
    names.push_back(each.name);
    if (is_selected(each, task)) kept.push_back(each);
  }
  if (kept.empty())
    fail("the run " + run.id + " has no task `" + task + "`." + did_you_mean(task, names));
  run.tasks = std::move(kept);
}

}  // namespace

void print_run(const RunInfo& run, bool json, bool with_usage) {
  if (json) return print_line(run.json());
  std::vector<std::vector<std::string>> head = {
      {"run", run.id + (run.name.empty() ? "" : " (" + run.name + ")")},
      {"pipeline", run.pipeline},
      {"status", run.status},
      {"started", local_time(run.started_ms)},
      {"finished", local_time(run.finished_ms)},
  };
  if (run.finished_ms != 0)
    head.push_back({"took", format_duration(run.finished_ms - run.started_ms)});
  if (!run.url.empty()) head.push_back({"url", run.url});
  for (const ServiceInfo& service : run.services) {
    if (service.replicas_max > service.replicas_min)
      head.push_back({"replicas", service.service + ": " + scaled_replicas_text(service)});
    if (!service.access_log.empty()) head.push_back({"access log", service.access_log});
  }
  if (run.budget)
    head.push_back({"budget", run.budget->text() + (run.budget->is_spent ? ", spent" : "")});
  for (const ActionInfo& action : run.actions) {
    std::string name = action.name.empty() ? "" : " `" + action.name + "`";
    head.push_back({action.action, "by " + action.by + " at " + local_time(action.at_ms) + name});
  }
  if (!run.rollover.phase.empty()) head.push_back({"rollover", rollover_text(run.rollover)});
  if (!run.not_resumed.empty()) head.push_back({"not resumed", first_line(run.not_resumed)});
  if (!run.script.empty()) head.push_back({"script", run.script});
  if (run.params.kind() == Value::Kind::table && !run.params.as_table().fields.empty())
    head.push_back({"params", to_json(run.params)});
  if (!run.result.is_nil()) head.push_back({"result", to_json(run.result)});
  std::string text = table(head);

  std::vector<std::vector<std::string>> rows;
  for (const TaskInfo& task : run.tasks) rows.push_back(task_row(task, run.status, with_usage));
  if (!rows.empty()) text += "\n" + table(rows);
  for (const TaskInfo& task : run.tasks) {
    bool is_in_row = task.restarts > 0 && task.status == "running";
    if (task.error.empty() || is_in_row) continue;
    text += "\n" + tagged_name(task.name, task.tag) + " " + task.status + ":\n" +
            indented(task.error, "  ") + "\n";
  }
  print_text(text);
}

void add_show(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto task = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "show", "show a run, its tasks and its result");
  add_run_argument(verb, *selector);
  verb->add_option("task", *task, "only this task; of a map, or one of its instances: train[2]")
      ->type_name("TASK");
  verb->callback([&context, selector, task] {
    context.action = [&context, selector, task] {
      Reader reader(context.engine());
      bool is_of_last = select_task_of_last(reader, *selector, *task);
      RunInfo run = reader.show(*selector);
      if (!task->empty()) keep_task(run, *task);
      if (is_of_last && !context.json) print_line(of_last_run(*task, run));
      print_run(run, context.json, !task->empty());
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
