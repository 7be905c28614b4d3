// Reads the lines that the tasks of a run wrote.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

class Blobs;
class Store;
struct LoadedRun;

/// Calls `visit` with each line, task by task. `task_at_attempt` as of Reader::logs. Throws Failed
/// if it is unknown.
void visit_log_lines(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                     const std::string& task_at_attempt,
                     const std::function<void(LogLine line)>& visit);

/// Counts lines, and keeps the last `limit` that match, with at most kTextMax bytes of text
/// together or a single line: its memory is bounded by these.
class LogTail {
 public:
  static constexpr size_t kTextMax = size_t{4} << 20;

  explicit LogTail(size_t limit) : limit_(limit) {}
  void add(LogLine line, bool matches);

  size_t total() const { return total_; }
  size_t matching() const { return matching_; }
  /// By time, then in the order in which they were added.
  const std::map<std::pair<int64_t, size_t>, LogLine>& lines() const { return lines_; }

 private:
  void remove_first();

  const size_t limit_;
  size_t total_ = 0, matching_ = 0, text_bytes_ = 0;
  std::pair<int64_t, size_t> removed_until_{INT64_MIN, 0};
  std::map<std::pair<int64_t, size_t>, LogLine> lines_;
};

/// The last `limit` lines for whose text `matches` is true. Selects as Reader::logs, and opens the
/// state itself. Throws Failed.
LogTail log_tail(const EngineOptions& options, const std::string& run,
                 const std::string& task_at_attempt,
                 const std::function<bool(std::string_view text)>& matches, size_t limit);

}  // namespace flow
