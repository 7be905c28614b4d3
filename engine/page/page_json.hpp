// The JSON that the page reads. Rows of runs and tasks are as the verbs print them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// Text from tasks, which may be any bytes, as a JSON string.
std::string page_text(std::string_view text);

/// A run without its tasks and its result: `flow ls --json` with `result` null.
std::string page_run_row(RunInfo run);

/// Which runs are listed.
struct RunFilter {
  std::string text;    // in the id, the name, the pipeline or the parameters; any case
  std::string status;  // "": all
};
/// {"total":…,"matching":…,"runs":[…]}: the newest `limit` of those that match, the newest first.
std::string page_runs(std::vector<RunInfo> runs, const RunFilter& filter, size_t limit);

/// {"nodes":[{"name","task","kind","needs","after"}]}
std::string page_graph(const PlanInfo& plan);

/// {"run","status","task":{…},"fraction","why"}: the row of the task as in `flow show --json`, its
/// progress, and why it waits, ran or failed.
std::string page_task(const RunInfo& run, const TaskInfo& task, const std::string& why);

/// {"total":…,"matching":…,"lines":[…]}: the last `limit` of those that contain `text`, in any
/// case.
std::string page_logs(const std::vector<LogLine>& lines, const std::string& text, size_t limit);

/// {"series":[{"task","tag","metric","total","min","max","best","points":[[step,value,at]…]}]}.
/// Of a series with more than `limit` points, evenly spaced ones, with the first and the last.
std::string page_metrics(const std::vector<MetricSeries>& series, size_t limit);

}  // namespace flow
