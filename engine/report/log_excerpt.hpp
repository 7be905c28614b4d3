// The part of a run's logs that a report contains, bounded in lines and bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "flow/flow.hpp"

namespace flow {

/// By time, then in the order in which they were added to the report.
using LogLines = std::map<std::pair<int64_t, size_t>, LogLine>;

struct LogBounds {
  size_t lines_max = 0;
  size_t bytes_max = 0;  // of the texts
};

/// The last lines of a run, and those of each task that is described in detail. Counts all lines.
class LogExcerpt {
 public:
  LogExcerpt(LogBounds of_run, LogBounds of_task) : run_bounds_(of_run), task_bounds_(of_task) {}
  /// Lines come task by task. A text is cut beyond kTextMax bytes.
  void add(LogLine line, bool is_detailed);
  /// {"total":…,"counts":{"TASK":{"ATTEMPT":…}},"lines":[…]}: lines as of page_log_line(), by time.
  /// The list has the newest lines of the run without gaps, and further lines of detailed tasks.
  std::string json();

  static constexpr size_t kTextMax = 4000;

 private:
  /// Lines that may be dropped at the front.
  struct Tail {
    LogLines lines;
    size_t bytes = 0;
    void add(std::pair<int64_t, size_t> key, const LogLine& line, const LogBounds& bounds);
  };
  void end_task();

  const LogBounds run_bounds_, task_bounds_;
  size_t total_ = 0;
  std::string task_;
  Tail of_run_, of_task_;
  LogLines of_ended_tasks_;
  std::map<std::string, std::map<uint32_t, size_t>> counts_;
};

}  // namespace flow
