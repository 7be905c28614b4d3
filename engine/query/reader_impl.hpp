// Reads a state: rows, archived runs and active runs. The same code is used by other processes and
// by the writer.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow {

std::string explain_run(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                        InputResolver& resolver, const ExplainOptions& options);
std::string explain_task(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                         core::UnitId unit, InputResolver& resolver, const ExplainOptions& options);
/// What differs between two runs, task by task.
std::string diff_runs(const Blobs& blobs, const LoadedRun& before, const LoadedRun& now,
                      InputResolver& resolver, const ExplainOptions& options);

PlanInfo plan_info(const Plan& plan);
const char* kind_name(TaskKind kind);

}  // namespace flow
