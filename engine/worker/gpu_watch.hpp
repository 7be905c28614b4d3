// Hears from the driver when a GPU fails: a child waits for that, for the driver's library may hang
// or crash with the GPU.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/spawn.hpp"
#include "engine/worker/xids.hpp"
#include "flow/gpu.hpp"

namespace flow {

class GpuWatch {
 public:
  /// Told of each failure of these devices, on the watch's thread. It must not block.
  using OnError = std::function<void(const std::string& uuid, const GpuError& error)>;
  /// Told where nothing is heard of failures, and why.
  using OnNote = std::function<void(std::string)>;
  GpuWatch(std::string executor, const std::vector<Gpu>& gpus, OnError on_error, OnNote on_note);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

 private:
  void loop();
  /// Until the child ends or this does; false where another child would say no more.
  bool listen(const ExecutorProcess& child);
  bool take(std::string_view frame);
  void note(const std::string& text);
  bool wait_quit(int64_t ms) const;

  const std::string executor_;
  std::set<std::string> uuids_;  // of this machine
  const OnError on_error_;
  const OnNote on_note_;
  std::string last_note_;
  int quit_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace flow
