// Lookup of workers by name, validation of their labels, and the reasons why no worker can run a
// task. A worker's id is its index in State::workers. Units refer to workers by id, so entries keep
// their index.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// Returns the id of the worker with this name. For a new name it returns the next unused id. If
/// there is none, it returns the id of a lost worker that no unit refers to, or nullopt if each
/// lost worker is referred to.
std::optional<WorkerId> worker_id_for(const State& state, const std::string& name);
/// The failure of an attempt that its worker has lost. `how`: the end of the message, after the
/// worker's name: "came back without it".
Failure loss_failure(const WorkerState& worker, const std::string& how);
/// Whether the newest attempt of any unit was assigned to the worker.
bool is_referenced_by_unit(const State& state, WorkerId worker);
/// Whether labels are sorted and have distinct names.
bool are_sound(const std::vector<std::pair<std::string, std::string>>& labels);
/// If no worker has the labels that the task requires, returns a clause of an error message that
/// says so, else "". Also returns "" at a head with workers, because a suitable one may still join.
std::string selector_unsatisfiable_reason(const State& state, const TaskDef& def);
/// The same for the amounts of custom resources that the task requires.
std::string custom_resource_unsatisfiable_reason(const State& state, const TaskDef& def);

}  // namespace flow::core
