#include "engine/core/gpu_accounting.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace flow::core {

namespace {

/// Requested share per device, in thousandths.
int32_t milli_of(const GpuRequest& request) { return std::min(request.milli, kWholeGpuMilli); }

bool has_free(const FreeGpu& free, const GpuRequest& request) {
  return free.milli_free >= milli_of(request) && free.memory_free_bytes >= request.memory_bytes;
}

using Devices = std::vector<size_t>;  // by their place on the machine

Devices fitting_of(const std::vector<Gpu>& gpus, const FreeResources& free,
                   const GpuRequest& request) {
  Devices fitting;
  for (size_t i = 0; i < gpus.size(); i++)
    if (suits(request, gpus[i]) && has_free(free.gpus[i], request)) fitting.push_back(i);
  return fitting;
}

/// Groups the devices by NVLink island.
std::map<int32_t, Devices> islands_of(const std::vector<Gpu>& gpus, const Devices& devices) {
  std::map<int32_t, Devices> islands;
  for (size_t i : devices)
    if (gpus[i].nvlink >= 0) islands[gpus[i].nvlink].push_back(i);
  std::erase_if(islands, [](const auto& island) { return island.second.size() < 2; });
  return islands;
}

/// The device with the least free; of equal ones the first in the worker's order.
Devices choose_shared(Devices fitting, const FreeResources& free) {
  auto by = [&](size_t i) {
    return std::tuple(free.gpus[i].milli_free, free.gpus[i].memory_free_bytes, i);
  };
  return {*std::min_element(fitting.begin(), fitting.end(),
                            [&](size_t a, size_t b) { return by(a) < by(b); })};
}

/// Chooses `count` devices from as few islands as possible: the smallest island that suffices; a
/// single remaining device comes from those without NVLink. Within an island the ones with the
/// least memory.
Devices choose_whole(const std::vector<Gpu>& gpus, Devices fitting, size_t count) {
  std::map<int32_t, Devices> islands = islands_of(gpus, fitting);
  auto size_of = [&](size_t i) {
    auto island = islands.find(gpus[i].nvlink);
    return island == islands.end() ? 0 : island->second.size();
  };
  auto by = [&](size_t i) {
    return std::tuple(count > 1 ? size_t{0} : size_of(i), gpus[i].memory_bytes, i);
  };
  std::sort(fitting.begin(), fitting.end(), [&](size_t a, size_t b) { return by(a) < by(b); });
  for (auto& [number, island] : islands)
    std::sort(island.begin(), island.end(), [&](size_t a, size_t b) { return by(a) < by(b); });
  std::set<size_t> chosen;
  while (count - chosen.size() > 1 && !islands.empty()) {
    size_t left = count - chosen.size();
    auto score = [left](const auto& island) {  // enough before too few; of these the most
      size_t size = island.second.size();
      return size >= left ? std::pair(0, size) : std::pair(1, SIZE_MAX - size);
    };
    auto best = std::min_element(islands.begin(), islands.end(),
                                 [&](const auto& a, const auto& b) { return score(a) < score(b); });
    const Devices& island = best->second;
    chosen.insert(island.begin(),
                  island.begin() + static_cast<std::ptrdiff_t>(std::min(left, island.size())));
    islands.erase(best);
  }
  // Devices without an island come first: each of them is alone.
  std::stable_sort(fitting.begin(), fitting.end(),
                   [&](size_t a, size_t b) { return size_of(a) < size_of(b); });
  for (size_t i : fitting) {
    if (chosen.size() == count) break;
    chosen.insert(i);
  }
  return {chosen.begin(), chosen.end()};
}

void change(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
            const std::vector<std::string>& uuids, int sign) {
  if (request.milli == 0) return;
  for (const std::string& uuid : uuids) {
    auto at = find_gpu(gpus, uuid);
    FLOW_CHECK(at.has_value());
    free.gpus[*at].milli_free += sign * milli_of(request);
    free.gpus[*at].memory_free_bytes += sign * request.memory_bytes;
  }
}

}  // namespace

std::string gpu_unsatisfiable_reason(const State& state, const Resources& requested,
                                     bool is_head_only) {
  if (requested.gpus_milli == 0 || (state.leads_workers && !is_head_only)) return "";
  const char* why_none = "`flow doctor` says what was found";
  std::string reason;
  size_t others = 0;
  for (const WorkerState& worker : state.workers) {
    if (worker.is_lost() || (is_head_only && &worker != &state.workers[0])) continue;
    std::string here = flow::gpu_unsatisfiable_reason(requested, worker.info.gpus, why_none);
    if (here.empty()) return "";
    if (reason.empty()) {
      reason = std::move(here);
    } else {
      others++;
    }
  }
  if (others > 0) reason += "; no worker has what it asks for either";
  return reason;
}

bool has_gpus(const std::vector<Gpu>& gpus, const Resources& requested) {
  if (requested.gpus_milli == 0) return true;
  GpuRequest request = gpu_request(requested);
  auto suiting =
      std::count_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return suits(request, gpu); });
  return static_cast<size_t>(suiting) >= request.count();
}

bool are_sound(const std::vector<Gpu>& gpus) {
  std::set<std::string> uuids;
  return std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return !gpu.uuid.empty() && gpu.memory_bytes >= 0 && gpu.nvlink >= -1 &&
           (!gpu.is_dead || !gpu.fault.empty()) && uuids.insert(gpu.uuid).second;
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
  return unit.detail ? unit.detail->gpus : none;
}

std::vector<FreeGpu> free_gpus(const std::vector<Gpu>& gpus) {
  std::vector<FreeGpu> free;
  for (const Gpu& gpu : gpus) free.push_back({kWholeGpuMilli, gpu.memory_bytes});
  return free;
}

std::vector<std::string> choose_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                                     const GpuRequest& request) {
  Devices fitting = fitting_of(gpus, free, request);
  if (fitting.size() < request.count()) return {};
  Devices chosen = request.is_share() ? choose_shared(std::move(fitting), free)
                                      : choose_whole(gpus, std::move(fitting), request.count());
  std::vector<std::string> uuids;
  for (size_t i : chosen) uuids.push_back(gpus[i].uuid);
  return uuids;
}

bool has_island_for(const std::vector<Gpu>& gpus, const FreeResources& free,
                    const GpuRequest& request) {
  if (request.count() < 2) return true;
  auto islands = islands_of(gpus, fitting_of(gpus, free, request));
  return std::any_of(islands.begin(), islands.end(),
                     [&](const auto& island) { return island.second.size() >= request.count(); });
}

bool may_allocate_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                       const GpuRequest& request, const std::vector<std::string>& uuids) {
  if (uuids.size() != request.count()) return false;
  for (size_t i = 0; i < uuids.size(); i++) {
    auto at = find_gpu(gpus, uuids[i]);
    bool is_again = std::find(uuids.begin(), uuids.begin() + static_cast<std::ptrdiff_t>(i),
                              uuids[i]) != uuids.begin() + static_cast<std::ptrdiff_t>(i);
    if (!at || is_again || !suits(request, gpus[*at]) || !has_free(free.gpus[*at], request))
      return false;
  }
  return true;
}

void allocate_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
                   const std::vector<std::string>& uuids) {
  change(gpus, free, request, uuids, -1);
}

void release_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
                  const std::vector<std::string>& uuids) {
  change(gpus, free, request, uuids, 1);
}

}  // namespace flow::core
