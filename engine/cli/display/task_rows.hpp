// A row per task of a run, as the frame of a terminal shows it. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cli/display/text_style.hpp"
#include "flow/flow.hpp"

namespace flow::cli {

constexpr size_t kRowsMax = 20;              // rows that a frame shows
constexpr uint32_t kEstimateAfter = 3;       // ended attempts of each task before an estimate
constexpr int64_t kEstimateAfterMs = 5'000;  // age of the run

/// The events name calls and instances; a row stands for all of one task, as CountedTask.
class TaskRows {
 public:
  /// An event of type task, progress, metric or serving. `shown` is the name with the tag.
  void on_event(const Event& event, const std::string& shown);
  /// The newest counts of all tasks. Empty ones are ignored: the run has ended.
  void set_counts(const std::vector<CountedTask>& counts);
  /// The sum over all tasks.
  Counts total() const;

  /// At most `rows_max` lines. If there are more tasks, those that run are first, the longest
  /// running before the others, then those that failed, then the newest that ended; the last line
  /// says how many are left out.
  std::vector<Line> lines(int64_t now_ms, size_t columns, size_t rows_max) const;
  /// How long the run may still take. Unknown while a task has fewer than kEstimateAfter finished
  /// attempts, waits for a signal or serves.
  std::optional<int64_t> left_ms(int64_t now_ms) const;

 private:
  struct Row {
    std::string name;
    Counts counts;
    size_t position = 0;               // in the newest counts
    std::string newest, instance;      // task of the newest event, and its name for people
    std::string note;                  // what it waits for, or its service's address
    std::string noted;                 // the instance that the note is about
    int64_t begin_ms = 0, end_ms = 0;  // of the first attempt and of the newest end; 0: none
    uint32_t ended = 0;                // attempts that succeeded, and the sum of their durations
    int64_t ended_ms = 0;
    double fraction = -1;  // newest progress, of the instance `reporter`; -1: none
    std::string metrics, reporter;
    double fractions = 0;  // sum of the progress of the running instances
    bool is_service = false;
  };
  struct Running {
    size_t row = 0;
    uint32_t attempt = 0;
    int64_t since_ms = 0;
    double fraction = 0;
  };
  size_t row_of(const std::string& task);
  void on_report(Row& row, const Event& event, const std::string& shown);
  void on_start(Row& row, const Event& event);
  void on_end(Row& row, const Event& event);
  /// For each row the start of its longest running attempt; now if none runs.
  std::vector<int64_t> running_since(int64_t now_ms) const;
  std::vector<size_t> order(int64_t now_ms) const;
  struct Columns {
    size_t name = 0, done = 0;
    bool has_bar = false;
  };
  static std::string label(const Row& row);
  static std::string instance_prefix(const Row& row, const std::string& instance);
  Line line(const Row& row, const Columns& widths, int64_t now_ms) const;
  void add_report(Line& line, const Row& row) const;

  std::vector<Row> rows_;  // at most kCountedTasksMax
  std::unordered_map<std::string, size_t> index_;
  size_t last_row_ = 0;  // of the newest event: the instances of a map follow each other
  std::unordered_map<std::string, Running> running_;
};

/// "3/10 done (1 cached), 2 running, 4 ready".
Line counts_line(const Counts& counts);

}  // namespace flow::cli
