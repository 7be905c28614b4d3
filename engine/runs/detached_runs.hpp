// Runs that continue without the process that started them, and the options that a run keeps: their
// row.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow {

/// With what the next process that writes the state resumes a run.
struct DetachedRun {
  int64_t grace_ms = RunOptions().grace_ms;
  int64_t serve_for_ms = RunOptions().serve_for_ms;
  int64_t front_lease_ms = RunOptions().front_lease_ms;
  bool is_of_head = false;      // a head executed it: it waits for the next one
  std::string problem;          // why the last such process could not; "" for none
  int64_t serve_until_ms = -1;  // when serve_for_ms is over, by the state's clock; -1: not begun
  bool is_detached = true;      // the next writer resumes it by itself; else only a request does
};

std::string encode_detached_run(const DetachedRun& run);
/// What the row lacks, or has in another form, is the default.
DetachedRun decode_detached_run(std::string_view row);
/// Nothing if the run is not detached and has no options of its own.
Result<std::optional<DetachedRun>> find_detached_run(const Store& store, const core::RunId& run);
/// Why a process could not resume the run; "" if it could, has not tried, or the row cannot be
/// read.
std::string why_not_resumed(const Store& store, const core::RunId& run);
/// Whether the run has not ended, and was not asked to stop, to be cancelled or to end.
bool should_continue(const core::Run& run);
/// The detached runs of a state that no process executes and that should_continue(), oldest first.
/// Those of a head are included only if `for_head`.
Result<std::vector<core::RunId>> left_runs(const core::State& state, const Store& store,
                                           bool for_head);

}  // namespace flow
