// Reads a state: rows, archived runs and active runs. The same code is used by other processes and
// by the writer.
#pragma once
#include <memory>
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
/// explain_task() for several tasks, none of them with instances. Reads earlier runs once.
std::vector<std::string> explain_tasks(const Store& store, const Blobs& blobs,
                                       const LoadedRun& loaded,
                                       const std::vector<core::UnitId>& units,
                                       InputResolver& resolver);
/// What differs between two runs, task by task.
std::string diff_runs(const Blobs& blobs, const LoadedRun& before, const LoadedRun& now,
                      InputResolver& resolver, const ExplainOptions& options);

/// A run of the state that `options` select. The state is read next to its writer.
struct OpenedRun {
  std::string state_dir;
  std::shared_ptr<Store> store;
  std::shared_ptr<Blobs> blobs;  // borrows the store
  LoadedRun loaded;              // with its tasks
};
/// Selects as Reader::show. Throws Failed, also if the run's tasks were collected.
OpenedRun open_run(const EngineOptions& options, const std::string& selector);

/// A state that was opened next to its writer, or without one.
struct OpenedState {
  std::string dir;
  bool had_writer = false;  // asked before the store is opened, because a run may end meanwhile
  std::shared_ptr<Store> store;  // null: the state has no run yet
  std::shared_ptr<Blobs> blobs;  // borrows the store
  // What the journal has, if a StateFollower of the page keeps it; else it is read each time.
  std::shared_ptr<core::State> followed;
};
/// Throws Failed.
OpenedState open_state(const EngineOptions& options);
/// The record as it is shown: without a writer an active run is interrupted.
RunRecord current_record(const OpenedState& state, RunRecord record);
/// As Reader::show.
RunInfo show_run(const OpenedState& state, const std::string& selector);
/// A run with what Reader::show has of it besides its tasks.
struct SummarizedRun {
  RunInfo info;
  LoadedRun loaded;
};
SummarizedRun summarize_run(const OpenedState& state, const std::string& selector);
/// As Reader::list.
std::vector<RunInfo> list_runs(const OpenedState& state, bool results);
/// As Reader::metrics.
std::vector<MetricSeries> metrics_of_run(const OpenedState& state, const std::string& selector,
                                         const std::string& task, const std::string& metric);
/// As Reader::graph.
PlanInfo graph_of_run(const OpenedState& state, const std::string& selector);

PlanInfo plan_info(const Plan& plan);
const char* kind_name(TaskKind kind);

}  // namespace flow
