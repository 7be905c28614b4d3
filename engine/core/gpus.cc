#include "engine/core/gpus.hpp"

#include <algorithm>

namespace flow::core {

namespace {

/// Of each device, in thousandths.
int32_t milli_of(const GpuNeeds& needs) { return std::min(needs.milli, kWholeGpuMilli); }

bool has_free(const GpuRoom& room, const GpuNeeds& needs) {
  return room.milli_free >= milli_of(needs) && room.memory_free_bytes >= needs.memory_bytes;
}

/// The fullest first for a share, the smallest for whole ones; then as the machine numbers them.
bool goes_before(const State& state, const Room& room, const GpuNeeds& needs, size_t a, size_t b) {
  if (!needs.is_share()) {
    return std::tie(state.gpus[a].memory_bytes, a) < std::tie(state.gpus[b].memory_bytes, b);
  }
  return std::tie(room.gpus[a].milli_free, room.gpus[a].memory_free_bytes, a) <
         std::tie(room.gpus[b].milli_free, room.gpus[b].memory_free_bytes, b);
}

void change(const State& state, Room& room, const GpuNeeds& needs,
            const std::vector<std::string>& uuids, int sign) {
  if (needs.milli == 0) return;
  for (const std::string& uuid : uuids) {
    auto at = find_gpu(state.gpus, uuid);
    FLOW_CHECK(at.has_value());
    room.gpus[*at].milli_free += sign * milli_of(needs);
    room.gpus[*at].memory_free_bytes += sign * needs.memory_bytes;
  }
}

}  // namespace

std::optional<size_t> find_gpu(const std::vector<Gpu>& gpus, const std::string& uuid) {
  for (size_t i = 0; i < gpus.size(); i++) {
    if (gpus[i].uuid == uuid) return i;
  }
  return std::nullopt;
}

const std::vector<std::string>& gpus_of(const Unit& unit) {
  static const std::vector<std::string> none;
  return unit.extra ? unit.extra->gpus : none;
}

std::vector<GpuRoom> free_gpus(const std::vector<Gpu>& gpus) {
  std::vector<GpuRoom> room;
  for (const Gpu& gpu : gpus) room.push_back({kWholeGpuMilli, gpu.memory_bytes});
  return room;
}

std::vector<std::string> choose_gpus(const State& state, const Room& room, const GpuNeeds& needs) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < state.gpus.size(); i++) {
    if (suits(needs, state.gpus[i]) && has_free(room.gpus[i], needs)) fitting.push_back(i);
  }
  if (fitting.size() < needs.count()) return {};
  std::sort(fitting.begin(), fitting.end(),
            [&](size_t a, size_t b) { return goes_before(state, room, needs, a, b); });
  fitting.resize(needs.count());
  std::sort(fitting.begin(), fitting.end());
  std::vector<std::string> uuids;
  for (size_t i : fitting) uuids.push_back(state.gpus[i].uuid);
  return uuids;
}

bool may_take_gpus(const State& state, const Room& room, const GpuNeeds& needs,
                   const std::vector<std::string>& uuids) {
  if (uuids.size() != needs.count()) return false;
  for (size_t i = 0; i < uuids.size(); i++) {
    auto at = find_gpu(state.gpus, uuids[i]);
    bool is_again = std::find(uuids.begin(), uuids.begin() + static_cast<std::ptrdiff_t>(i),
                              uuids[i]) != uuids.begin() + static_cast<std::ptrdiff_t>(i);
    if (!at || is_again || !suits(needs, state.gpus[*at]) || !has_free(room.gpus[*at], needs))
      return false;
  }
  return true;
}

void take_gpus(const State& state, Room& room, const GpuNeeds& needs,
               const std::vector<std::string>& uuids) {
  change(state, room, needs, uuids, -1);
}

void give_back_gpus(const State& state, Room& room, const GpuNeeds& needs,
                    const std::vector<std::string>& uuids) {
  change(state, room, needs, uuids, 1);
}

}  // namespace flow::core
