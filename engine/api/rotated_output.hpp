// Bounds a file to which the output of this process is appended, and that of other processes.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct RotatedOutputOptions {
  std::string path = {};
  std::vector<int> descriptors = {};                          // that refer to the file
  int64_t bytes_max = 16 << 20;                               // then the file is renamed to PATH.1
  std::chrono::milliseconds pause = std::chrono::seconds(1);  // between looks at its size
};

/// Looks at the file from time to time, on a thread of its own. Several processes may write it: one
/// renames it, and the others follow.
class RotatedOutput {
 public:
  /// Opens the file. Error if that fails.
  static Status redirect(const RotatedOutputOptions& options);

  /// After redirect().
  explicit RotatedOutput(RotatedOutputOptions options);
  ~RotatedOutput();
  RotatedOutput(const RotatedOutput&) = delete;
  RotatedOutput& operator=(const RotatedOutput&) = delete;

 private:
  void watch();
  void check() const;

  const RotatedOutputOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace flow
