// A log file that rotates; the only user of spdlog.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow::log {

constexpr size_t kFileBytesMax = 10 << 20;
constexpr size_t kFilesMax = 5;  // the current file and older ones

/// Not thread-safe.
class LogFile {
 public:
  /// Opens or creates the file; lines are appended. An error of kind user if the path is not a
  /// regular file, of kind environment if it cannot be written.
  static Result<std::unique_ptr<LogFile>> open(const std::string& path,
                                               size_t bytes_max = kFileBytesMax);
  ~LogFile();
  /// Appends a line completely or not at all. Returns "" or the reason why it was not written.
  /// Never throws. If the file could not be opened after a rotation, a retry is made once per
  /// second.
  std::string write(std::string_view line);

 private:
  struct Impl;
  explicit LogFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow::log
