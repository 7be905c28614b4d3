// The time in which GPUs were free, by whether something wanted one. Pure.
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

/// The work and the GPU use of all machines.
struct MachineUse {
  std::vector<HeldGpus> there;   // that the machines had
  std::vector<TimeSpan> worked;  // in which a task waited for a slot or ran
  std::vector<TimeSpan> wanted;  // in which one that asks for GPUs waited for a slot
  std::vector<HeldGpus> held;    // by attempts
};

/// GPU-milliseconds that were free while tasks ran or waited.
struct FreeGpus {
  double without_queue_ms = 0;  // none that waited asked for a GPU
  double fragmented_ms = 0;     // one did, and none of the free ones, or not enough, suited it
};
FreeGpus free_gpus(const MachineUse& use);

}  // namespace flow
