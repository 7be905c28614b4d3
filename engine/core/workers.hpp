// Ids of workers: their index in State::workers. Units refer to workers by id, so an id never
// moves.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// The id of the worker with that name; of a new name the next free id, or if there is none that of
/// a lost worker to which no unit refers. Nothing if all ids are in use.
std::optional<WorkerId> worker_id_for(const State& state, const std::string& name);
/// The failure of an attempt that its worker no longer has: `how`, as "came back without it".
Failure loss_failure(const WorkerState& worker, const std::string& how);
/// Whether the newest attempt of some unit ran on the worker.
bool is_referenced_by_unit(const State& state, WorkerId worker);
/// Whether labels are sorted and have distinct names.
bool are_sound(const std::vector<std::pair<std::string, std::string>>& labels);
/// The labels that no worker has and the task requires, as a clause; "" if none. A head that runs
/// no tasks itself waits for workers that may still join.
std::string selector_unsatisfiable_reason(const State& state, const TaskDef& def);
/// The same for custom resources.
std::string custom_resource_unsatisfiable_reason(const State& state, const TaskDef& def);

}  // namespace flow::core
