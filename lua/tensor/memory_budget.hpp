// Memory of tensors in addition to Lua's: counted against the same limit, and a trigger of
// collections.
#pragma once
#include <atomic>
#include <lua.hpp>
#include <thread>
#include <utility>

#include "kernels/tensor/storage.hpp"
#include "lua/state/memory.hpp"

namespace flow::lua {

/// Of one state. The state's thread charges; any thread may release.
class TensorBudget : public tensors::MemoryBudget {
 public:
  explicit TensorBudget(std::shared_ptr<VmMemory> memory)
      : held_memory_(std::move(memory)), memory_(*held_memory_) {}
  void charge(size_t bytes) override;
  void release(size_t bytes) override;
  void note_device(size_t bytes) override;
  bool collect() override;

  /// Sets the thread's current lua_State, which an allocation may have to collect.
  static void running(lua_State* L);
  /// Runs a full collection if as much was charged since the last one as was held after it.
  static void collect_if_due(lua_State* L);
  /// A tensor maps a file: it takes no memory, but holds the file until it is collected.
  static void note_mapped(size_t bytes);
  /// Whether a file was mapped since the last call.
  bool take_mapped() { return std::exchange(has_mapped_, false); }

 private:
  void collect_all(lua_State* L);

  std::shared_ptr<VmMemory> held_memory_;
  VmMemory& memory_;
  bool has_mapped_ = false;
  std::atomic<size_t> since_{0}, held_{0};     // charged since the last collection; held after it
  size_t device_since_ = 0, device_held_ = 0;  // the same for GPU memory
};

/// While it lives, tensors that this thread makes are charged to the state.
class TensorScope {
 public:
  explicit TensorScope(const std::shared_ptr<TensorBudget>& budget);
  ~TensorScope();
  TensorScope(const TensorScope&) = delete;
  TensorScope& operator=(const TensorScope&) = delete;

 private:
  std::shared_ptr<tensors::MemoryBudget> before_;
};

}  // namespace flow::lua
