// The stored points of metrics: reading a series, the points that a later attempt replaces, and
// thinning of long series. Used by the writer and by readers.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/store/row_keys.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"

namespace flow {

constexpr size_t kMetricPointsMax = 100'000;  // of a series
constexpr size_t kMetricSeriesMax = 1'000;    // of a run

struct StoredPoint {
  uint64_t number = 0;  // that of its key
  MetricRow row;
};

/// A point of an attempt at step s replaces the points of earlier attempts at step s and above.
/// `points` are in the order in which they were stored.
void drop_replaced(std::vector<StoredPoint>& points);
/// Drops every second point; the first and the last are kept.
void drop_every_second(std::vector<StoredPoint>& points);

/// The rows of a series as they are stored, in order. `stride` is 1 for a series that was never
/// thinned.
struct StoredSeries {
  std::vector<StoredPoint> points;
  uint64_t stride = 1;
};
Result<StoredSeries> read_series(const Store& store, const std::string& series_key);
/// The series whose keys start with `prefix`. Their points are not read.
Result<std::vector<MetricKey>> find_series(const Store& store, const std::string& prefix);

}  // namespace flow
