// What an attempt used, as the processes that ran it measured it.
#pragma once
#include <cstdint>

namespace flow::core {

/// Below 0: unknown.
struct AttemptUsage {
  int64_t peak_memory = -1;                     // bytes
  int64_t cpu_us = -1;                          // user and system, of all its processes
  int64_t read_bytes = -1, written_bytes = -1;  // by its read and write calls
  int64_t stage_us = -1;                        // from its order to the start of its function
  int64_t commit_us = -1;  // from the end of its function to the record of its end
  bool operator==(const AttemptUsage&) const = default;
};

}  // namespace flow::core
