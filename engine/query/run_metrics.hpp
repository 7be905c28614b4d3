// Metric series of a run, including those of cached tasks, and comparisons of runs.
#pragma once
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow {

/// The series of the run, whose tasks must be loaded. `task`: as Reader::metrics(). `metric`: ""
/// for all; a name that the run does not have gives no series.
Result<std::vector<MetricSeries>> metrics_of(const Store& store, const core::Run& run,
                                             const std::string& task, const std::string& metric);
/// An error that names a metric that `run`, a run's id or a phrase, does not have.
Error unknown_metric(const std::string& run, const std::string& metric,
                     const std::vector<MetricSeries>& others);

/// Whether the name of a metric says that its lowest value is the best.
bool is_lower_better(const std::string& metric);
/// Sets min, max and best.
void summarize(MetricSeries& series);

/// Leaves in each run's `params` those in which the runs differ.
void keep_differing_params(std::vector<ComparedRun>& runs);

}  // namespace flow
