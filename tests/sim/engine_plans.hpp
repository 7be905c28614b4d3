// Small random plans, and what their tasks do: functions of the keys alone, so that every order of
// events must lead to the same results.
#pragma once
#include <memory>
#include <string>

#include "engine/core/types.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

/// Of the simulated head. There is no such folder: what the simulation stores is small.
constexpr const char* kStateDir = "/flow-simulated-state";
constexpr const char* kGoSignal = "go";

std::shared_ptr<const Plan> small_plan(Random& random);

/// What a task with this key does.
struct TaskBehaviour {
  bool always_fails = false, waits_for_signal = false, waits_for_timeout = false;
  uint32_t failures = 0;  // of its own before it succeeds
  uint32_t saves = 0;     // steps and checkpoints before it ends
  core::Time takes = 1;   // ms, at most, between two of its reports
};
TaskBehaviour task_behaviour(const Digest& key);

/// The encoded result of the task `name` for this key.
std::string result_of(const std::string& name, const Digest& key);

}  // namespace flow::sim
