#include "engine/runs/metric_series.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace flow {

namespace {

bool is_same_attempt(const MetricRow& a, const MetricRow& b) {
  return a.assigned == b.assigned && a.attempt == b.attempt;
}

}  // namespace

void drop_replaced(std::vector<StoredPoint>& points) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::vector<StoredPoint> kept;  // the last one first
  int64_t later_min = kNone;      // the lowest step of later attempts
  int64_t own_min = kNone;
  bool has_later = false;
  for (size_t i = points.size(); i-- > 0;) {
    const MetricRow& row = points[i].row;
    if (i + 1 < points.size() && !is_same_attempt(row, points[i + 1].row)) {
      later_min = std::min(later_min, own_min);
      own_min = kNone;
      has_later = true;
    }
    own_min = std::min(own_min, row.step);
    if (!has_later || row.step < later_min) kept.push_back(points[i]);
  }
  std::reverse(kept.begin(), kept.end());
  points = std::move(kept);
}

void drop_every_second(std::vector<StoredPoint>& points) {
  std::vector<StoredPoint> kept;
  for (size_t i = 0; i < points.size(); i++) {
    if (i % 2 == 0 || i + 1 == points.size()) kept.push_back(points[i]);
  }
  points = std::move(kept);
}

Result<StoredSeries> read_series(const Store& store, const std::string& series_key) {
  StoredSeries series;
  std::optional<Error> problem;
  auto visit = [&](std::string_view key, std::string_view value) {
    auto parsed = parse_metric_key(key);
    if (!parsed || parsed->series != series_key) return true;
    if (parsed->number) {
      auto row = decode_metric(value);
      if (row.ok()) series.points.push_back({*parsed->number, *row});
      if (!row.ok()) problem = row.error();
    } else {
      auto stride = decode_metric_stride(value);
      if (stride.ok()) series.stride = *stride;
      if (!stride.ok()) problem = stride.error();
    }
    return !problem;
  };
  FLOW_TRY(store.scan(Family::metrics, series_key, series_key, visit));
  if (problem) return *problem;
  return series;
}

Result<std::vector<MetricKey>> find_series(const Store& store, const std::string& prefix) {
  std::vector<MetricKey> found;
  std::string from = prefix;
  while (true) {
    std::optional<MetricKey> next;
    FLOW_TRY(store.scan(Family::metrics, prefix, from, [&](std::string_view key, std::string_view) {
      next = parse_metric_key(key);
      return !next;  // a foreign key is passed over
    }));
    if (!next) return found;
    from = metric_point_key(next->series, UINT64_MAX) + '\0';
    next->number.reset();
    found.push_back(std::move(*next));
  }
}

}  // namespace flow
