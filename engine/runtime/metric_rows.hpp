// The rows of points that attempts report with `ctx:metric`, and the limits of their number.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "engine/core/core.hpp"
#include "engine/runs/metric_series.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/log_rows.hpp"
#include "engine/runtime/run_event_feed.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_input.hpp"

namespace flow {

/// Used by the turn's thread. A task without metrics costs nothing. A point costs one row, which is
/// written without a sync of its own: the next durable commit, such as the attempt's end, carries
/// it.
class MetricRows {
 public:
  MetricRows(const core::State& state, const Store& store, Inbox& inbox, LogRows& logs,
             RunEventFeed& feed, StopCause& stop)
      : state_(state), store_(store), inbox_(inbox), logs_(logs), feed_(feed), stop_(stop) {}

  /// Adds the row, unless the attempt is not current or the run has too many series.
  void add(const AttemptMetric& metric, Batch& batch);
  /// The run has ended.
  void forget(const core::RunId& run) { runs_.erase(run); }

 private:
  struct Series {
    uint64_t count = 0;        // points in the store and in batches
    uint64_t arrivals = 0;     // points that were reported
    uint64_t stride = 1;       // of the points that arrive every stride-th is kept
    std::string last;          // key of the last point if it is only kept until the next; or ""
    bool is_thinning = false;  // an input that thins it is in the inbox
  };
  struct UnitSeries {
    Digest key;
    std::string prefix;                     // of the keys of its series
    std::map<std::string, Series> by_name;  // at most kMetricSeriesMax + 1
  };
  struct RunSeries {
    std::set<std::string> stored;  // keys of the series that an earlier process or attempt stored
    size_t count = 0;
    bool is_full = false;  // a series was rejected
    std::map<core::UnitId, UnitSeries> units;
  };

  RunSeries& series_of(const core::Run& run);
  UnitSeries& series_of(RunSeries& all, const core::Run& run, core::UnitId unit);
  /// Null: the run has too many series.
  Series* find_series(RunSeries& all, UnitSeries& unit, const AttemptMetric& metric, Batch& batch);
  void note_limit(const AttemptMetric& metric, Batch& batch);
  void put(UnitSeries& unit, Series& series, const AttemptMetric& metric, core::Time assigned,
           Batch& batch);
  void request_thinning(Series& series, const AttemptMetric& metric);
  /// Reads the store.
  void thin(const core::RunId& run, core::UnitId unit, const std::string& name, Batch& batch);
  StoredSeries stored_series(const std::string& series_key);
  uint64_t next_number();

  const core::State& state_;
  const Store& store_;
  Inbox& inbox_;
  LogRows& logs_;
  RunEventFeed& feed_;
  StopCause& stop_;
  std::map<core::RunId, RunSeries> runs_;  // of runs in the state: they leave in forget()
  uint64_t points_ = 0;                    // of this engine
};

}  // namespace flow
