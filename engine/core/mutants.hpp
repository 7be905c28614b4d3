#pragma once

namespace flow::core {

/// Faults that a test puts into the engine on purpose: a test that passes in spite of one proves
/// nothing. They exist only where FLOW_MUTANTS is defined; in every other build `has_mutant` is a
/// constant, and the compiler removes what depends on it.
enum class Mutant {
  none,
  admit_ignores_attempt,
  perform_before_commit,
  timer_forgotten,
  keeps_what_is_not_offered,
  start_holds_what_runs_elsewhere,
  nothing_is_kept_for_a_gang,
  other_ranks_run_on,
  other_ranks_hold_on,
};

#ifdef FLOW_MUTANTS
/// Whether the process runs with this fault: FLOW_MUTANT in its environment names it.
bool has_mutant(Mutant mutant);
#else
constexpr bool has_mutant(Mutant) { return false; }
#endif

}  // namespace flow::core
