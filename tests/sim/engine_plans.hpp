// Random plans, and what their tasks do: functions of the keys alone, so that every order of
// events must lead to the same results.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/plan/plan.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

/// Of the simulated head. There is no such folder: what the simulation stores is small.
constexpr const char* kStateDir = "/flow-simulated-state";
constexpr const char* kGoSignal = "go";

constexpr const char* kLicence = "licence";  // a custom resource
constexpr const char* kGateTask = "check";   // true for most keys
constexpr uint32_t kOwnFailuresMax = 3;      // retries of every definition

/// Tasks, maps, whens, gangs, dynamic tasks and perhaps a service, which may have replicas.
std::shared_ptr<const Plan> random_plan(Random& random);
/// The calls of the dynamic task with this key.
PlanFragment calls_of(const Digest& key);
/// What every random plan's tasks need, if a worker also has kLicence, 2 CPUs and 1 GiB.
std::vector<Gpu> two_gpus(const std::string& machine);

/// What a task with this key does.
struct TaskBehaviour {
  bool always_fails = false, waits_for_signal = false, waits_for_timeout = false;
  uint32_t failures = 0;  // of its own before it succeeds
  uint32_t saves = 0;     // steps and checkpoints before it ends
  core::Time takes = 1;   // ms, at most, between two of its reports
};
TaskBehaviour task_behaviour(const Digest& key);

/// Whether the results of the task `name` differ from all other values.
bool is_own_result(const std::string& name);
/// The encoded result of the task `name` for this key.
std::string result_of(const std::string& name, const Digest& key);

}  // namespace flow::sim
