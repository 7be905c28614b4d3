#include "engine/core/mutants.hpp"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace flow::core {

namespace {

constexpr std::string_view kNames[] = {
    "none",
    "admit_ignores_attempt",
    "report_taken_twice",
    "execute_before_commit",
    "release_before_commit",
    "ack_before_durable",
    "timer_forgotten",
    "keeps_unoffered_attempts",
    "start_parks_remote_attempts",
    "no_reservations",
    "other_ranks_keep_running",
    "other_ranks_keep_resources",
    "spool_forgets_sent",
    "spool_keeps_id",
    "joins_without_attempts",
    "releases_before_accepted",
    "rejoin_takes_reports_again",
    "gate_is_ignored",
    "shift_error_is_ignored",
    "abandoned_rollover_keeps_traffic",
};

/// A name that is not in the list would test nothing: it ends the program.
Mutant chosen() {
  const char* name = std::getenv("FLOW_MUTANT");
  for (size_t i = 0; name != nullptr && i < std::size(kNames); i++)
    if (kNames[i] == name) return static_cast<Mutant>(i);
  std::fprintf(stderr, "FLOW_MUTANT names no fault: %s\n", name == nullptr ? "(unset)" : name);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

bool has_mutant(Mutant mutant) {
  static const Mutant the = chosen();
  return the == mutant;
}

}  // namespace flow::core
