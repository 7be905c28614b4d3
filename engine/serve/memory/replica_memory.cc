#include "engine/serve/memory/replica_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

namespace flow {

namespace {

constexpr uint64_t kStep = 1u << 20;  // sizes are multiples of it

uint64_t size_for(uint64_t bytes, uint64_t bytes_max) {
  uint64_t size = (bytes + bytes / 8 + kStep - 1) / kStep * kStep;  // the next may be larger
  return std::min(size, bytes_max);
}

/// It takes its size from the budget until nothing refers to it any more.
std::shared_ptr<SharedMemory> counted(std::unique_ptr<SharedMemory> memory,
                                      const ReplicaMemory::Budget& budget) {
  *budget.left -= memory->size();
  return {memory.release(), [left = budget.left](SharedMemory* ended) {
            const uint64_t size = ended->size();
            delete ended;
            *left += size;
          }};
}

}  // namespace

/// Outlives the memory, as outputs may.
struct ReplicaMemory::Returns {
  std::mutex mutex;
  ReplicaMemory* owner;  // null after its end
};

/// What the bytes of outputs keep.
struct ReplicaMemory::Lease {
  const std::shared_ptr<Returns> returns;
  const std::shared_ptr<SharedMemory> memory;
  const uint64_t id;

  Lease(std::shared_ptr<Returns> to, std::shared_ptr<SharedMemory> of, uint64_t number)
      : returns(std::move(to)), memory(std::move(of)), id(number) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    std::lock_guard lock(returns->mutex);
    if (returns->owner == nullptr) return;
    returns->owner->callbacks_.post([to = returns, number = id] {
      // Its end comes on this thread too, so the owner lives until the call returns.
      if (to->owner != nullptr) to->owner->return_outputs(number);
    });
  }
};

ReplicaMemory::ReplicaMemory(Budget& budget, Callbacks callbacks)
    : budget_(budget), callbacks_(std::move(callbacks)), returns_(std::make_shared<Returns>()) {
  returns_->owner = this;
}

ReplicaMemory::~ReplicaMemory() {
  std::lock_guard lock(returns_->mutex);
  returns_->owner = nullptr;
}

ReplicaMemory::Segment* ReplicaMemory::find(uint64_t id, bool is_for_outputs) {
  auto found = std::ranges::find_if(segments_, [&](const Segment& each) {
    return each.id == id && each.is_for_outputs == is_for_outputs;
  });
  return found == segments_.end() ? nullptr : &*found;
}

std::optional<TensorMemory> ReplicaMemory::take_inputs(uint64_t bytes) {
  if (bytes < kSharedBytesMin || bytes > kBytesMax) return std::nullopt;
  Segment* best = nullptr;
  for (Segment& each : segments_) {
    if (each.is_for_outputs || each.state != State::free || each.memory->size() < bytes) continue;
    if (best == nullptr || each.memory->size() < best->memory->size()) best = &each;
  }
  if (best == nullptr) {
    grow(bytes, false);
    return std::nullopt;
  }
  best->state = State::used;
  return TensorMemory{best->id, best->memory->data(), best->memory->size()};
}

void ReplicaMemory::note_outputs(uint64_t bytes) {
  if (bytes >= kSharedBytesMin && bytes <= kBytesMax) grow(bytes, true);
}

void ReplicaMemory::grow(uint64_t bytes, bool is_for_outputs) {
  size_t count = 0;
  const Segment* smallest = nullptr;  // of those that may go
  for (const Segment& each : segments_) {
    if (each.is_for_outputs != is_for_outputs || each.state == State::retired) continue;
    if (each.state == State::offered) return;  // one at a time
    count++;
    if (each.memory->size() >= bytes || (!is_for_outputs && each.state == State::used)) continue;
    if (smallest == nullptr || each.memory->size() < smallest->memory->size()) smallest = &each;
  }
  // What is too small is replaced, so that there is not one of each size that was needed once.
  if (is_unavailable_ || (count >= kCountMax && smallest == nullptr)) return;
  uint64_t size = size_for(bytes, kBytesMax);
  uint64_t freed = smallest == nullptr || is_for_outputs ? 0 : smallest->memory->size();
  if (size > *budget_.left + freed) return;
  auto created = SharedMemory::create(size);
  if (!created.ok()) {
    is_unavailable_ = true;
    return callbacks_.log(created.error().message + ": tensors are sent through the socket");
  }
  Segment segment{.id = ++last_id_,
                  .is_for_outputs = is_for_outputs,
                  .replaces = smallest == nullptr ? 0 : smallest->id,
                  .memory = counted(std::move(*created), budget_)};
  // The replica may still write to memory for outputs, until it has mapped the new one.
  if (!is_for_outputs && segment.replaces != 0) remove(segment.replaces);
  segments_.push_back(segment);
  callbacks_.offer({.id = segment.id,
                    .is_for_outputs = is_for_outputs,
                    .replaces = segment.replaces,
                    .memory = *segment.memory});
}

void ReplicaMemory::remove(uint64_t id) {
  std::erase_if(segments_, [&](const Segment& each) { return each.id == id; });
}

bool ReplicaMemory::set_mapped(uint64_t id) {
  auto found = std::ranges::find(segments_, id, &Segment::id);
  if (found == segments_.end() || found->state != State::offered) return false;
  found->state = State::free;
  if (Segment* replaced = find(found->replaces, true); replaced != nullptr) {
    if (replaced->state != State::used) {
      remove(replaced->id);
    } else {
      replaced->state = State::retired;
    }
  }
  return true;
}

bool ReplicaMemory::release_inputs(uint64_t id) {
  Segment* segment = find(id, false);
  if (segment == nullptr || segment->state != State::used) return false;
  segment->state = State::free;
  return true;
}

Bytes ReplicaMemory::outputs(uint64_t id) {
  Segment* segment = find(id, true);
  if (segment == nullptr || segment->state != State::free) return {};
  segment->state = State::used;
  auto lease = std::make_shared<const Lease>(returns_, segment->memory, id);
  return {std::string_view(segment->memory->data(), segment->memory->size()), std::move(lease)};
}

void ReplicaMemory::return_outputs(uint64_t id) {
  Segment* segment = find(id, true);
  if (segment->state == State::retired) return remove(id);
  segment->state = State::free;
  callbacks_.give_back(id);
}

}  // namespace flow
