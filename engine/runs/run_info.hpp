// A core run as people see it: RunInfo with its tasks, from the state and its row.
#pragma once
#include <string>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/store/rows.hpp"
#include "flow/flow.hpp"

namespace flow {

/// The worker of what runs in the engine's own machine.
constexpr const char* kHeadWorkerName = "local";

/// Header only: what a row tells.
RunInfo info_of_record(const RunRecord& record);
/// With the result.
RunInfo summary_of_record(const RunRecord& record, InputResolver& resolver);
/// The whole, with tasks. `state` may be null; with it waiting tasks say what they wait for.
std::vector<NodeInfo> nodes_of(const core::State& state);
RunInfo info_of_run(const core::Run& run, const RunRecord& record, InputResolver& resolver,
                    const core::State* state);
RunInfo summary_of_run(const core::Run& run, const RunRecord& record,
                       InputResolver& resolver);  // without tasks
Counts counts_of(const core::Run& run);
/// "has succeeded", "is running": what a sentence says of a run of this status.
std::string status_clause(const std::string& status);
/// Of a service that is up; else "".
std::string url_of(const core::Unit& unit);
/// Of the first service that is up; else "".
std::string url_of(const core::Run& run);
/// Whether a run of this status has ended for good.
bool is_over(const std::string& status);
/// Status, times, counts and result of `run` into its row.
void update_record(const core::Run& run, RunRecord& record);

}  // namespace flow
