#include "engine/page/page_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "engine/base/size_units.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool matches(const RunInfo& run, const RunFilter& filter) {
  if (!filter.status.empty() && run.status != filter.status) return false;
  return page_contains(run.id, filter.text) || page_contains(run.name, filter.text) ||
         page_contains(run.pipeline, filter.text) ||
         page_contains(to_json(run.params), filter.text);
}

std::string page_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += (list.empty() ? "" : ",") + text_to_json(text);
  return "[" + list + "]";
}

const char* stream_of(const LogLine& line) {
  return line.stream == 0 ? "log" : line.stream == 1 ? "stdout" : "stderr";
}

/// JSON has no NaN and no infinity.
std::string number_json(double number) {
  return std::isfinite(number) ? fmt::format("{}", number) : "null";
}

/// Marks the lowest and the highest value of the points, and the first one that is not finite.
void keep_extremes(std::span<const MetricPoint> points, std::vector<bool>& kept, size_t offset) {
  std::optional<size_t> low, high, broken;
  for (size_t i = 0; i < points.size(); i++) {
    if (!std::isfinite(points[i].value)) {
      if (!broken) broken = i;
      continue;
    }
    if (!low || points[i].value < points[*low].value) low = i;
    if (!high || points[i].value > points[*high].value) high = i;
  }
  for (const auto& at : {low, high, broken})
    if (at) kept[offset + *at] = true;
}

/// Which points are shown of a series: the first, the last, and of each of equal parts of the rest
/// its extremes, so that no spike is lost.
std::vector<bool> points_kept(const std::vector<MetricPoint>& points, size_t limit) {
  constexpr size_t kOfPart = 3;
  const size_t parts = limit > 2 ? (limit - 2) / kOfPart : 0;
  if (points.size() <= limit || points.size() <= 2) return std::vector<bool>(points.size(), true);
  std::vector<bool> kept(points.size());
  kept.front() = kept.back() = true;
  const size_t rest = points.size() - 2;
  for (size_t part = 0; part < parts; part++) {
    size_t begin = 1 + rest * part / parts, end = 1 + rest * (part + 1) / parts;
    keep_extremes(std::span(points).subspan(begin, end - begin), kept, begin);
  }
  return kept;
}

std::string points_json(const std::vector<MetricPoint>& points, size_t limit) {
  const std::vector<bool> kept = points_kept(points, limit);
  std::string list;
  for (size_t i = 0; i < points.size(); i++) {
    if (!kept[i]) continue;
    list += fmt::format("{}[{},{},{}]", list.empty() ? "" : ",", points[i].step,
                        number_json(points[i].value), points[i].at_ms);
  }
  return "[" + list + "]";
}

/// The value of the last point; as text if JSON has no number for it, such as "nan".
std::string last_json(const std::vector<MetricPoint>& points) {
  if (points.empty()) return "null";
  double last = points.back().value;
  if (std::isnan(last)) return R"("nan")";
  return std::isfinite(last) ? number_json(last) : text_to_json(fmt::format("{}", last));
}

}  // namespace

bool is_active_status(const std::string& status) {
  return status == "pending" || status == "running" || status == "serving" || status == "waiting";
}

std::string text_or_null_json(const std::string& text) {
  return text.empty() ? "null" : text_to_json(text);
}

bool page_contains(std::string_view text, std::string_view wanted) {
  auto found = std::search(text.begin(), text.end(), wanted.begin(), wanted.end(),
                           [](char a, char b) { return lower_ascii(a) == lower_ascii(b); });
  return wanted.empty() || found != text.end();
}

std::string page_run_row(RunInfo run) {
  run.tasks.clear();
  run.result = {};
  return page_run_with_result(run);
}

std::string page_run_with_result(const RunInfo& run) {
  constexpr std::string_view kNoTasks = ",\"tasks\":[]";
  std::string json = run.json();
  size_t tasks = json.rfind(kNoTasks);
  if (tasks != std::string::npos) json.erase(tasks, kNoTasks.size());
  return json;
}

std::string page_runs(std::vector<RunInfo> runs, const RunFilter& filter, size_t limit) {
  std::string list;
  size_t matching = 0, total = runs.size();
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (!matches(*run, filter) || matching++ >= limit) continue;
    list += (list.empty() ? "" : ",") + page_run_row(std::move(*run));
  }
  return fmt::format(R"({{"total":{},"matching":{},"runs":[{}]}})", total, matching, list);
}

std::string page_graph(const PlanInfo& plan) {
  std::string list;
  for (const PlanNode& node : plan.nodes)
    list += fmt::format(R"({}{{"name":{},"task":{},"kind":{},"needs":{},"after":{}}})",
                        list.empty() ? "" : ",", text_to_json(node.name), text_to_json(node.task),
                        text_to_json(node.kind), page_list(node.needs), page_list(node.after));
  return fmt::format(R"({{"nodes":[{}]}})", list);
}

std::string page_task(const RunInfo& run, const TaskInfo& task, const std::string& why) {
  RunInfo only;
  only.tasks.push_back(task);
  std::string json = only.json();
  constexpr std::string_view kTasks = ",\"tasks\":[";
  size_t begin = json.find(kTasks) + kTasks.size();
  std::string row = json.substr(begin, json.size() - begin - 2);  // without `]}`
  return fmt::format(R"({{"run":{},"status":{},"task":{},"fraction":{},"why":{}}})",
                     text_to_json(run.id), text_to_json(run.status), row,
                     task.fraction < 0 ? "null" : number_json(task.fraction), text_to_json(why));
}

std::string page_log_line(const LogLine& line) {
  return fmt::format(
      R"({{"task":{},"tag":{},"attempt":{},"rank":{},"stream":"{}","at":{},"text":{}}})",
      text_to_json(line.task), text_or_null_json(line.tag), line.attempt, line.rank,
      stream_of(line), text_to_json(format_time(line.at_ms)), text_to_json(line.text));
}

std::string page_logs(const LogTail& tail) {
  std::string list;
  for (const auto& [at, line] : tail.lines())
    list += (list.empty() ? "" : ",") + page_log_line(line);
  return fmt::format(R"({{"total":{},"matching":{},"lines":[{}]}})", tail.total(), tail.matching(),
                     list);
}

std::string page_parts(const std::vector<ResultPart>& parts) {
  std::string list;
  for (const ResultPart& part : parts) {
    list += fmt::format(R"({}{{"path":{},"bytes":{},"digest":"{}",)", list.empty() ? "" : ",",
                        text_to_json(part.path), part.bytes, part.digest.hex());
    auto number = [&](double value) { return part.has_statistics ? number_json(value) : "null"; };
    if (part.dtype.empty()) {
      list += fmt::format(R"("name":{},"media":{},"text":{}}})", text_to_json(part.name),
                          text_or_null_json(part.media), text_to_json(part.text));
    } else {
      std::string shape;
      for (int64_t dimension : part.shape)
        shape += fmt::format("{}{}", shape.empty() ? "" : ",", dimension);
      list += fmt::format(
          R"("dtype":"{}","shape":[{}],"min":{},"max":{},"mean":{},"not_finite":{}}})", part.dtype,
          shape, number(part.min), number(part.max), number(part.mean), part.not_finite);
    }
  }
  return "[" + list + "]";
}

std::string page_attempts(const EarlierAttempts& attempts) {
  constexpr double kUsPerSecond = 1e6;
  std::string list;
  for (const auto& [task, row] : attempts.list) {
    double queue_s = static_cast<double>(row.queue_us) / kUsPerSecond;
    list += fmt::format(
        R"({}{{"task":{},"attempt":{},"outcome":{},"cause":{},"worker":{},"started":{},"finished":{},"queue_s":{},"ranks":{}}})",
        list.empty() ? "" : ",", text_to_json(task), row.attempt, text_to_json(row.outcome),
        text_or_null_json(row.cause), text_to_json(row.worker), row.assigned, row.ended,
        row.queue_us < 0 ? "null" : fmt::format("{:.3f}", queue_s), row.ranks);
  }
  return fmt::format(R"({{"total":{},"attempts":[{}]}})", attempts.total, list);
}

std::string page_metrics(const std::vector<MetricSeries>& series, size_t limit) {
  std::string list;
  for (const MetricSeries& each : series)
    list += fmt::format(
        R"({}{{"task":{},"tag":{},"metric":{},"total":{},"min":{},"max":{},"best":{},"last":{},"points":{}}})",
        list.empty() ? "" : ",", text_to_json(each.task), text_or_null_json(each.tag),
        text_to_json(each.metric), each.points.size(), number_json(each.min), number_json(each.max),
        number_json(each.best), last_json(each.points), points_json(each.points, limit));
  return fmt::format(R"({{"series":[{}]}})", list);
}

}  // namespace flow
