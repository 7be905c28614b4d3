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
                        InputResolver& resolver);
std::string explain_task(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                         core::UnitId unit, InputResolver& resolver);
/// The differences between the key components of `now` and `before`, as sentences; empty if they
/// are equal.
std::vector<std::string> differences(const std::vector<KeyComponent>& before,
                                     const TaskDef& before_def,
                                     const std::vector<KeyComponent>& now, const TaskDef& now_def);
/// The newest run before `record` that has a unit of this name with a key.
struct PreviousUnit {
  LoadedRun loaded;
  core::UnitId unit = kNoNode;
};
std::optional<PreviousUnit> previous_unit(const Store& store, const Blobs& blobs,
                                          const RunRecord& record, const std::string& name);

PlanInfo plan_info(const Plan& plan);
const char* kind_name(TaskKind kind);

}  // namespace flow
