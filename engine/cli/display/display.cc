// Converts events to lines, and the current tasks to a frame.
#include "engine/cli/display/display.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

constexpr size_t kBarColumns = 20;
constexpr size_t kNameColumnsMax = 32;
constexpr size_t kResultColumnsMax = 2000;
constexpr size_t kReasonColumnsMax = 300;
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

std::string bar(double fraction) {
  size_t full = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * kBarColumns + 0.5);
  std::string text;
  for (size_t i = 0; i < kBarColumns; i++) text += i < full ? "█" : "░";
  return text;
}

std::string padded(std::string text, size_t columns) {
  size_t have = columns_of(text);
  if (have < columns) text.append(columns - have, ' ');
  return text;
}

/// A waiting task's event names the signal, or describes in words what it waits for; that of a
/// dynamic task is empty.
std::string wait_text(const std::string& what, const std::string& run) {
  if (what.empty()) return "waits for its calls";
  if (what.find(' ') != std::string::npos) return "waits for " + what;
  return "waits for the signal `" + what + "`: flow signal " + run + " " + what;
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

Value outlined(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor: {
      std::string shape;
      for (int64_t extent : value.as_tensor().shape) {
        shape += (shape.empty() ? "" : "x") + std::to_string(extent);
      }
      return std::string("<") + dtype_name(value.as_tensor().dtype) + " " + shape + ">";
    }
    case Value::Kind::file:
      return "<" + value.as_file().name + ", " + format_bytes(value.as_file().size) + ">";
    case Value::Kind::table: {
      Value::Table table = value.as_table();
      for (Value& item : table.list) item = outlined(item);
      for (auto& [key, field] : table.fields) field = outlined(field);
      return table;
    }
    default:
      return value;
  }
}

/// If the list to map is not a list, or a part is missing, no task ran.
uint64_t failed_attempted(const RunInfo& run) {
  auto count = std::count_if(run.tasks.begin(), run.tasks.end(), [](const TaskInfo& task) {
    return task.status == "failed" && task.attempts > 0;
  });
  return static_cast<uint64_t>(count);
}

}  // namespace

std::string result_text(const Value& result) {
  return shortened(to_json(outlined(result)), kResultColumnsMax);
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
    text += " … " + std::to_string(fields.size() - kMetricsShownMax) + " more";
  return text;
}

std::vector<std::string> service_lines(const std::string& task, const std::string& url) {
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

bool RunView::stays_on_terminal(const Event& event) {
  if (event.type == "serving" || event.type == "plan") return true;
  return event.type == "task" && (event.status == "failed" || event.status == "waiting");
}

std::vector<std::string> RunView::on_event(const Event& stored) {
  Event event = stored;
  event.task = tagged_name(stored.task, stored.tag);
  if (started_ms_ == 0 && event.type != "plan") started_ms_ = event.at_ms;
  if (event.type == "task") return on_task_event(event);
  if (event.type == "progress") return on_progress(event);
  if (event.type == "plan") return on_preview(event);
  if (event.type == "serving") {
    running_.erase(event.task);
    services_[event.task] = event.text;
    return service_lines(event.task, event.text);
  }
  if (event.type == "run") status_ = event.status;
  return {};
}

std::vector<std::string> RunView::on_task_event(const Event& event) {
  auto before = running_.find(event.task);
  int64_t elapsed_ms = before == running_.end() ? -1 : event.at_ms - before->second.since_ms;
  bool has_waited = waiting_.erase(event.task) > 0;
  if (event.status == "running") {
    Task task;
    task.attempt = event.attempt;
    task.since_ms = event.at_ms;
    running_[event.task] = task;
    if (event.attempt > 1)
      return {event.task + ": started, attempt " + std::to_string(event.attempt)};
    return {event.task + ": started"};
  }
  bool was_shown = before != running_.end() || has_waited || services_.contains(event.task);
  if (before != running_.end()) running_.erase(before);
  if (event.status == "waiting") {
    waiting_[event.task] = wait_text(event.text, event.run);
    return {event.task + ": " + waiting_[event.task]};
  }
  services_.erase(event.task);
  if (event.cached) {
    cached_lines_++;
    if (cached_lines_ > kCachedLinesMax) return {};
    if (cached_lines_ == kCachedLinesMax) return {"… more cached tasks are only counted"};
    return {event.task + ": cached"};
  }
  // A map or a when: it only gathers results.
  if (event.status == "succeeded" && !was_shown) return {};
  std::string line = event.task + ": " + event.status + (event.ignored ? " (ignored)" : "");
  if (elapsed_ms >= 0) line += " in " + format_duration(elapsed_ms);
  if (!event.text.empty() && event.status != "succeeded") line += ": " + first_line(event.text);
  return {line};
}

std::vector<std::string> RunView::on_progress(const Event& event) {
  auto found = running_.find(event.task);
  if (found == running_.end()) return {};
  Task& task = found->second;
  task.fraction = event.fraction;
  if (event.data.kind() == Value::Kind::table) task.metrics = metrics_text(event.data);
  if (task.line_at_ms != 0 && event.at_ms - task.line_at_ms < kProgressLineEvery_ms) return {};
  task.line_at_ms = event.at_ms;
  std::string line = event.task + ": " + percent(task.fraction);
  if (!task.metrics.empty()) line += " " + task.metrics;
  return {line};
}

std::vector<std::string> RunView::on_preview(const Event& event) {
  if (event.status != "runs" && event.status != "unknown") return {};
  preview_lines_++;
  if (preview_lines_ > kPreviewLinesMax) return {};
  if (preview_lines_ == kPreviewLinesMax) return {"… more that will or may run are not listed"};
  std::string line = event.task + (event.status == "runs" ? ": will run" : ": may run");
  if (!event.text.empty()) line += ": " + one_line(event.text);
  return {line};
}

std::string RunView::task_line(const std::string& name, const Task& task, int64_t now, size_t width,
                               size_t name_width) const {
  std::string line = "  " + padded(shortened(name, name_width), name_width) + "  ";
  std::string duration = format_duration(now - task.since_ms);
  if (task.attempt > 1) duration += ", attempt " + std::to_string(task.attempt);
  if (task.fraction < 0) return shortened(line + "running " + duration, width);
  line += bar(task.fraction) + " " + percent(task.fraction) + "  ";
  if (!task.metrics.empty()) line += task.metrics + "  ";
  return shortened(line + duration, width);
}

std::vector<std::string> RunView::frame(const Counts& counts, int64_t now, size_t width,
                                        size_t height) const {
  constexpr size_t kFrameLinesMin = 3;
  height = std::max(height, kFrameLinesMin);
  std::vector<std::string> lines;
  lines.push_back(shortened(
      title_ + "  " + status_ + "  " + format_duration(started_ms_ == 0 ? 0 : now - started_ms_),
      width));

  size_t room = std::min(kFrameTasksMax, height - 2);
  size_t name_width = 0;
  auto widen = [&](const auto& tasks) {
    size_t seen = 0;
    for (const auto& [name, what] : tasks) {
      if (seen++ == room) break;
      name_width = std::max(name_width, std::min(columns_of(name), kNameColumnsMax));
    }
  };
  widen(services_), widen(running_), widen(waiting_);
  size_t total = services_.size() + running_.size() + waiting_.size();
  size_t shown_max = total > room ? room - 1 : room;
  size_t shown = 0;
  auto titled = [&](const std::string& name, const std::string& text) {
    lines.push_back(
        shortened("  " + padded(shortened(name, name_width), name_width) + "  " + text, width));
    shown++;
  };
  for (const auto& [name, url] : services_) {
    if (shown < shown_max) titled(name, "serves at " + url);
  }
  for (const auto& [name, task] : running_) {
    if (shown == shown_max) break;
    lines.push_back(task_line(name, task, now, width, name_width));
    shown++;
  }
  for (const auto& [name, what] : waiting_) {
    if (shown < shown_max) titled(name, what);
  }
  if (shown < total)
    lines.push_back(shortened("  … " + std::to_string(total - shown) + " more", width));

  std::string sums = std::to_string(counts.succeeded) + " done";
  if (counts.cached > 0) sums += " (" + std::to_string(counts.cached) + " cached)";
  auto add = [&](uint32_t count, const char* what) {
    if (count > 0) sums += ", " + std::to_string(count) + " " + what;
  };
  add(counts.running, "running");
  add(counts.waiting, "waiting");
  add(counts.ready, "ready");
  add(counts.pending, "pending");
  add(counts.failed, "failed");
  if (counts.ignored > 0) sums += " (" + std::to_string(counts.ignored) + " ignored)";
  add(counts.skipped, "skipped");
  add(counts.cancelled, "cancelled");
  lines.push_back(shortened(sums, width));
  return lines;
}

}  // namespace flow::cli
