// flow metrics [RUN] [TASK] [--metric NAME] [--csv | --tensorboard DIR], flow metrics TASK
#include <map>

#include "engine/cli/display/series_text.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

constexpr size_t kSparkColumns = 24;

struct MetricsOptions {
  std::string run, task, metric, tensorboard;
  bool csv = false;
};

void print_json(const std::string& run, const MetricSeries& series) {
  std::string points;
  for (const MetricPoint& point : series.points)
    points += (points.empty() ? "{\"step\":" : ",{\"step\":") + std::to_string(point.step) +
              ",\"value\":" + json_number(point.value) +
              ",\"time\":" + json_text(iso_time(point.at_ms)) + "}";
  const MetricPoint& last = series.points.back();
  print_line("{\"run\":" + json_text(run) + ",\"computed_by\":" + json_text(series.run) +
             ",\"task\":" + json_text(series.task) + ",\"tag\":" + text_or_null(series.tag) +
             ",\"metric\":" + json_text(series.metric) +
             ",\"count\":" + std::to_string(series.points.size()) +
             ",\"first\":" + json_number(series.points.front().value) +
             ",\"last\":" + json_number(last.value) + ",\"min\":" + json_number(series.min) +
             ",\"max\":" + json_number(series.max) + ",\"best\":" + json_number(series.best) +
             ",\"last_step\":" + std::to_string(last.step) + ",\"points\":[" + points + "]}");
}

void print_csv(const std::string& run, const std::vector<MetricSeries>& all) {
  print_raw("run,task,tag,metric,step,value,time\n");
  for (const MetricSeries& series : all) {
    std::string name = csv_field(run) + "," + csv_field(series.task) + "," + csv_field(series.tag) +
                       "," + csv_field(series.metric) + ",";
    for (const MetricPoint& point : series.points)
      print_raw(name + std::to_string(point.step) + "," + exact_number(point.value) + "," +
                iso_time(point.at_ms) + "\n");
  }
}

void print_summary(const std::vector<MetricSeries>& all) {
  bool has_curves = has_utf8_locale();
  std::vector<std::vector<std::string>> rows = {
      {"task", "metric", "points", "first", "last", "min", "max", "best", "last step"}};
  if (has_curves) rows.front().emplace_back("");
  for (const MetricSeries& series : all) {
    const MetricPoint& last = series.points.back();
    rows.push_back({tagged_name(series.task, series.tag), series.metric,
                    std::to_string(series.points.size()), short_number(series.points.front().value),
                    short_number(last.value), short_number(series.min), short_number(series.max),
                    short_number(series.best), std::to_string(last.step)});
    if (has_curves) rows.back().push_back(sparkline(series.points, kSparkColumns));
  }
  print_text(table(rows));
}

void print_points(const std::vector<MetricSeries>& all) {
  std::vector<std::vector<std::string>> rows = {{"task", "metric", "step", "value", "time"}};
  for (const MetricSeries& series : all) {
    for (const MetricPoint& point : series.points)
      rows.push_back({tagged_name(series.task, series.tag), series.metric,
                      std::to_string(point.step), exact_number(point.value),
                      iso_time(point.at_ms)});
  }
  print_text(table(rows));
}

/// One line for each run that computed points of cached tasks.
void print_origins(const std::string& run, const std::vector<MetricSeries>& all) {
  std::vector<std::string> origins;  // in the order of the tasks
  std::map<std::string, std::vector<std::string>> names;
  for (const MetricSeries& series : all) {
    if (series.run == run) continue;
    std::vector<std::string>& of_run = names[series.run];
    if (of_run.empty()) origins.push_back(series.run);
    std::string name = tagged_name(series.task, series.tag);
    if (of_run.empty() || of_run.back() != name) of_run.push_back(name);
  }
  for (const std::string& origin : origins) {
    const std::vector<std::string>& of_run = names[origin];
    bool is_one = of_run.size() == 1;
    print_line(joined_names(of_run) +
               (is_one ? " was" : " (" + plural(of_run.size(), "task") + ") were") +
               " cached: these are the points of the run " + origin + ".");
  }
}

int print_metrics(const VerbContext& context, const MetricsOptions& options) {
  Reader reader(context.engine());
  std::string selector = options.run, task = options.task;
  select_task_of_last(reader, selector, task);
  std::string run = reader.show(selector).id;
  if (!options.tensorboard.empty()) {
    for (const std::string& path :
         reader.write_tensorboard(options.tensorboard, run, task, options.metric))
      print_line(context.json ? "{\"path\":" + json_text(path) + "}" : path);
    return kDone;
  }
  std::vector<MetricSeries> all = reader.metrics(run, task, options.metric);
  if (context.json) {
    for (const MetricSeries& series : all) print_json(run, series);
  } else if (options.csv) {
    print_csv(run, all);
  } else if (all.empty()) {
    print_line((task.empty() ? "the run " + run : "`" + task + "` of the run " + run) +
               " has no metrics: a task reports them with ctx:metric(name, value, step).");
  } else {
    task.empty() ? print_summary(all) : print_points(all);
    print_origins(run, all);
  }
  return kDone;
}

}  // namespace

void add_metrics(CLI::App& app, VerbContext& context) {
  auto options = std::make_shared<MetricsOptions>();
  CLI::App* verb = add_verb(app, context, "metrics", "show what tasks reported with ctx:metric");
  add_run_argument(verb, options->run);
  verb->add_option("task", options->task, "show the points of this task")->type_name("TASK");
  verb->add_option("--metric", options->metric, "only the metric of this name")->type_name("NAME");
  verb->add_flag("--csv", options->csv, "print all points as CSV");
  verb->add_option("--tensorboard", options->tensorboard,
                   "write event files for TensorBoard, in a folder per task below DIR")
      ->type_name("DIR");
  verb->callback([&context, options] {
    if (options->csv && !options->tensorboard.empty())
      throw CLI::ExcludesError("--csv", "--tensorboard");
    context.action = [&context, options] { return print_metrics(context, *options); };
  });
}

}  // namespace flow::cli
