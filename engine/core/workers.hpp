// Lookup of workers by name, validation of their labels, and the reasons why no worker can run a
// task. A worker's id is its index in State::workers. Units refer to workers by id, so entries keep
// their index.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// Returns the id for the worker with this name: its present id if the name is known, else the
/// next unused id. If all ids are used, it returns the id of a lost worker that no unit refers to,
/// and nullopt if there is no such worker.
std::optional<WorkerId> worker_id_for(const State& state, const std::string& name);
/// The failure of an attempt that its worker no longer runs. `how` is the end of the message,
/// after the worker's name, for example "came back without it".
Failure loss_failure(const WorkerState& worker, const std::string& how);
/// Whether a unit's newest attempt was assigned to the worker, or a unit's list of failed attempts
/// or deaths names it.
bool is_referenced_by_unit(const State& state, WorkerId worker);
/// Whether labels are sorted and have distinct names.
bool are_sound(const std::vector<std::pair<std::string, std::string>>& labels);
/// If no worker has the labels that the task requires, returns why, as the end of an error message;
/// else returns "". An engine that accepts remote workers always returns "", because a suitable
/// worker may still join.
std::string selector_unsatisfiable_reason(const State& state, const Resources& requested);
/// The same for the amounts of custom resources that the task requires.
std::string custom_resource_unsatisfiable_reason(const State& state, const Resources& requested,
                                                 bool is_head_only);

}  // namespace flow::core
