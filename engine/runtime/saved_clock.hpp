// The row of the store from which the next engine learns how far this state's clock was ahead.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/core/core.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Used by the turn's thread.
class SavedClock {
 public:
  explicit SavedClock(StateClock& clock) : clock_(clock) {}

  /// After the state was recovered: continues its time.
  Status resume(const Store& store, const core::State& state) {
    auto row = store.get(Family::meta, kClockKey);
    FLOW_TRY(row);
    if (row->has_value()) saved_ = std::strtoll((*row)->c_str(), nullptr, 10);
    bool at_rest = std::ranges::all_of(
        state.runs, [](const auto& each) { return core::is_final(each.second.status); });
    clock_.resume(state.at, state.at - saved_, at_rest);
    return {};
  }
  /// Adds the row to a batch with records, if it has changed.
  void save(Batch& batch) {
    constexpr core::Time kExactMs = 100;
    core::Time ahead = clock_.ahead_of_wall();
    if (std::abs(ahead - saved_) < kExactMs) return;
    saved_ = ahead;
    batch.put(Family::meta, kClockKey, std::to_string(ahead));
  }

 private:
  StateClock& clock_;
  core::Time saved_ = 0;  // how far the clock was ahead of the wall clock, as the store has it, ms
};

}  // namespace flow
