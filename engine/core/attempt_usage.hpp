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
  // Of its GPUs, all ranks of a gang that reported by its end:
  int64_t gpu_used_us = -1;      // utilisation times time
  int64_t gpu_measured_us = -1;  // GPUs times the time in which their utilisation is known
  int64_t gpu_energy_mj = -1;
  // For a gang the sum over its ranks:
  int64_t connect_wait_us = -1;  // how long ranks were ready to connect before the last one was
  int64_t leave_wait_us = -1;    // from the ends of ranks' functions to that of the last one
  int64_t moved_bytes = -1;      // of files and large values that were sent between machines for it
  bool operator==(const AttemptUsage&) const = default;
};

/// Adds what the GPUs of `more` measured, as far as it is known.
inline void add_gpu_use(AttemptUsage& to, const AttemptUsage& more) {
  auto add = [](int64_t& sum, int64_t figure) {
    if (figure >= 0) sum = (sum < 0 ? 0 : sum) + figure;
  };
  add(to.gpu_used_us, more.gpu_used_us);
  add(to.gpu_measured_us, more.gpu_measured_us);
  add(to.gpu_energy_mj, more.gpu_energy_mj);
}

}  // namespace flow::core
