// What tasks of the simulation are and what they return: pure functions of keys, so that every
// order of events must come to the same results.
#pragma once
#include <memory>
#include <string>

#include "engine/core/core.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

/// A random graph of tasks, maps, whens, dynamic tasks and perhaps a service.
std::shared_ptr<const Plan> random_plan(uint64_t seed);
/// Three gangs, fixed and elastic, that begin in the middle of a crowd of small tasks. The widest
/// need all the workers that `contest.cc` brings.
std::shared_ptr<const Plan> contest_plan(uint64_t seed);
/// Those of the machine that every head finds.
std::vector<Gpu> machine_gpus();
/// The calls of the dynamic task with this key.
std::shared_ptr<const PlanFragment> calls_of(const Plan& plan, const Digest& key);

/// What a task with this key does.
struct Behaviour {
  enum class Kind { returns, fails, waits_for_signal, waits_for_deadline } kind = Kind::returns;
  uint32_t failures = 0;  // of its own before it returns; within the retries of every definition
  uint32_t steps = 0;     // journaled before it ends
  core::Time takes = 1;
};
Behaviour behaviour_of(const Digest& key);
Digest result_of(const Digest& key);

constexpr uint32_t kOwnFailuresMax = 3;  // as often every definition is tried again
constexpr uint32_t kContestants = 4;     // workers for whom the gangs of a contest compete
constexpr const char* kSignal = "go";
constexpr core::Time kDeadline = 70;  // of a wait, from when it begins

// The answers to the core's questions.
Digest key_of(const core::Run& run, core::UnitId unit);
uint32_t count_of(const core::Run& run, core::UnitId map_unit);
bool takes_then_branch(const core::Run& run, core::UnitId when_unit);
Digest gathered(const core::Run& run, core::UnitId unit);  // kNoNode: the run's result

}  // namespace flow::sim
