// The JSON that the page reads. Rows of runs and tasks are as the verbs print them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/page/result_parts.hpp"
#include "engine/query/earlier_attempts.hpp"
#include "engine/query/run_logs.hpp"
#include "engine/value/json.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Whether a run with this status is executed, or would be by a writer.
bool is_active_status(const std::string& status);
/// null for "".
std::string text_or_null_json(const std::string& text);

/// A run without its tasks and its result: `flow ls --json` with `result` null.
std::string page_run_row(RunInfo run);

/// A run without its tasks. `run` has none.
std::string page_run_with_result(const RunInfo& run);

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

/// Whether the text contains the wanted one, in any case of ASCII.
bool page_contains(std::string_view text, std::string_view wanted);
/// A line of a log as one object.
std::string page_log_line(const LogLine& line);
/// {"total":…,"matching":…,"lines":[…]}
std::string page_logs(const LogTail& tail);

/// [{"path","bytes","digest"} with "dtype","shape","min","max","mean","not_finite" of a tensor, or
/// "name","media","text" of a file]. Statistics that are not known are null.
std::string page_parts(const std::vector<ResultPart>& parts);

/// {"total":…,"attempts":[{"task","attempt","outcome","cause","worker","started","finished","queue_s",
/// "ranks"}…]}: the times are in ms since the Unix epoch, the oldest attempt is first.
std::string page_attempts(const EarlierAttempts& attempts);

/// {"series":[{"task","tag","metric","total","min","max","best","points":[[step,value,at]…]}]}.
/// Of a series with more than `limit` points, the first, the last, and the lowest and highest ones
/// of equal parts of the rest.
std::string page_metrics(const std::vector<MetricSeries>& series, size_t limit);

}  // namespace flow
