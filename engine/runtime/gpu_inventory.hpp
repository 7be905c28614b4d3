// The GPUs of this machine: found when they are first needed, then watched for failures.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/gpu_faults.hpp"
#include "engine/worker/gpu_watch.hpp"
#include "flow/gpu.hpp"

namespace flow {

/// Thread-safe.
class GpuInventory {
 public:
  struct Hooks {
    /// Looks for the GPUs; blocks.
    std::function<MachineGpus()> discover;
    /// Makes the core know them; blocks. After an error they are looked for again.
    std::function<Status(const std::vector<Gpu>&)> publish;
    /// Starts to watch them. The watch lives until the result is dropped, and calls `on_error` on a
    /// thread of its own.
    std::function<std::shared_ptr<void>(const std::vector<Gpu>&, GpuWatch::OnError on_error)> watch;
    /// A GPU failed; must not block.
    GpuWatch::OnError on_error;
  };
  explicit GpuInventory(Hooks hooks) : hooks_(std::move(hooks)) {}
  ~GpuInventory() { stop_watch(); }

  /// With the faults since they were found. Looks for them when it is first called, and again while
  /// none is found. Blocks.
  Result<MachineGpus> gpus();
  /// No call of `on_error` after it. Not from `on_error`.
  void stop_watch();

 private:
  void note_error(const std::string& uuid, const GpuError& error);

  const Hooks hooks_;
  std::mutex mutex_;
  MachineGpus gpus_;  // none until some are found
  std::shared_ptr<void> watch_;
};

inline Result<MachineGpus> GpuInventory::gpus() {
  std::lock_guard lock(mutex_);
  if (!gpus_.gpus.empty()) return gpus_;
  MachineGpus found = hooks_.discover();
  if (!found.gpus.empty()) FLOW_TRY(hooks_.publish(found.gpus));
  gpus_ = found;
  if (!found.gpus.empty())
    watch_ = hooks_.watch(found.gpus, [this](const std::string& uuid, const GpuError& error) {
      note_error(uuid, error);
    });
  return found;
}

inline void GpuInventory::note_error(const std::string& uuid, const GpuError& error) {
  hooks_.on_error(uuid, error);
  std::lock_guard lock(mutex_);
  for (Gpu& gpu : gpus_.gpus) {
    if (gpu.uuid != uuid || !core::is_new_fault(gpu, error.is_dead)) continue;
    gpu.fault = error.fault;
    gpu.is_dead = gpu.is_dead || error.is_dead;
  }
}

// The watch's thread takes the lock: it is joined without it.
inline void GpuInventory::stop_watch() {
  std::shared_ptr<void> watch;
  {
    std::lock_guard lock(mutex_);
    watch = std::move(watch_);
  }
  watch.reset();
}

}  // namespace flow
