// Follows a state that another process writes. Keeps what it has read and reads only new records; a
// Reader reads the whole journal.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/query/reader_impl.hpp"

namespace flow {

/// Not thread-safe.
class StateFollower {
 public:
  explicit StateFollower(EngineOptions options) : options_(std::move(options)) {}

  /// Takes over what was written since the last call. Throws Failed; then the next call reads
  /// everything again.
  void refresh();
  /// Drops all data and closes the files. Open files that the writer has deleted stay on disk until
  /// then; refresh() reopens them every minute.
  void close();
  bool is_open() const { return is_open_; }

  const EngineOptions& options() const { return options_; }
  /// What the last refresh() found. As the functions of Reader; they throw Failed.
  std::vector<RunInfo> list() const { return list_runs(opened_, false); }
  RunInfo show(const std::string& selector) const { return show_run(opened_, selector); }
  /// As show(), without the tasks, which the run itself has.
  SummarizedRun summarize(const std::string& selector) const {
    return summarize_run(opened_, selector);
  }
  std::vector<MetricSeries> metrics(const std::string& selector, const std::string& task) const {
    return metrics_of_run(opened_, selector, task, "");
  }
  PlanInfo graph(const std::string& selector) const { return graph_of_run(opened_, selector); }

 private:
  void open();

  const EngineOptions options_;
  bool is_open_ = false;
  OpenedState opened_;
  uint64_t folder_ = 0;  // of the database: another one is another state
  std::chrono::steady_clock::time_point opened_at_{};
};

}  // namespace flow
