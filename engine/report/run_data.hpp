// What a report has of one run, as JSON for the scripts in assets/.
#pragma once
#include <cstddef>
#include <string>

#include "flow/flow.hpp"

namespace flow {

// Bounds of a report. What exceeds them is left out, and the report says so.
constexpr size_t kReportDetailedTasks = 1000;  // with reason, values, files and their own log
constexpr size_t kLogExcerptLines = 2000;      // of the run, and of each of these tasks
constexpr size_t kReportPoints = 50'000;       // of all metrics
constexpr size_t kReportFiles = 5000;

/// The run that `selector` selects, as Reader::show. Throws Failed.
std::string report_run_data(const EngineOptions& options, const std::string& selector);

}  // namespace flow
