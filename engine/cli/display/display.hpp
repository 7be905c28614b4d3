// Renders an active run as text: plain lines for a pipe, a frame for a terminal. Pure: takes
// events, returns text.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow::cli {

constexpr size_t kFrameTasksMax = 10;            // tasks that a frame lists
constexpr size_t kCachedLinesMax = 20;           // limit of lines about cached tasks in a pipe
constexpr size_t kPreviewLinesMax = 20;          // limit of lines about tasks that will run again
constexpr int64_t kProgressLineEvery_ms = 1000;  // minimum interval per task, in a pipe

class RunView {
 public:
  explicit RunView(std::string title) : title_(std::move(title)) {}

  /// Takes one event. Returns the lines to print to a pipe.
  std::vector<std::string> on_event(const Event& event);
  /// The subset of these lines that stays on a terminal above the frame.
  static bool stays_on_terminal(const Event& event);
  /// The live part in a terminal: at most `height` lines of at most `width` columns.
  std::vector<std::string> frame(const Counts& counts, int64_t now_ms, size_t width,
                                 size_t height) const;
  bool serving() const { return !services_.empty() && status_ == "serving"; }

 private:
  struct Task {
    uint32_t attempt = 0;
    int64_t since_ms = 0;
    double fraction = -1;
    std::string metrics;
    int64_t line_at_ms = 0;  // of the last progress line
  };
  std::vector<std::string> on_task_event(const Event& event);
  std::vector<std::string> on_progress(const Event& event);
  std::vector<std::string> on_preview(const Event& event);
  std::string task_line(const std::string& name, const Task& task, int64_t now_ms, size_t width,
                        size_t name_width) const;

  std::string title_, status_ = "running";
  int64_t started_ms_ = 0;
  std::map<std::string, Task> running_;
  std::map<std::string, std::string> waiting_;   // by task: what it waits for
  std::map<std::string, std::string> services_;  // by task: its URL
  size_t cached_lines_ = 0, preview_lines_ = 0;
};

std::string metrics_text(const Value& metrics);  // "loss=0.1234 step=3"
/// As JSON, with a tensor as "<f32 64x64>" and a file as "<name, size>"; one line, cut if it is
/// long.
std::string result_text(const Value& result);
/// Lines that show how to use a service of Open Inference Protocol v2.
std::vector<std::string> service_lines(const std::string& task, const std::string& url);
/// "4 tasks: 1 cached, 3 ran, 0 retried, 0 failed; 2.3s; state 1.2 MiB". For a run with failures it
/// needs the tasks, because only they tell which failed before they ran.
std::string summary_line(const RunInfo& run, int64_t elapsed_ms, uint64_t state_bytes);

}  // namespace flow::cli
