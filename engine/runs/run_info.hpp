// Converts a run of the core and its row to RunInfo.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/store/rows.hpp"
#include "flow/flow.hpp"

namespace flow::core {
class WaitExplainer;
}

namespace flow {

/// The worker name of the engine's own machine.
constexpr const char* kHeadWorkerName = "local";

/// Without tasks and result: only what the row has.
RunInfo info_of_record(const RunRecord& record);
/// With the result.
RunInfo summary_of_record(const RunRecord& record, InputResolver& resolver);
std::vector<NodeInfo> nodes_of(const core::State& state);
/// Complete, with tasks. `state` may be null; with it, waiting tasks say what they wait for.
RunInfo info_of_run(const core::Run& run, const RunRecord& record, InputResolver& resolver,
                    const core::State* state);
/// The tasks of info_of_run().
std::vector<TaskInfo> tasks_of(const core::Run& run, const core::State* state);
/// Of a unit that is_shown(). `state` as of info_of_run(). `waits`, of this run and state, says
/// what a waiting task waits for; null leaves that out.
TaskInfo info_of_task(const core::Run& run, core::UnitId unit, const core::State* state,
                      core::WaitExplainer* waits);
/// Whether the task of the unit says what it waits for.
bool may_wait(const core::Unit& unit);
/// Whether the unit is listed among the run's tasks.
bool is_shown(const core::Run& run, core::UnitId unit);
RunInfo summary_of_run(const core::Run& run, const RunRecord& record, InputResolver& resolver,
                       const core::State* state);  // without tasks
/// The services of a run that has not ended, by what the state knows: without their traffic.
/// Without `state` all workers are kHeadWorkerName.
std::vector<ServiceInfo> services_of(const core::Run& run, const core::State* state);
Counts counts_of(const core::Run& run);
/// See flow::Run::counts_by_task().
std::vector<CountedTask> counts_by_task(const core::Run& run);
/// The verb phrase for this status: "has succeeded", "is running".
std::string status_clause(const std::string& status);
/// The URL if the unit is a running service; else "".
std::string url_of(const core::Unit& unit);
/// The URL of a service with replicas if one of them is running; else "".
std::string url_of_replicas(const core::Run& run, core::UnitId set);
/// The URL of the first running service; else "".
std::string url_of(const core::Run& run);
/// The run's rollover; without a phase if it has none, or no other run had its name.
RolloverInfo rollover_of(const core::Run& run);
/// A sentence about it; "" for none.
std::string rollover_text(const RolloverInfo& rollover);
/// The run's budget, if it has one. Without `state`, what its running attempts cost is left out.
std::optional<BudgetInfo> budget_of(const core::Run& run, const core::State* state);
/// "it has used 4.20 of 5.00 USD of its budget and was stopped: `flow resume RUN --budget "N USD"`
/// with a larger one continues it"; "" for a run that was not stopped for its budget.
std::string spent_budget_text(const core::Run& run, const core::State* state);
/// Whether this status is final.
bool is_over(const std::string& status);
/// Copies status, times, counts and result of `run` to its row.
void update_record(const core::Run& run, RunRecord& record);

}  // namespace flow
