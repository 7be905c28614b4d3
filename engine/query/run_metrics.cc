#include "engine/query/run_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/errors.hpp"
#include "engine/runs/metric_series.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

/// Where the points of a task instance are.
struct PointsPlace {
  std::string run;     // that computed them
  std::string prefix;  // of the keys of its series
};

/// Words of names whose lowest value is the best.
const std::set<std::string>& lower_is_better_words() {
  static const std::set<std::string> words = {
      "loss", "losses",  "error",   "errors", "err",        "mse",   "rmse", "mae",
      "mape", "nll",     "bce",     "kl",     "perplexity", "ppl",   "wer",  "cer",
      "fid",  "latency", "seconds", "time",   "cost",       "regret"};
  return words;
}

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (char c : name) {
    auto letter = static_cast<unsigned char>(c);
    if (std::isalpha(letter) != 0) {
      words.back() += static_cast<char>(std::tolower(letter));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

/// The task instance itself and, of a map, its instances. All of the run if `task` is "".
Result<std::vector<core::UnitId>> units_named(const core::Run& run, const std::string& task) {
  std::vector<core::UnitId> units;
  if (task.empty()) {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) units.push_back(unit);
    return units;
  }
  auto named = find_unit(run, task);
  FLOW_TRY(named);
  units.push_back(*named);
  for (core::UnitId instance : core::instances_of(run, *named)) units.push_back(instance);
  return units;
}

/// For a cached task: where the run that computed the result keeps its series. Nothing if the cache
/// has another result now.
Result<std::optional<PointsPlace>> cached_place(const Store& store, const core::Unit& unit) {
  auto row = store.get(Family::cache, cache_key(unit.key));
  FLOW_TRY(row);
  if (!row->has_value()) return std::optional<PointsPlace>();
  auto entry = decode_cache_entry(**row);
  FLOW_TRY(entry);
  if (entry->result != unit.result) return std::optional<PointsPlace>();
  auto series = find_series(store, metric_prefix(entry->run, unit.key));
  FLOW_TRY(series);
  if (series->empty()) return std::optional<PointsPlace>();
  return std::optional(
      PointsPlace{entry->run, metric_prefix(entry->run, unit.key, series->front().task)});
}

Result<std::vector<MetricPoint>> points_of(const Store& store, const std::string& series_key) {
  auto stored = read_series(store, series_key);
  FLOW_TRY(stored);
  drop_replaced(stored->points);
  while (stored->points.size() > kMetricPointsMax) drop_every_second(stored->points);
  std::vector<MetricPoint> points;
  points.reserve(stored->points.size());
  for (const StoredPoint& point : stored->points)
    points.push_back({point.row.step, point.row.value, point.row.at});
  return points;
}

Status add_series(const Store& store, const core::Run& run, core::UnitId unit,
                  const std::string& metric, std::vector<MetricSeries>& out) {
  const core::Unit& u = run.units[unit];
  if (u.key.is_zero() || u.dropped) return {};
  std::string task = core::unit_name(run, unit);
  PointsPlace place{run.id, metric_prefix(run.id, u.key, task)};
  auto found = find_series(store, place.prefix);
  FLOW_TRY(found);
  if (found->empty() && u.cached) {
    auto cached = cached_place(store, u);
    FLOW_TRY(cached);
    if (!*cached) return {};
    place = **cached;
    found = find_series(store, place.prefix);
    FLOW_TRY(found);
  }
  std::ranges::sort(*found, {}, &MetricKey::metric);
  for (const MetricKey& each : *found) {
    if (!metric.empty() && each.metric != metric) continue;
    auto points = points_of(store, each.series);
    FLOW_TRY(points);
    if (points->empty()) continue;
    MetricSeries series{place.run, task, each.metric, core::tag_of(run, unit), std::move(*points)};
    summarize(series);
    out.push_back(std::move(series));
  }
  return {};
}

}  // namespace

bool is_lower_better(const std::string& metric) {
  std::vector<std::string> words = words_of(metric);
  return std::ranges::any_of(words, [](const std::string& word) {
    return lower_is_better_words().contains(word) || word.ends_with("loss") ||
           word.ends_with("error");
  });
}

void summarize(MetricSeries& series) {
  double none = std::numeric_limits<double>::quiet_NaN();
  series.min = series.max = none;
  for (const MetricPoint& point : series.points) {
    // fmin and fmax pass over a NaN.
    series.min = std::fmin(series.min, point.value);
    series.max = std::fmax(series.max, point.value);
  }
  series.best = is_lower_better(series.metric) ? series.min : series.max;
}

Result<std::vector<MetricSeries>> metrics_of(const Store& store, const core::Run& run,
                                             const std::string& task, const std::string& metric) {
  std::vector<MetricSeries> series;
  auto units = units_named(run, task);
  FLOW_TRY(units);
  for (core::UnitId unit : *units) FLOW_TRY(add_series(store, run, unit, metric, series));
  return series;
}

Error unknown_metric(const std::string& run, const std::string& metric,
                     const std::vector<MetricSeries>& others) {
  std::vector<std::string> names;
  for (const MetricSeries& series : others) names.push_back(series.metric);
  std::string near = nearest_name(metric, names);
  std::string hint = near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near);
  if (others.empty()) hint = ": it has no metrics at all";
  return user_error(fmt::format("{} has no metric `{}`{}", run, metric, hint));
}

namespace {

bool is_table(const Value& params) { return params.kind() == Value::Kind::table; }

/// The parameter whose name is `name` as JSON, as JSON; "" if the run has none.
std::string param_json(const RunInfo& run, const std::string& name) {
  std::string text;
  if (!is_table(run.params)) return text;
  for (const auto& [field, value] : run.params.as_table().fields)
    if (to_json(field) == name) text = to_json(value);
  return text;
}

}  // namespace

void keep_differing_params(std::vector<ComparedRun>& runs) {
  std::map<std::string, std::set<std::string>> values;  // as JSON; "" where a run has none
  for (const ComparedRun& run : runs) {
    if (!is_table(run.run.params)) continue;
    for (const auto& [name, value] : run.run.params.as_table().fields) values[to_json(name)];
  }
  for (auto& [name, found] : values)
    for (const ComparedRun& run : runs) found.insert(param_json(run.run, name));
  for (ComparedRun& run : runs) {
    std::vector<std::pair<Value, Value>> fields;
    if (is_table(run.run.params)) {
      for (const auto& [name, value] : run.run.params.as_table().fields)
        if (values[to_json(name)].size() > 1) fields.emplace_back(name, value);
    }
    run.params = Value::map(std::move(fields));
  }
}

}  // namespace flow
