// Lua's collector sees a tensor as a few bytes, so the memory of tensors is tracked here.
#include "lua/tensor/memory_budget.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/tensor/runtime.hpp"

namespace flow::lua {
namespace {

constexpr size_t kCollectFrom = size_t{64} << 20;  // bytes charged

thread_local lua_State* running_state = nullptr;

}  // namespace

void TensorBudget::running(lua_State* L) { running_state = L; }

void TensorBudget::charge(size_t bytes) {
  auto over = [&] {
    return memory_.limit != 0 &&
           memory_.used + memory_.tensors.load(std::memory_order_relaxed) + bytes > memory_.limit;
  };
  // The process's memory exceeds this count: near the limit, cached memory is freed first.
  bool near_limit = memory_.limit != 0 && since_ > memory_.limit / 8 &&
                    memory_.used + memory_.tensors + bytes > memory_.limit / 2;
  if ((near_limit || over()) && running_state != nullptr) {
    collect_all(running_state);
    tensors::trim_host_memory();
  }
  if (over()) {
    memory_.refused = true;
    memory_.rejected_peak = memory_.used + memory_.tensors + bytes;
    throw tensors::TensorError(fmt::format(
        "not enough memory for a tensor of {} bytes: this task's tensors hold {} bytes, its "
        "Lua values {}, and its limit is {}",
        bytes, memory_.tensors.load(), memory_.used, memory_.limit));
  }
  memory_.tensors.fetch_add(bytes, std::memory_order_relaxed);
  since_.fetch_add(bytes, std::memory_order_relaxed);
}

void TensorBudget::note_device(size_t bytes) { device_since_ += bytes; }

bool TensorBudget::collect() {
  if (running_state == nullptr) return false;
  collect_all(running_state);
  return true;
}

void TensorBudget::collect_all(lua_State* L) {
  lua_gc(L, LUA_GCCOLLECT);
  since_ = 0;
  held_ = memory_.tensors.load();
  device_since_ = 0;
  device_held_ = tensors::device_bytes_held();
}

void TensorBudget::release(size_t bytes) {
  memory_.tensors.fetch_sub(bytes, std::memory_order_relaxed);
}

void TensorBudget::collect_if_due(lua_State* L) {
  auto* own = static_cast<TensorBudget*>(tensors::runtime().budget.get());
  if (own == nullptr) return;
  size_t since = own->since_.load(std::memory_order_relaxed);
  bool is_due = since >= std::max(kCollectFrom, own->held_.load(std::memory_order_relaxed)) ||
                own->device_since_ >= std::max(kCollectFrom, own->device_held_);
  if (is_due) own->collect_all(L);
}

void TensorBudget::note_mapped(size_t bytes) {
  auto* own = static_cast<TensorBudget*>(tensors::runtime().budget.get());
  if (own == nullptr) return;
  own->since_.fetch_add(bytes, std::memory_order_relaxed);
  own->has_mapped_ = true;
}

TensorScope::TensorScope(const std::shared_ptr<TensorBudget>& budget)
    : before_(tensors::runtime().budget) {
  tensors::runtime().budget = budget;
}

TensorScope::~TensorScope() { tensors::runtime().budget = std::move(before_); }

}  // namespace flow::lua
