// The attempts of a run. The state has the newest one of each task instance; those before it are
// rows, and so is a last one that failed, which has its end there.
#pragma once
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Maximum number of rows of one task instance: its newest attempts. A service may start again for
/// weeks.
constexpr uint32_t kAttemptRowsMax = 1'000;

/// The rows that one record makes. Constructed before the record is applied, because it may replace
/// what a row describes. For all records but those that end an attempt without a result it costs a
/// comparison.
class AttemptHistory {
 public:
  AttemptHistory(const core::State& state, const core::Record& record);
  /// After the record was applied. `commands`: those that it made.
  void add_rows(const core::State& state, const core::Record& record,
                std::span<const core::Command> commands, Batch& batch) const;

 private:
  /// An attempt that the record may leave without a trace in the state.
  struct Candidate {
    core::RunId run;
    core::UnitId unit = 0;
    core::Phase phase = core::Phase::done;
    AttemptRow row;
  };
  void add_candidates(const core::State& state, const core::Run& run);

  std::vector<Candidate> candidates_;
};

/// The newest attempt of a unit that had one, as the state describes it now.
AttemptRow newest_attempt(const core::State& state, const core::Run& run, core::UnitId unit);
using AttemptsByUnit = std::unordered_map<core::UnitId, std::vector<AttemptRow>>;
/// The rows of the run by unit, the oldest first: a unit whose first attempt succeeded has none.
Result<AttemptsByUnit> attempt_rows_of(const Store& store, const core::Run& run);
/// All attempts by unit, the oldest first: the rows, and the newest ones of the state. A cached
/// unit has none of its own.
Result<AttemptsByUnit> attempts_of(const Store& store, const core::State& state,
                                   const core::Run& run);

}  // namespace flow
