// Converts events to lines, and the current tasks to a frame.
#include "engine/cli/display/display.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

constexpr size_t kLastRowsMax = 10;
constexpr size_t kMetricsShownMax = 20;
constexpr size_t kMetricColumnsMax = 40;

std::string number_text(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::integer:
      return std::to_string(value.as_integer());
    case Value::Kind::number: {
      char text[32];
      std::snprintf(text, sizeof text, "%.4g", value.as_number());
      return text;
    }
    case Value::Kind::string:
      return shortened(value.as_string(), kMetricColumnsMax);
    case Value::Kind::table: {
      size_t count = value.as_table().list.size() + value.as_table().fields.size();
      if (count > kMetricsShownMax) return "<" + plural(count, "item") + ">";
      return shortened(to_json(value), kMetricColumnsMax);
    }
    default:
      return shortened(to_json(value), kMetricColumnsMax);
  }
}

std::string percent(double fraction) {
  char text[16];
  std::snprintf(text, sizeof text, "%3.0f%%", std::clamp(fraction, 0.0, 1.0) * 100);
  return text;
}

std::string first_line(const std::string& text) {
  return shortened(text.substr(0, text.find('\n')), kReasonColumnsMax);
}

/// A changed command is printed on separate lines.
std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    bool is_blank = c == ' ' || c == '\n';
    if (!is_blank || (!line.empty() && line.back() != ' ')) line += is_blank ? ' ' : c;
  }
  return shortened(line, kReasonColumnsMax);
}

/// If the list to map is not a list, or a part is missing, no task ran.
uint64_t failed_attempted(const RunInfo& run) {
  auto count = std::count_if(run.tasks.begin(), run.tasks.end(), [](const TaskInfo& task) {
    return task.status == "failed" && task.attempts > 0;
  });
  return static_cast<uint64_t>(count);
}

}  // namespace

/// A waiting task's event names the signal, or describes in words what it waits for after the
/// failure that it names too; that of a dynamic task is empty.
std::string wait_text(const Event& event) {
  const std::string& what = event.text;
  if (what.empty()) return "waits for its calls";
  if (!event.cause.empty()) return "waits for " + first_line(what);
  return "waits for the signal `" + what + "`: flow signal " + event.run + " " + shell_word(what);
}

std::string metrics_text(const Value& metrics) {
  if (metrics.kind() != Value::Kind::table) return "";
  const auto& fields = metrics.as_table().fields;
  std::string text;
  for (size_t i = 0; i < fields.size() && i < kMetricsShownMax; i++) {
    const auto& [key, value] = fields[i];
    std::string name = key.kind() == Value::Kind::string ? key.as_string() : to_json(key);
    text += (i > 0 ? " " : "") + shortened(name, kMetricColumnsMax) + "=" + number_text(value);
  }
  if (fields.size() > kMetricsShownMax)
    text += std::string(" ") + ellipsis() + " " + std::to_string(fields.size() - kMetricsShownMax) +
            " more";
  return text;
}

std::vector<std::string> service_lines(const Event& event) {
  const std::string &task = event.task, &url = event.text;
  if (event.cause == "command") return {task + ": serves at " + url, "  curl -s " + url};
  std::string model = task.substr(0, task.find('#'));
  if (size_t slash = model.rfind('/'); slash != std::string::npos) model = model.substr(slash + 1);
  return {task + ": serves at " + url, "  curl -s " + url + "/v2/models/" + model};
}

std::string summary_line(const RunInfo& run, int64_t elapsed_ms, uint64_t state_bytes) {
  const Counts& c = run.counts;
  uint64_t total = uint64_t{c.succeeded} + c.failed + c.skipped + c.cancelled + c.pending +
                   c.ready + c.running + c.waiting;
  uint64_t ran = uint64_t{c.succeeded} - c.cached + failed_attempted(run);
  std::string line = plural(total, "task") + ": " + std::to_string(c.cached) + " cached, " +
                     std::to_string(ran) + " ran, " + std::to_string(run.retried) + " retried, " +
                     std::to_string(c.failed) + " failed";
  if (c.ignored > 0) line += " (" + std::to_string(c.ignored) + " ignored)";
  if (c.skipped > 0) line += ", " + std::to_string(c.skipped) + " skipped";
  if (c.cancelled > 0) line += ", " + std::to_string(c.cancelled) + " cancelled";
  uint64_t left = uint64_t{c.pending} + c.ready + c.running + c.waiting;
  if (left > 0) line += ", " + std::to_string(left) + " left";
  return line + "; " + format_duration(elapsed_ms) + "; state " + format_bytes(state_bytes);
}

namespace {

/// Whether nothing of the event stays above the frame. Most events are such.
bool is_of_frame_only(const Event& event) {
  if (event.type == "progress" || event.type == "metric") return true;
  return event.type == "task" && event.status != "failed" && event.status != "waiting";
}

}  // namespace

std::vector<std::string> RunView::on_event(const Event& stored) {
  if (started_ms_ == 0 && stored.type != "plan") started_ms_ = stored.at_ms;
  std::string name = tagged_name(stored.task, stored.tag);
  if (is_terminal_ && !stored.task.empty() && stored.type != "plan") rows_.on_event(stored, name);
  if (is_terminal_ && is_of_frame_only(stored)) {
    if (stored.type == "task") services_.erase(name);
    return {};
  }
  Event event = stored;
  event.task = std::move(name);
  if (event.type == "task") return on_task_event(event);
  if (event.type == "progress") return on_progress(event);
  if (event.type == "plan") return on_preview(event);
  if (event.type == "serving") {
    running_.erase(event.task);
    services_.insert(event.task);
    return service_lines(event);
  }
  if (event.type == "run") {
    status_ = event.status;
    set_counts(event.counts);
  }
  return {};
}

Color RunView::color_of(const Event& event) {
  if (event.type != "task") return Color::none;
  if (event.status == "failed") return event.ignored ? Color::yellow : Color::red;
  if (event.status == "skipped" || event.status == "cancelled") return Color::dim;
  if (event.status == "waiting") return Color::yellow;
  if (event.status != "succeeded") return Color::none;
  return event.cached ? Color::cyan : Color::green;
}

std::vector<std::string> RunView::on_task_event(const Event& event) {
  auto before = running_.find(event.task);
  int64_t elapsed_ms = before == running_.end() ? -1 : event.at_ms - before->second.since_ms;
  bool has_waited = waiting_.erase(event.task) > 0;
  if (event.status == "running") {
    running_[event.task] = {event.at_ms, "", 0};
    if (event.attempt > 1)
      return {event.task + ": started, attempt " + std::to_string(event.attempt)};
    return {event.task + ": started"};
  }
  bool was_shown = before != running_.end() || has_waited || services_.contains(event.task);
  if (before != running_.end()) running_.erase(before);
  if (event.status == "waiting") {
    waiting_.insert(event.task);
    bool is_backoff = !event.cause.empty();
    if (is_terminal_ && (is_backoff || event.text.empty())) return {};
    return {event.task + ": " + wait_text(event)};
  }
  services_.erase(event.task);
  return end_lines(event, elapsed_ms, was_shown);
}

namespace {

/// It only gathers the results of others, of which one failed.
bool is_of_dependency(const Event& event) { return event.cause == "dependency"; }

}  // namespace

std::vector<std::string> RunView::end_lines(const Event& event, int64_t elapsed_ms,
                                            bool was_shown) {
  bool is_failure = event.status == "failed" && !event.ignored && !is_of_dependency(event);
  bool is_explained = is_failure && explained_.size() < kFailuresShownMax;
  if (is_explained) explained_.insert(event.task);
  bool stays = event.ignored && ignored_lines_ < kIgnoredLinesMax;
  if (is_terminal_ && !stays) return {};
  ignored_lines_ += event.ignored;
  if (event.cached) {
    cached_lines_++;
    if (cached_lines_ > kCachedLinesMax) return {};
    if (cached_lines_ == kCachedLinesMax)
      return {std::string(ellipsis()) + " more cached tasks are only counted"};
    return {event.task + ": cached"};
  }
  // A map or a when: it only gathers results.
  if (event.status == "succeeded" && !was_shown) return {};
  std::string line = event.task + ": " + event.status + (event.ignored ? " (ignored)" : "");
  if (elapsed_ms >= 0) line += " in " + format_duration(elapsed_ms);
  if (!event.text.empty() && event.status != "succeeded" && !is_explained)
    line += ": " + first_line(event.text);
  std::vector<std::string> lines = {line};
  if (event.ignored && !event.last_line.empty())
    lines.push_back("  last line: " + shortened(event.last_line, kReasonColumnsMax));
  return lines;
}

std::optional<std::string> RunView::failure(const Event& event, size_t columns_max) const {
  std::string name = tagged_name(event.task, event.tag);
  bool is_failure = event.type == "task" && event.status == "failed" && !event.ignored;
  if (!is_failure || !explained_.contains(name)) return std::nullopt;
  std::string attempts = event.attempt > 1 ? " after " + plural(event.attempt, "attempt") : "";
  std::string text = "`" + name + "` failed" + attempts + ": " + event.text;
  if (!event.evidence.empty()) text += "\n" + event.evidence;
  bool has_line = text.find(event.last_line) != std::string::npos;
  if (!has_line) {
    const std::string label = "last line: ";
    text += "\n" + label +
            shortened(event.last_line, columns_max - std::min(columns_max, label.size()));
  }
  return text;
}

std::vector<std::string> RunView::on_progress(const Event& event) {
  auto found = running_.find(event.task);
  if (found == running_.end()) return {};
  Task& task = found->second;
  if (event.data.kind() == Value::Kind::table) task.metrics = metrics_text(event.data);
  if (task.line_at_ms != 0 && event.at_ms - task.line_at_ms < kProgressLineEveryMs) return {};
  task.line_at_ms = event.at_ms;
  std::string line = event.task + ": " + percent(event.fraction);
  if (!task.metrics.empty()) line += " " + task.metrics;
  return {line};
}

std::vector<std::string> RunView::on_preview(const Event& event) {
  if (event.status != "runs" && event.status != "unknown") return {};
  preview_lines_++;
  if (preview_lines_ > kPreviewLinesMax) return {};
  if (preview_lines_ == kPreviewLinesMax)
    return {std::string(ellipsis()) + " more that will or may run are not listed"};
  std::string line = event.task + (event.status == "runs" ? ": will run" : ": may run");
  if (!event.text.empty()) line += ": " + one_line(event.text);
  return {line};
}

Line RunView::total_line(int64_t now) const {
  Line line = counts_line(rows_.total());
  line.push_back({"  " + format_duration(started_ms_ == 0 ? 0 : now - started_ms_)});
  constexpr int64_t kShownMs = 1000;
  bool is_early = now - started_ms_ < kEstimateAfterMs;
  std::optional<int64_t> left_ms = is_early ? std::nullopt : rows_.left_ms(now);
  if (left_ms && *left_ms >= kShownMs)
    line.push_back({", about " + format_duration(*left_ms - *left_ms % kShownMs) + " left"});
  return line;
}

std::vector<Line> RunView::frame(int64_t now, size_t columns, size_t height) const {
  constexpr size_t kTitleFrom = 3;  // lines
  std::vector<Line> lines;
  if (height >= kTitleFrom) lines.push_back({{title_ + "  " + status_, Color::bold}});
  size_t room = std::max<size_t>(height, 1) - 1 - lines.size();
  for (Line& line : rows_.lines(now, columns, std::min(room, kRowsMax)))
    lines.push_back(std::move(line));
  lines.push_back(total_line(now));
  return lines;
}

std::vector<Line> RunView::last_frame(int64_t now, size_t columns) const {
  return rows_.lines(now, columns, kLastRowsMax);
}

}  // namespace flow::cli
