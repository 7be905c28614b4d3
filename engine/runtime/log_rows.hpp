// The rows of log lines, and their numbers.
#pragma once
#include <map>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/runtime/turn_input.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/rows.hpp"

namespace flow {

/// Used by the turn's thread.
class LogRows {
 public:
  explicit LogRows(const core::State& state) : state_(state) {}

  /// A warning gets a second row, which `flow why` finds without reading the whole log.
  void add(AttemptLog log, Batch& batch) {
    constexpr uint32_t kWarningStream = 3;  // of the executor's protocol
    constexpr size_t kWarningMax = 2'000;   // bytes
    const core::AttemptId& id = log.attempt;
    uint64_t number = next_number(id);
    LogRow row{id.attempt, log.stream, log.at, std::move(log.text), log.rank};
    if (row.stream == kWarningStream) {
      row.stream = 0;
      batch.put(Family::kv, warning_key(id.run, id.unit, id.attempt, number),
                row.text.substr(0, kWarningMax));
    }
    batch.put(Family::logs, log_key(id.run, id.unit, id.attempt, number), encode_log(row));
  }
  /// The run has ended.
  void forget(const core::RunId& run) {
    counts_.erase(counts_.lower_bound({run, 0}), counts_.upper_bound({run, UINT32_MAX}));
  }

 private:
  // The epoch comes first: an attempt on another machine continues under the next engine, which
  // does not know how many lines it has.
  uint64_t next_number(const core::AttemptId& id) {
    constexpr int kLinesBits = 40;
    auto run = state_.runs.find(id.run);
    // A rank or a worker that was disconnected may report lines of a run that has ended. The count
    // of that run is gone, so they are numbered behind all others.
    if (run == state_.runs.end() || core::is_final(run->second.status))
      return state_.epoch << kLinesBits | uint64_t{1} << (kLinesBits - 1) | late_lines_++;
    auto [count, is_new] = counts_.try_emplace({id.run, id.unit}, state_.epoch << kLinesBits);
    return count->second++;
  }

  const core::State& state_;
  // Of runs in the state: they leave in forget().
  std::map<std::pair<core::RunId, core::UnitId>, uint64_t> counts_;
  uint64_t late_lines_ = 0;
};

}  // namespace flow
