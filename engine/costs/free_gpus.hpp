// The time in which GPUs were free because nothing wanted them. Pure.
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

/// The work and the GPU use of a machine.
struct MachineUse {
  double gpus = 0;               // that it has
  std::vector<TimeSpan> worked;  // in which a task waited for a slot or ran
  std::vector<TimeSpan> wanted;  // in which one that asks for GPUs waited for a slot
  std::vector<HeldGpus> held;    // by attempts
};

/// GPU-milliseconds that were free while tasks ran or waited, and none that waited asked for a GPU.
double gpus_without_queue(const MachineUse& use);

}  // namespace flow
