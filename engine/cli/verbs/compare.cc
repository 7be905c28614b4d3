// flow compare RUN RUN… [--metric NAME] [--task TASK]: parameters and metrics of runs, side by
// side.
#include <algorithm>
#include <map>
#include <set>

#include "engine/cli/display/screen.hpp"
#include "engine/cli/display/series_text.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

/// A metric of a task instance, in the order of the first run that has it.
using Column = std::pair<std::string, std::string>;  // the task's shown name, the metric

Column column_of(const MetricSeries& series) {
  return {tagged_name(series.task, series.tag), series.metric};
}

std::vector<Column> columns_of_metrics(const std::vector<ComparedRun>& runs) {
  std::vector<Column> columns;
  for (const ComparedRun& run : runs) {
    for (const MetricSeries& series : run.series) {
      if (std::ranges::find(columns, column_of(series)) == columns.end())
        columns.push_back(column_of(series));
    }
  }
  return columns;
}

std::vector<std::string> names_of_params(const std::vector<ComparedRun>& runs) {
  std::set<std::string> names;
  for (const ComparedRun& run : runs) {
    for (const auto& [name, value] : run.params.as_table().fields) names.insert(name.as_string());
  }
  return {names.begin(), names.end()};
}

std::string json_of(const ComparedRun& run) {
  std::string metrics;
  for (const MetricSeries& series : run.series) {
    const MetricPoint& last = series.points.back();
    metrics += (metrics.empty() ? "" : ",") + ("{\"task\":" + json_text(series.task)) +
               ",\"tag\":" + text_or_null(series.tag) + ",\"metric\":" + json_text(series.metric) +
               ",\"count\":" + std::to_string(series.points.size()) +
               ",\"last\":" + json_number(last.value) + ",\"best\":" + json_number(series.best) +
               ",\"min\":" + json_number(series.min) + ",\"max\":" + json_number(series.max) +
               ",\"last_step\":" + std::to_string(last.step) + "}";
  }
  bool has_params = !run.params.as_table().fields.empty();
  return "{\"run\":" + json_text(run.run.id) + ",\"name\":" + text_or_null(run.run.name) +
         ",\"status\":" + json_text(run.run.status) +
         ",\"params\":" + (has_params ? to_json(run.params) : "{}") + ",\"metrics\":[" + metrics +
         "]}";
}

std::string text_of(const Value& value) {
  constexpr size_t kColumnsMax = 40;
  std::string text = value.kind() == Value::Kind::string ? value.as_string() : to_json(value);
  return shortened(text, kColumnsMax);
}

std::vector<std::string> row_of(const ComparedRun& run, const std::vector<std::string>& params,
                                const std::vector<Column>& columns) {
  std::vector<std::string> row = {run.run.id, run.run.name.empty() ? "-" : run.run.name};
  for (const std::string& name : params) {
    const Value* value = run.params.find(name);
    row.push_back(value == nullptr ? "-" : text_of(*value));
  }
  for (const Column& column : columns) {
    auto found = std::ranges::find(run.series, column, column_of);
    bool is_there = found != run.series.end();
    row.push_back(is_there ? short_number(found->points.back().value) : "-");
    row.push_back(is_there ? short_number(found->best) : "-");
  }
  return row;
}

constexpr size_t kFixedColumns = 2;  // the run's id and name

/// The numbers of the columns, those first that a narrow terminal shows: the run, the first metric,
/// the parameters, the other metrics.
std::vector<size_t> by_importance(size_t columns, size_t params) {
  size_t metrics = kFixedColumns + params, second_metric = std::min(columns, metrics + 2);
  std::vector<size_t> order = {0};
  for (size_t i = metrics; i < second_metric; i++) order.push_back(i);
  for (size_t i = 1; i < metrics; i++) order.push_back(i);
  for (size_t i = second_metric; i < columns; i++) order.push_back(i);
  return order;
}

/// "left out, because the terminal is too narrow: `loss last`, `loss best` and 34 more columns. …"
std::string omission_text(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text = "left out, because the terminal is too narrow: ";
  for (size_t i = 0; i < std::min(names.size(), kShown); i++)
    text += (i == 0 ? "`" : ", `") + names[i] + "`";
  if (names.size() > kShown) text += " and " + plural(names.size() - kShown, "more column");
  return text + ". --metric NAME and --task TASK select metrics; --json prints all of them.";
}

void print_fitting(const std::vector<std::vector<std::string>>& rows, size_t params) {
  size_t columns_max = is_terminal() ? output_columns() : SIZE_MAX;
  FittingColumns fitting =
      fitting_columns(rows, by_importance(rows.front().size(), params), columns_max);
  print_text(table(fitting.rows));
  if (!fitting.omitted.empty()) print_line(omission_text(fitting.omitted));
}

void print_table(const std::vector<ComparedRun>& runs, const std::string& task) {
  std::vector<std::string> params = names_of_params(runs);
  std::vector<Column> columns = columns_of_metrics(runs);
  std::set<std::string> tasks;
  for (const Column& column : columns) tasks.insert(column.first);
  std::vector<std::vector<std::string>> rows = {{"run", "name"}};
  rows.front().insert(rows.front().end(), params.begin(), params.end());
  for (const auto& [task, metric] : columns) {
    std::string name = tasks.size() > 1 ? task + " " + metric : metric;
    rows.front().push_back(name + " last");
    rows.front().push_back(name + " best");
  }
  for (const ComparedRun& run : runs) rows.push_back(row_of(run, params, columns));
  print_fitting(rows, params.size());
  if (columns.empty())
    print_line((task.empty() ? "these runs have" : "`" + task + "` of these runs has") +
               " no metrics: a task reports them with ctx:metric(name, value, step).");
}

}  // namespace

void add_compare(CLI::App& app, VerbContext& context) {
  constexpr int kOthersMax = 10'000;
  auto first = std::make_shared<std::string>();
  auto others = std::make_shared<std::vector<std::string>>();
  auto metric = std::make_shared<std::string>(), task = std::make_shared<std::string>();
  CLI::App* verb =
      add_verb(app, context, "compare", "show parameters and metrics of runs side by side");
  verb->add_option("run", *first, "an id, a unique prefix, a name, or last")
      ->type_name("RUN")
      ->required();
  verb->add_option("others", *others, "the runs to compare it with")
      ->type_name("RUN")
      ->required()
      ->expected(1, kOthersMax);
  verb->add_option("--metric", *metric, "only the metric of this name")->type_name("NAME");
  verb->add_option("--task", *task, "only metrics of this task")->type_name("TASK");
  verb->callback([&context, first, others, metric, task] {
    context.action = [&context, first, others, metric, task] {
      std::vector<std::string> selectors = {*first};
      selectors.insert(selectors.end(), others->begin(), others->end());
      std::vector<ComparedRun> runs = Reader(context.engine()).compare(selectors, *metric, *task);
      if (!context.json) print_table(runs, *task);
      for (const ComparedRun& run : runs)
        if (context.json) print_line(json_of(run));
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
