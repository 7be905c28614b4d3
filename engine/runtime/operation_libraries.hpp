// The libraries of operations that the embedding program has defined.
#pragma once
#include <map>
#include <mutex>
#include <string>

namespace flow {

/// Thread-safe.
class OperationLibraries {
 public:
  /// `path`: path of the shared library that contains the operations.
  void define(const std::string& name, const std::string& path) {
    std::lock_guard lock(mutex_);
    paths_[name] = path;
  }
  /// The path of the library, or "".
  std::string path_of(const std::string& name) const {
    std::lock_guard lock(mutex_);
    auto found = paths_.find(name);
    return found == paths_.end() ? "" : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> paths_;  // as many as the embedding program defines
};

}  // namespace flow
