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
bool goes_before(const std::vector<Gpu>& gpus, const Room& room, const GpuNeeds& needs, size_t a,
                 size_t b) {
  if (!needs.is_share()) {
    return std::tie(gpus[a].memory_bytes, a) < std::tie(gpus[b].memory_bytes, b);
  }
  return std::tie(room.gpus[a].milli_free, room.gpus[a].memory_free_bytes, a) <
         std::tie(room.gpus[b].milli_free, room.gpus[b].memory_free_bytes, b);
}

void change(const std::vector<Gpu>& gpus, Room& room, const GpuNeeds& needs,
            const std::vector<std::string>& uuids, int sign) {
  if (needs.milli == 0) return;
  for (const std::string& uuid : uuids) {
    auto at = find_gpu(gpus, uuid);
    FLOW_CHECK(at.has_value());
    room.gpus[*at].milli_free += sign * milli_of(needs);
    room.gpus[*at].memory_free_bytes += sign * needs.memory_bytes;
  }
}

}  // namespace

std::string gpu_lack_of(const State& state, const TaskDef& def) {
  bool may_be_yet_to_join = !is_home(def) && state.hosts[0].info.cpus_milli == 0;
  if (may_be_yet_to_join && def.resources.gpus_milli > 0) return "";
  const char* why_none = "`flow doctor` says what was found";
  std::string lack;
  size_t others = 0;
  for (const Host& host : state.hosts) {
    if (host.is_lost() || (is_home(def) && &host != &state.hosts[0])) continue;
    std::string here = flow::gpu_lack_of(def.resources, host.info.gpus, why_none);
    if (here.empty()) return "";
    if (lack.empty()) {
      lack = std::move(here);
    } else {
      others++;
    }
  }
  if (others > 0) lack += "; no worker has what it asks for either";
  return lack;
}

bool has_gpus(const std::vector<Gpu>& gpus, const Resources& asked) {
  if (asked.gpus_milli == 0) return true;
  GpuNeeds needs = gpu_needs_of(asked);
  auto suiting =
      std::count_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return suits(needs, gpu); });
  return static_cast<size_t>(suiting) >= needs.count();
}

bool are_sound(const std::vector<Gpu>& gpus) {
  std::set<std::string> uuids;
  return std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return !gpu.uuid.empty() && gpu.memory_bytes >= 0 && uuids.insert(gpu.uuid).second;
  });
}

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

std::vector<std::string> choose_gpus(const std::vector<Gpu>& gpus, const Room& room,
                                     const GpuNeeds& needs) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < gpus.size(); i++) {
    if (suits(needs, gpus[i]) && has_free(room.gpus[i], needs)) fitting.push_back(i);
  }
  if (fitting.size() < needs.count()) return {};
  std::sort(fitting.begin(), fitting.end(),
            [&](size_t a, size_t b) { return goes_before(gpus, room, needs, a, b); });
  fitting.resize(needs.count());
  std::sort(fitting.begin(), fitting.end());
  std::vector<std::string> uuids;
  for (size_t i : fitting) uuids.push_back(gpus[i].uuid);
  return uuids;
}

bool may_take_gpus(const std::vector<Gpu>& gpus, const Room& room, const GpuNeeds& needs,
                   const std::vector<std::string>& uuids) {
  if (uuids.size() != needs.count()) return false;
  for (size_t i = 0; i < uuids.size(); i++) {
    auto at = find_gpu(gpus, uuids[i]);
    bool is_again = std::find(uuids.begin(), uuids.begin() + static_cast<std::ptrdiff_t>(i),
                              uuids[i]) != uuids.begin() + static_cast<std::ptrdiff_t>(i);
    if (!at || is_again || !suits(needs, gpus[*at]) || !has_free(room.gpus[*at], needs))
      return false;
  }
  return true;
}

void take_gpus(const std::vector<Gpu>& gpus, Room& room, const GpuNeeds& needs,
               const std::vector<std::string>& uuids) {
  change(gpus, room, needs, uuids, -1);
}

void give_back_gpus(const std::vector<Gpu>& gpus, Room& room, const GpuNeeds& needs,
                    const std::vector<std::string>& uuids) {
  change(gpus, room, needs, uuids, 1);
}

}  // namespace flow::core
