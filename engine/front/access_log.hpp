// The log of a service's requests: a file with one line of JSON per request.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "engine/base/thread_pool.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/request_record.hpp"

namespace flow {

/// The line of a request, with its newline. `at_ms` is when it ended, since the Unix epoch. What a
/// client has chosen is escaped, so that a line is printable ASCII.
std::string access_line(const RequestRecord& record, RequestRecord::Clock::time_point now,
                        int64_t at_ms);

/// Times as format_time() gives them. A log has many lines in a second, of which only the
/// milliseconds differ.
class TimeText {
 public:
  /// Valid until the next call.
  const std::string& of(int64_t at_ms);

 private:
  int64_t second_ = 0;
  std::string text_;
};

struct AccessLogOptions {
  std::string path = {};          // "": nothing is written
  int64_t file_max = 16 << 20;    // bytes; then PATH is renamed to PATH.1, that to PATH.2, …
  int files = 4;                  // that are kept, with the newest
  size_t pending_max = 4u << 20;  // bytes that wait for the disk; further lines are dropped
  uint64_t seed = std::random_device{}();  // of the samples
};

/// Lines are collected in memory, and written by a thread of its own: at the latest after a second,
/// and at the end. Only the loop's thread uses it, but for is_on(), construction, and destruction
/// after the loop has stopped.
class AccessLog final : public RequestLog {
 public:
  AccessLog(EventLoop& loop, AccessLogOptions options);
  ~AccessLog() override;

  /// `fraction` is for requests that no version took.
  void set_on(bool is_on, double fraction);
  bool is_on() const override { return is_on_; }
  /// Logs the record if it belongs to the sample, has a status of 500 or above and is not invalid,
  /// or is broken.
  void add(const RequestRecord& record) override;

 private:
  class File;

  bool is_sampled(const RequestRecord& record);
  void append(const std::string& line);
  void flush();

  const AccessLogOptions options_;
  std::atomic<bool> is_on_{false};
  double fraction_ = 0;
  std::minstd_rand random_;
  TimeText time_;
  std::string line_;                              // the newest; its memory is used again
  std::string lines_;                             // that no job has yet; up to kLinesMax
  uint64_t dropped_ = 0;                          // lines
  const std::shared_ptr<File> file_;              // used by the thread of writer_
  std::shared_ptr<std::atomic<size_t>> pending_;  // bytes that writer_ has, up to pending_max
  std::unique_ptr<ThreadPool> writer_;            // null before the first line
  LoopTimer timer_;
};

}  // namespace flow
