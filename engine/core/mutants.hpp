#pragma once

namespace flow::core {

/// Faults that a test puts into the engine on purpose: a test that passes in spite of one proves
/// nothing. They exist only where FLOW_MUTANTS is defined; in every other build `has_mutant` is a
/// constant, and the compiler removes what depends on it.
enum class Mutant {
  none,
  admit_ignores_attempt,
  report_taken_twice,
  execute_before_commit,
  release_before_commit,
  ack_before_durable,
  timer_forgotten,
  keeps_unoffered_attempts,
  start_parks_remote_attempts,
  no_reservations,
  other_ranks_keep_running,
  other_ranks_keep_resources,
  spool_forgets_sent,
  spool_keeps_id,
  joins_without_attempts,
  releases_before_accepted,
  rejoin_takes_reports_again,
  gate_is_ignored,
  shift_error_is_ignored,
  abandoned_rollover_keeps_traffic,
};

#ifdef FLOW_MUTANTS
/// Whether the process runs with this fault: FLOW_MUTANT in its environment names it.
bool has_mutant(Mutant mutant);
#else
constexpr bool has_mutant(Mutant) { return false; }
#endif

}  // namespace flow::core
