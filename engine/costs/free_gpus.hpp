// The time in which GPUs were idle while no task waited for one. Pure.
#pragma once
#include <cstdint>
#include <vector>

namespace flow {

/// Times are milliseconds since the Unix epoch.
struct TimeSpan {
  int64_t from = 0, until = 0;
};
struct HeldGpus {
  TimeSpan time;
  double gpus = 0;  // half a GPU is 0.5
};

/// What a machine's tasks did over time.
struct MachineUse {
  double gpus = 0;               // that it has
  std::vector<TimeSpan> worked;  // a task of a reported run ran or waited for a slot
  std::vector<TimeSpan> wanted;  // a task that requests GPUs waited for a slot
  std::vector<HeldGpus> held;    // by attempts
};

/// GPU-milliseconds in which GPUs were idle, tasks ran or waited, and no waiting task requested a
/// GPU.
double gpus_without_queue(const MachineUse& use);

}  // namespace flow
