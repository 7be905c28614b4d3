#include "engine/runtime/metric_rows.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace flow {

namespace {

constexpr uint32_t kWarningStream = 3;  // of the executor's protocol

}  // namespace

void MetricRows::add(const AttemptMetric& metric, Batch& batch) {
  const core::AttemptId& id = metric.attempt;
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || core::is_final(run->second.status)) return;
  if (id.unit >= run->second.units.size()) return;
  const core::Unit& unit = run->second.units[id.unit];
  bool is_running = unit.phase == core::Phase::running && !unit.dropped;
  if (!is_running || core::current_attempt(run->second, id.unit) != id) return;
  RunSeries& all = series_of(run->second);
  UnitSeries& of_unit = series_of(all, run->second, id.unit);
  Series* series = find_series(all, of_unit, metric, batch);
  if (series != nullptr) put(of_unit, *series, metric, unit.assigned, batch);
}

// An entry exists as long as rows of the run may wait for the disk, so this reads all rows.
MetricRows::RunSeries& MetricRows::series_of(const core::Run& run) {
  auto [found, is_new] = runs_.try_emplace(run.id);
  if (!is_new) return found->second;
  auto stored = flow::find_series(store_, metric_prefix(run.id));
  if (!stored.ok()) {
    stop_.set(stored.error());
    return found->second;
  }
  for (MetricKey& each : *stored) found->second.stored.insert(std::move(each.series));
  found->second.count = found->second.stored.size();
  return found->second;
}

MetricRows::UnitSeries& MetricRows::series_of(RunSeries& all, const core::Run& run,
                                              core::UnitId unit) {
  const Digest& key = run.units[unit].key;
  UnitSeries& found = all.units[unit];
  if (!found.prefix.empty() && found.key == key) return found;
  found = {key, metric_prefix(run.id, key, core::unit_name(run, unit)), {}};
  return found;
}

MetricRows::Series* MetricRows::find_series(RunSeries& all, UnitSeries& unit,
                                            const AttemptMetric& metric, Batch& batch) {
  auto found = unit.by_name.find(metric.name);
  if (found != unit.by_name.end()) return &found->second;
  std::string series_key = metric_series_key(unit.prefix, metric.name);
  Series series;
  if (all.stored.contains(series_key)) {
    StoredSeries stored = stored_series(series_key);
    series.count = stored.points.size();
    series.arrivals = stored.points.size() * stored.stride;
    series.stride = stored.stride;
  } else if (all.count >= kMetricSeriesMax) {
    if (!std::exchange(all.is_full, true)) note_limit(metric, batch);
    return nullptr;
  } else {
    all.count++;
    all.stored.insert(std::move(series_key));
  }
  return &unit.by_name.emplace(metric.name, std::move(series)).first->second;
}

void MetricRows::note_limit(const AttemptMetric& metric, Batch& batch) {
  std::string text = fmt::format(
      "warning: ctx:metric: the run has {} series, and no more are kept: `{}` and every further "
      "name is left out. Report fewer names, or the varying part of the name as the step",
      kMetricSeriesMax, metric.name);
  feed_.warn(metric.attempt.run, text.substr(text.find(' ') + 1));
  logs_.add({metric.attempt, 0, kWarningStream, metric.at, std::move(text)}, batch);
}

void MetricRows::put(UnitSeries& unit, Series& series, const AttemptMetric& metric,
                     core::Time assigned, Batch& batch) {
  std::string key = metric_point_key(metric_series_key(unit.prefix, metric.name), next_number());
  if (!series.last.empty()) {
    batch.erase(Family::metrics, std::exchange(series.last, ""));
    series.count--;
  }
  bool is_kept = series.arrivals++ % series.stride == 0;
  if (!is_kept) series.last = key;
  batch.put(
      Family::metrics, std::move(key),
      encode_metric({metric.step, metric.value, metric.at, assigned, metric.attempt.attempt}));
  series.count++;
  if (series.count > kMetricPointsMax && !series.is_thinning) request_thinning(series, metric);
}

void MetricRows::request_thinning(Series& series, const AttemptMetric& metric) {
  series.is_thinning = true;
  inbox_.post(
      {StoreCallback{[this, id = metric.attempt, name = metric.name](Batch& batch, core::State&) {
        thin(id.run, id.unit, name, batch);
      }}});
}

// Points that came earlier in this turn are in the batch and not in the store: they are kept.
void MetricRows::thin(const core::RunId& run, core::UnitId unit, const std::string& name,
                      Batch& batch) {
  auto all = runs_.find(run);
  if (all == runs_.end()) return;  // it has ended; readers thin what is left
  auto of_unit = all->second.units.find(unit);
  if (of_unit == all->second.units.end()) return;
  auto found = of_unit->second.by_name.find(name);
  if (found == of_unit->second.by_name.end()) return;
  Series& series = found->second;
  series.is_thinning = false;
  std::string series_key = metric_series_key(of_unit->second.prefix, name);
  StoredSeries stored = stored_series(series_key);
  uint64_t in_batch = series.count - std::min<uint64_t>(series.count, stored.points.size());
  std::vector<StoredPoint> kept = stored.points;
  drop_replaced(kept);
  if (kept.size() > kMetricPointsMax) {
    drop_every_second(kept);
    series.stride *= 2;
    batch.put(Family::metrics, series_key, encode_metric_stride(series.stride));
  }
  auto next = kept.begin();
  for (const StoredPoint& point : stored.points) {
    if (next != kept.end() && next->number == point.number) {
      ++next;
    } else {
      batch.erase(Family::metrics, metric_point_key(series_key, point.number));
    }
  }
  series.count = kept.size() + in_batch;
}

StoredSeries MetricRows::stored_series(const std::string& series_key) {
  auto stored = read_series(store_, series_key);
  if (stored.ok()) return std::move(*stored);
  stop_.set(stored.error());
  return {};
}

// The epoch comes first: numbers grow over all engines of the state.
uint64_t MetricRows::next_number() {
  constexpr int kPointsBits = 40;
  return state_.epoch << kPointsBits | points_++;
}

}  // namespace flow
