#include "engine/serve/memory/front_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace flow {

Status FrontMemory::add(uint64_t id, uint64_t size, bool is_for_outputs, uint64_t replaces,
                        int descriptor) {
  std::erase_if(segments_, [&](const Segment& each) { return each.id == replaces; });
  if (descriptor < 0)
    return environment_error("the descriptor of shared memory did not arrive: the front is remote");
  bool is_known =
      std::ranges::any_of(segments_, [&](const Segment& each) { return each.id == id; });
  if (is_known || segments_.size() >= kSegmentsMax) {
    ::close(descriptor);
    return internal_error("the front shares too much memory, or the same memory twice");
  }
  auto opened = SharedMemory::open(descriptor, size);
  FLOW_TRY(opened);
  segments_.push_back({.id = id,
                       .is_for_outputs = is_for_outputs,
                       .memory = std::shared_ptr<SharedMemory>(std::move(*opened))});
  return {};
}

void FrontMemory::clear() { segments_.clear(); }

FrontMemory::Segment* FrontMemory::find(uint64_t id, bool is_for_outputs) {
  auto found = std::ranges::find_if(segments_, [&](const Segment& each) {
    return each.id == id && each.is_for_outputs == is_for_outputs;
  });
  return found == segments_.end() ? nullptr : &*found;
}

Bytes FrontMemory::inputs(uint64_t id) {
  Segment* segment = find(id, false);
  if (segment == nullptr || segment->is_used) return {};
  segment->is_used = true;
  const auto& memory = segment->memory;
  return {std::string_view(memory->data(), memory->size()), memory, true};
}

std::vector<uint64_t> FrontMemory::take_released() {
  std::vector<uint64_t> released;
  for (Segment& each : segments_) {
    // Tensors hold the memory itself.
    if (each.is_for_outputs || !each.is_used || each.memory.use_count() > 1) continue;
    each.is_used = false;
    released.push_back(each.id);
  }
  return released;
}

bool FrontMemory::is_held() const {
  auto held = std::ranges::count_if(
      segments_, [](const Segment& each) { return !each.is_for_outputs && each.is_used; });
  return static_cast<size_t>(held) >= kHeldMax;
}

std::vector<uint64_t> FrontMemory::reclaim() {
  for (Segment& each : segments_) {
    if (each.is_for_outputs || !each.is_used || each.memory.use_count() == 1) continue;
    // If one of both fails, the front does not get it back, and sends tensors in frames.
    auto again = each.memory->open_again();
    if (again.ok() && each.memory->make_private().ok())
      each.memory = std::shared_ptr<SharedMemory>(std::move(*again));
  }
  return take_released();
}

std::optional<TensorMemory> FrontMemory::take_outputs(uint64_t bytes) {
  Segment* best = nullptr;
  for (Segment& each : segments_) {
    if (!each.is_for_outputs || each.is_used || each.memory->size() < bytes) continue;
    if (best == nullptr || each.memory->size() < best->memory->size()) best = &each;
  }
  if (best == nullptr) return std::nullopt;
  best->is_used = true;
  return TensorMemory{best->id, best->memory->data(), best->memory->size()};
}

bool FrontMemory::return_outputs(uint64_t id) {
  Segment* segment = find(id, true);
  if (segment == nullptr || !segment->is_used) return false;
  segment->is_used = false;
  return true;
}

}  // namespace flow
