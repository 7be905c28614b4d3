#include "engine/cli/display/task_rows.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/display.hpp"

namespace flow::cli {

namespace {

constexpr size_t kNameColumnsMax = 32;
constexpr size_t kBarColumns = 12;
constexpr size_t kBarFrom = 60;  // columns beside the names

uint64_t done_of(const Counts& c) {
  return uint64_t{c.succeeded} + c.failed + c.skipped + c.cancelled;
}

uint64_t total_of(const Counts& c) {
  return done_of(c) + c.pending + c.ready + c.running + c.waiting;
}

bool is_end(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "skipped" ||
         status == "cancelled";
}

std::string bar(double fraction) {
  size_t full = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * kBarColumns + 0.5);
  std::string text;
  for (size_t i = 0; i < kBarColumns; i++)
    text += uses_ascii() ? (i < full ? "#" : ".") : (i < full ? "█" : "░");
  return text;
}

std::string padded(std::string text, size_t columns) {
  size_t have = columns_of(text);
  if (have < columns) text.append(columns - have, ' ');
  return text;
}

/// Appends "  2 running" if there are any.
void add_count(Line& line, uint32_t count, const char* what, Color color) {
  if (count > 0) line.push_back({"  " + std::to_string(count) + " " + what, color});
}

void add_failed(Line& line, const Counts& counts) {
  uint32_t failed = counts.failed - std::min(counts.failed, counts.ignored);
  add_count(line, failed, "failed", Color::red);
  add_count(line, counts.ignored, "ignored", Color::yellow);
}

std::string done_text(const Counts& counts) {
  return std::to_string(done_of(counts)) + "/" + std::to_string(total_of(counts));
}

Color color_of(const Counts& counts) {
  if (counts.failed > counts.ignored) return Color::red;
  if (counts.running > 0) return Color::bold;
  if (done_of(counts) < total_of(counts)) return Color::none;
  return counts.cached == counts.succeeded && counts.cached > 0 ? Color::cyan : Color::green;
}

/// The order in which the rows are wanted: first those that run or wait for somebody.
int rank_of(const Counts& counts) {
  if (counts.running > 0 || counts.waiting > 0) return 0;
  if (counts.failed > 0) return 1;
  return done_of(counts) > 0 ? 2 : 3;
}

}  // namespace

size_t TaskRows::row_of(const std::string& task) {
  std::string name = without_numbers(task);
  if (last_row_ < rows_.size() && rows_[last_row_].name == name) return last_row_;
  if (rows_.size() + 1 >= kCountedTasksMax && !index_.contains(name)) name.clear();
  auto [found, is_new] = index_.try_emplace(name, rows_.size());
  if (is_new) {
    rows_.emplace_back();
    rows_.back().name = std::move(name);
  }
  return last_row_ = found->second;
}

void TaskRows::on_event(const Event& event, const std::string& shown) {
  Row& row = rows_[row_of(event.task)];
  if (event.type == "progress" || event.type == "metric") return on_report(row, event, shown);
  row.newest = event.task;
  row.instance = shown;
  if (row.noted == shown) row.note.clear();
  if (event.type == "serving") {
    row.is_service = true;
    running_.erase(event.task);
    row.note = "serves at " + event.text;
    row.noted = shown;
    return;
  }
  if (event.status == "running") return on_start(row, event);
  on_end(row, event);
  if (event.status == "waiting") {
    row.note = wait_text(event);
    row.noted = shown;
  }
}

void TaskRows::on_report(Row& row, const Event& event, const std::string& shown) {
  auto running = running_.find(event.task);
  if (running == running_.end()) return;
  if (row.reporter != shown) {
    row.reporter = shown;
    row.fraction = -1;
    row.metrics.clear();
  }
  if (event.data.kind() == Value::Kind::table) row.metrics = metrics_text(event.data);
  if (event.type == "metric") return;
  double fraction = std::clamp(event.fraction, 0.0, 1.0);
  row.fractions += fraction - std::exchange(running->second.fraction, fraction);
  row.fraction = fraction;
}

void TaskRows::on_start(Row& row, const Event& event) {
  if (row.begin_ms == 0) row.begin_ms = event.at_ms;
  Running& running = running_[event.task];
  row.fractions -= running.fraction;
  running = {static_cast<size_t>(&row - rows_.data()), event.attempt, event.at_ms, 0};
}

void TaskRows::on_end(Row& row, const Event& event) {
  auto running = running_.find(event.task);
  if (is_end(event.status)) row.end_ms = std::max(row.end_ms, event.at_ms);
  if (running == running_.end()) return;
  if (event.status == "succeeded" && !row.is_service) {
    row.ended++;
    row.ended_ms += event.at_ms - running->second.since_ms;
  }
  row.fractions -= running->second.fraction;
  running_.erase(running);
}

void TaskRows::set_counts(const std::vector<CountedTask>& counts) {
  if (counts.empty()) return;
  for (Row& row : rows_) row.counts = {};
  for (size_t i = 0; i < counts.size(); i++) {
    Row& row = rows_[row_of(counts[i].name)];
    row.counts = counts[i].counts;
    row.position = i;
  }
}

Counts TaskRows::total() const {
  Counts sum;
  for (const Row& row : rows_) {
    const Counts& c = row.counts;
    sum.succeeded += c.succeeded, sum.cached += c.cached, sum.failed += c.failed;
    sum.skipped += c.skipped, sum.cancelled += c.cancelled, sum.pending += c.pending;
    sum.ready += c.ready, sum.running += c.running, sum.waiting += c.waiting;
    sum.ignored += c.ignored;
  }
  return sum;
}

std::vector<int64_t> TaskRows::running_since(int64_t now) const {
  std::vector<int64_t> since(rows_.size(), now);
  for (const auto& [task, running] : running_)
    since[running.row] = std::min(since[running.row], running.since_ms);
  return since;
}

std::vector<size_t> TaskRows::order(int64_t now) const {
  std::vector<size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<int64_t> since = running_since(now);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    int rank = rank_of(rows_[a].counts);
    if (rank != rank_of(rows_[b].counts)) return rank < rank_of(rows_[b].counts);
    if (rank == 0) return since[a] < since[b];
    return rows_[a].end_ms > rows_[b].end_ms;
  });
  return order;
}

std::vector<Line> TaskRows::lines(int64_t now, size_t columns, size_t rows_max) const {
  std::vector<size_t> shown(rows_.size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  std::erase_if(shown, [&](size_t row) { return total_of(rows_[row].counts) == 0; });
  std::ranges::sort(shown, {}, [&](size_t row) { return rows_[row].position; });
  size_t left_out = 0;
  if (size_t all = shown.size(); all > rows_max) {
    size_t kept = rows_max > 1 ? rows_max - 1 : rows_max;
    std::vector<size_t> wanted = order(now);
    std::erase_if(wanted, [&](size_t row) { return total_of(rows_[row].counts) == 0; });
    wanted.resize(kept);
    shown = std::move(wanted);
    left_out = all - kept;
  }
  Columns widths;
  for (size_t row : shown) {
    widths.name = std::max(widths.name, columns_of(label(rows_[row])));
    widths.done = std::max(widths.done, done_text(rows_[row].counts).size());
  }
  widths.name = std::min({widths.name, kNameColumnsMax, columns / 2});
  widths.has_bar = columns >= widths.name + kBarFrom;
  std::vector<Line> lines;
  for (size_t row : shown) lines.push_back(line(rows_[row], widths, now));
  if (left_out > 0 && lines.size() < rows_max)
    lines.push_back(
        {{std::string("  ") + ellipsis() + " " + plural(left_out, "more task"), Color::dim}});
  return lines;
}

// A task with one instance has the tag of that.
std::string TaskRows::label(const Row& row) {
  if (row.name.empty()) return "other tasks";
  bool is_single = total_of(row.counts) == 1 && !row.instance.empty();
  return is_single ? row.instance : row.name;
}

// "[s3] " in the row `align`, nothing if the row is labelled so.
std::string TaskRows::instance_prefix(const Row& row, const std::string& instance) {
  if (instance == label(row)) return "";
  return (instance.starts_with(row.name) ? instance.substr(row.name.size()) : instance) + " ";
}

Line TaskRows::line(const Row& row, const Columns& widths, int64_t now) const {
  const Counts& counts = row.counts;
  Color color = color_of(counts);
  Line line = {{"  " + padded(shortened(label(row), widths.name), widths.name) + "  ", color}};
  uint64_t total = total_of(counts);
  if (widths.has_bar) {
    double done = static_cast<double>(done_of(counts)) + row.fractions;
    line.push_back({bar(done / static_cast<double>(total)) + "  ", color});
  }
  std::string done = done_text(counts);
  line.push_back(
      {std::string(widths.done - std::min(widths.done, done.size()), ' ') + done, color});
  add_count(line, counts.cached, "cached", Color::cyan);
  add_failed(line, counts);
  add_count(line, counts.skipped, "skipped", Color::dim);
  add_count(line, counts.cancelled, "cancelled", Color::dim);
  add_count(line, counts.running, "running", Color::bold);
  add_count(line, counts.waiting, "waiting", Color::yellow);
  bool is_active = counts.running + counts.waiting > 0;
  int64_t until = is_active ? now : row.end_ms;
  if (row.begin_ms != 0 && until >= row.begin_ms)
    line.push_back({"  " + format_duration(until - row.begin_ms)});
  if (is_active) add_report(line, row);
  return line;
}

void TaskRows::add_report(Line& line, const Row& row) const {
  if (!row.note.empty()) {
    line.push_back({"  " + instance_prefix(row, row.noted) + row.note, Color::yellow});
    return;
  }
  auto running = running_.find(row.newest);
  if (running != running_.end() && running->second.attempt > 1)
    line.push_back({"  " + instance_prefix(row, row.instance) + "attempt " +
                    std::to_string(running->second.attempt)});
  std::string report = instance_prefix(row, row.reporter);
  if (row.fraction >= 0) report += std::to_string(std::lround(row.fraction * 100)) + "%  ";
  report += row.metrics;
  if (row.fraction >= 0 || !row.metrics.empty()) line.push_back({"  " + report});
}

std::optional<int64_t> TaskRows::left_ms(int64_t now) const {
  double work_ms = 0;
  std::vector<double> mean_ms;
  for (const Row& row : rows_) {
    const Counts& c = row.counts;
    bool is_open = c.pending + c.ready + c.running + c.waiting > 0;
    bool is_known = row.ended >= kEstimateAfter && c.waiting == 0 && !row.is_service;
    if (is_open && !is_known) return std::nullopt;
    mean_ms.push_back(row.ended == 0 ? 0 : static_cast<double>(row.ended_ms) / row.ended);
    work_ms += mean_ms.back() * (static_cast<double>(c.pending) + c.ready);
  }
  if (running_.empty()) return std::nullopt;
  for (const auto& [task, running] : running_) {
    double spent_ms = static_cast<double>(now - running.since_ms);
    work_ms += std::max(mean_ms[running.row] - spent_ms, 0.0);
  }
  return static_cast<int64_t>(work_ms / static_cast<double>(running_.size()));
}

Line counts_line(const Counts& counts) {
  std::string done = done_text(counts) + " done";
  if (counts.cached > 0) done += " (" + std::to_string(counts.cached) + " cached)";
  Line line = {{done, Color::bold}};
  auto add = [&](uint32_t count, const char* what, Color color) {
    if (count > 0) line.push_back({", " + std::to_string(count) + " " + what, color});
  };
  add(counts.running, "running", Color::none);
  add(counts.waiting, "waiting", Color::yellow);
  add(counts.ready, "ready", Color::none);
  add(counts.pending, "pending", Color::none);
  add(counts.failed, "failed", Color::red);
  if (counts.ignored > 0)
    line.push_back({" (" + std::to_string(counts.ignored) + " ignored)", Color::yellow});
  add(counts.skipped, "skipped", Color::dim);
  add(counts.cancelled, "cancelled", Color::dim);
  return line;
}

}  // namespace flow::cli
