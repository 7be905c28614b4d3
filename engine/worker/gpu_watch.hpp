// Watches for GPU failures, and measures the GPUs. A child process waits for the driver's events,
// because the driver's library may hang or crash when a GPU fails.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/gpu_samples.hpp"
#include "engine/worker/spawn.hpp"
#include "engine/worker/xids.hpp"
#include "flow/gpu.hpp"

namespace flow {

namespace wire {
class GpuSample;
}

GpuSample get_sample(const wire::GpuSample& from);

class GpuWatch {
 public:
  /// Called for each failure of the watched devices, on the watch's thread. It must not block.
  using OnError = std::function<void(const std::string& uuid, const GpuError& error)>;
  /// Called with the reason if GPU failures cannot be watched.
  using OnNote = std::function<void(std::string)>;
  /// `samples` receives what the GPUs measure, every few seconds; null: they are not asked.
  GpuWatch(std::string executor, const std::vector<Gpu>& gpus, OnError on_error, OnNote on_note,
           std::shared_ptr<GpuSamples> samples = nullptr);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

 private:
  void loop();
  /// Blocks until the child ends or this object is destroyed. Returns false if a restart of the
  /// child would fail too.
  bool listen(const ExecutorProcess& child);
  bool on_frame(std::string_view frame);
  void note(const std::string& text);
  bool wait_quit(int64_t ms) const;

  const std::string executor_;
  std::set<std::string> uuids_;  // GPUs of this machine
  const OnError on_error_;
  const OnNote on_note_;
  const std::shared_ptr<GpuSamples> samples_;
  std::string last_note_;
  int quit_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace flow
