// The attempts before the newest one of each task, which the state itself has, for views.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/query/reader_impl.hpp"
#include "engine/store/rows.hpp"

namespace flow {

struct EarlierAttempt {
  std::string task;  // name of the task instance
  AttemptRow row;
};
struct EarlierAttempts {
  uint64_t total = 0;                // that are kept, also beyond the limit
  std::vector<EarlierAttempt> list;  // by begin
};

/// The `limit` newest earlier attempts of the task instance, or of all instances if `task` is "".
/// The state keeps kAttemptRowsMax per task. Throws Failed (user) if the task is unknown.
EarlierAttempts earlier_attempts(const OpenedRun& opened, const std::string& task, size_t limit);

}  // namespace flow
