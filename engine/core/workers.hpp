// Which place a worker has among the hosts. Units name hosts by their place, so nobody moves.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// Where the worker of that name is, or would be: behind the last, or where there is no more room
/// in place of one that was lost and that no unit names. None where there is no such place.
std::optional<WorkerId> worker_id_for(const State& state, const std::string& name);
/// What ended an attempt that is not on the host any more: `how`, as "came back without it".
Failure loss_failure(const WorkerState& worker, const std::string& how);
/// Whether the newest attempt of a unit was there.
bool is_referenced_by_unit(const State& state, WorkerId worker);
/// Labels are sorted, and each has a name of its own.
bool are_sound(const std::vector<std::pair<std::string, std::string>>& labels);
/// That no host has the labels that the task asks for, as a clause, or "". As with GPUs, a head
/// that runs nothing itself waits for who may be yet to join.
std::string selector_unsatisfiable_reason(const State& state, const TaskDef& def);
/// The same of the named resources.
std::string custom_resource_unsatisfiable_reason(const State& state, const TaskDef& def);

}  // namespace flow::core
