// Saves in the store how far the state's clock is ahead of the wall clock, so that the clock
// continues after a restart.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/core/core.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Not thread-safe: used by the engine loop's thread.
class SavedClock {
 public:
  explicit SavedClock(StateClock& clock) : clock_(clock) {}

  /// Restores the clock; called once, after recovery. Returns an error if the store cannot be read.
  Status resume(const Store& store, const core::State& state) {
    auto row = store.get(Family::meta, kClockKey);
    FLOW_TRY(row);
    if (row->has_value()) saved_ = std::strtoll((*row)->c_str(), nullptr, 10);
    bool all_runs_ended = std::ranges::all_of(
        state.runs, [](const auto& each) { return core::is_final(each.second.status); });
    clock_.resume(state.at, state.at - saved_, all_runs_ended);
    return {};
  }
  /// Adds the difference to `batch` if it has changed by kChangeMin or more since the last save.
  /// Called only for a batch that also has records: the difference alone is not worth a write.
  void save(Batch& batch) {
    constexpr core::Time kChangeMin = 100;  // ms
    core::Time ahead = clock_.ahead_of_wall();
    if (std::abs(ahead - saved_) < kChangeMin) return;
    saved_ = ahead;
    batch.put(Family::meta, kClockKey, std::to_string(ahead));
  }

 private:
  StateClock& clock_;
  core::Time saved_ = 0;  // the difference in the store, ms
};

}  // namespace flow
