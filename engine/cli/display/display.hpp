// Renders an active run as text: plain lines for a pipe, a frame for a terminal. Pure: takes
// events, returns text.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/cli/display/task_rows.hpp"
#include "engine/cli/display/text_style.hpp"
#include "flow/flow.hpp"

namespace flow::cli {

constexpr size_t kCachedLinesMax = 20;    // limit of lines about cached tasks in a pipe
constexpr size_t kPreviewLinesMax = 20;   // limit of lines about tasks that will run again
constexpr size_t kFailuresShownMax = 10;  // limit of failures that are explained
constexpr size_t kIgnoredLinesMax = 20;   // limit of lines about ignored failures on a terminal
constexpr int64_t kProgressLineEveryMs = 1000;  // minimum interval per task, in a pipe
constexpr size_t kReasonColumnsMax = 300;

class RunView {
 public:
  /// On a terminal, only the lines that stay above the frame are made.
  explicit RunView(std::string title, bool is_terminal = false)
      : title_(std::move(title)), is_terminal_(is_terminal) {}

  /// Takes one event. Returns the lines to print.
  std::vector<std::string> on_event(const Event& event);
  /// The color of these lines.
  static Color color_of(const Event& event);
  /// The whole error of a failure that is not ignored, for the first kFailuresShownMax failures.
  /// Call it after on_event. `columns_max`: of the line that the task wrote last.
  std::optional<std::string> failure(const Event& event, size_t columns_max) const;
  /// Whether failure() explained this task.
  bool is_explained(const std::string& task) const { return explained_.contains(task); }

  void set_counts(const std::vector<CountedTask>& counts) { rows_.set_counts(counts); }
  /// The live part in a terminal: at most `height` lines.
  std::vector<Line> frame(int64_t now_ms, size_t columns, size_t height) const;
  /// The lines of the live part that stay after the end of the run.
  std::vector<Line> last_frame(int64_t now_ms, size_t columns) const;
  bool has_services() const { return !services_.empty(); }
  bool serving() const { return has_services() && status_ == "serving"; }

 private:
  struct Task {
    int64_t since_ms = 0;
    std::string metrics;
    int64_t line_at_ms = 0;  // of the last progress line
  };
  std::vector<std::string> on_task_event(const Event& event);
  std::vector<std::string> end_lines(const Event& event, int64_t elapsed_ms, bool was_shown);
  std::vector<std::string> on_progress(const Event& event);
  std::vector<std::string> on_preview(const Event& event);
  Line total_line(int64_t now_ms) const;

  const std::string title_;
  const bool is_terminal_;
  std::string status_ = "running";
  int64_t started_ms_ = 0;
  TaskRows rows_;
  std::map<std::string, Task> running_;
  std::set<std::string> waiting_, services_;
  std::set<std::string> explained_;  // at most kFailuresShownMax
  size_t cached_lines_ = 0, preview_lines_ = 0, ignored_lines_ = 0;
};

std::string metrics_text(const Value& metrics);  // "loss=0.1234 step=3"
/// The reason why a task waits: "waits for the signal `go`: flow signal RUN go".
std::string wait_text(const Event& event);
/// Lines that show how to use a service: the metadata of its model, or what the server of a command
/// answers at its root.
std::vector<std::string> service_lines(const Event& event);
/// "4 tasks: 1 cached, 3 ran, 0 retried, 0 failed; 2.3s; state 1.2 MiB". For a run with failures it
/// needs the tasks, because only they tell which failed before they ran.
std::string summary_line(const RunInfo& run, int64_t elapsed_ms, uint64_t state_bytes);

}  // namespace flow::cli
