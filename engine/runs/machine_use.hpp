// The use that runs made of the GPUs of all machines, computed from their attempts.
#pragma once
#include "engine/costs/free_gpus.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Adds the attempts of a run, and its tasks that wait for a slot. What runs lasts until `until`.
/// The machines worked while a run that is `reported` had such tasks.
Status add_use(const Store& store, const LoadedRun& loaded, int64_t until, bool reported,
               MachineUse& use);

}  // namespace flow
