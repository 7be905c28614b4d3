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
    "perform_before_commit",
    "timer_forgotten",
    "keeps_what_is_not_offered",
    "start_holds_what_runs_elsewhere",
    "nothing_is_kept_for_a_gang",
    "other_ranks_run_on",
    "other_ranks_hold_on",
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
