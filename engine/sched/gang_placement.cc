#include "engine/sched/gang_placement.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"

namespace flow::core {

namespace {

/// A host and how many ranks it has room for.
struct Stand {
  WorkerId worker = 0;
  uint32_t ranks = 0;
  int32_t cpus_free_milli = 0;
};

std::string rack_of(const WorkerInfo& worker) {
  const std::string* rack = label_of(worker.labels, "rack");
  return rack == nullptr ? "" : *rack;
}

bool has_gpus_to_spare(const State& state, WorkerId worker, const SchedulingClass& request) {
  return request.gpu.milli == 0 && !state.workers[worker].info.gpus.empty();
}

/// As few as have room for all, the roomiest first, and what each takes; those that there are where
/// that is too few.
std::vector<Stand> fewest(std::vector<Stand> stands, uint32_t ranks) {
  std::sort(stands.begin(), stands.end(), [](const Stand& a, const Stand& b) {
    return std::tuple(b.ranks, a.worker) < std::tuple(a.ranks, b.worker);
  });
  size_t count = 0;
  for (; count < stands.size() && ranks > 0; count++) {
    stands[count].ranks = std::min(stands[count].ranks, ranks);
    ranks -= stands[count].ranks;
  }
  stands.resize(count);
  return stands;
}

/// The fullest host that has room for all, as the only one, or none. Who needs no GPU leaves those
/// that have some to others.
std::vector<Stand> on_one(const State& state, const std::vector<Stand>& stands, uint32_t ranks,
                          const SchedulingClass& request) {
  const Stand* best = nullptr;
  auto price = [&](const Stand& stand) {
    return std::tuple(has_gpus_to_spare(state, stand.worker, request), stand.cpus_free_milli,
                      stand.worker);
  };
  for (const Stand& stand : stands)
    if (stand.ranks >= ranks && (best == nullptr || price(stand) < price(*best))) best = &stand;
  return best == nullptr ? std::vector<Stand>{} : fewest({*best}, ranks);
}

uint64_t total_ranks(const std::vector<Stand>& stands) {
  uint64_t total = 0;
  for (const Stand& stand : stands) total += stand.ranks;
  return total;
}

/// Within the rack where they are on the fewest hosts, or over as few racks as have the room.
std::vector<Stand> on_racks(const State& state, const std::vector<Stand>& stands, uint32_t ranks) {
  std::map<std::string, std::vector<Stand>> racks;
  for (const Stand& stand : stands)
    racks[rack_of(state.workers[stand.worker].info)].push_back(stand);
  std::vector<Stand> best;
  for (const auto& [name, of_rack] : racks) {
    std::vector<Stand> chosen = fewest(of_rack, ranks);
    bool is_enough = total_ranks(chosen) >= ranks;
    if (is_enough && (best.empty() || chosen.size() < best.size())) best = std::move(chosen);
  }
  if (!best.empty()) return best;
  std::vector<std::vector<Stand>> largest_first;
  for (auto& [name, of_rack] : racks) largest_first.push_back(std::move(of_rack));
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const auto& a, const auto& b) { return total_ranks(a) > total_ranks(b); });
  for (const std::vector<Stand>& of_rack : largest_first) {
    auto left = ranks - static_cast<uint32_t>(std::min<uint64_t>(ranks, total_ranks(best)));
    for (const Stand& stand : fewest(of_rack, left)) best.push_back(stand);
  }
  return best;
}

/// GPUs that NVLink joins, on one machine or on several: each with only those of it free.
using Domain = std::map<WorkerId, FreeResources>;

std::vector<Domain> domains_of(const State& state, const std::vector<FreeResources>& free_by_worker,
                               const std::vector<Stand>& stands) {
  std::map<std::tuple<std::string, WorkerId, int32_t>, Domain> domains;
  for (const Stand& stand : stands) {
    const FreeResources& free = free_by_worker[stand.worker];
    FreeResources without = free;
    for (FreeGpu& gpu : without.gpus) gpu = {};
    const std::vector<Gpu>& gpus = state.workers[stand.worker].info.gpus;
    for (size_t i = 0; i < gpus.size(); i++) {
      bool is_joined = gpus[i].nvlink >= 0 || !gpus[i].fabric.empty();
      if (!is_joined) continue;
      bool is_of_one = gpus[i].fabric.empty();
      std::tuple key(gpus[i].fabric, is_of_one ? stand.worker : WorkerId{0},
                     is_of_one ? gpus[i].nvlink : -1);
      domains[key].try_emplace(stand.worker, without).first->second.gpus[i] = free.gpus[i];
    }
  }
  std::vector<Domain> all;
  for (auto& [key, domain] : domains) all.push_back(std::move(domain));
  return all;
}

size_t free_gpus_in(const Domain& domain) {
  size_t count = 0;
  for (const auto& [worker, free] : domain)
    for (const FreeGpu& gpu : free.gpus) count += gpu.milli_free == kWholeGpuMilli;
  return count;
}

/// Where NVLink joins the GPUs of all ranks: on the fewest machines, then where the least is free.
/// `rooms` of the chosen machines has only those GPUs free then. None where there is no such.
std::vector<Stand> on_nvlink(const State& state, std::vector<FreeResources>& free_by_worker,
                             const std::vector<Stand>& stands, uint32_t ranks,
                             const SchedulingClass& request) {
  std::vector<Stand> best;
  if (request.gpu.milli < kWholeGpuMilli) return best;
  std::vector<Domain> domains = domains_of(state, free_by_worker, stands);
  const Domain* of_best = nullptr;
  std::pair<size_t, size_t> least;
  for (const Domain& domain : domains) {
    std::vector<Stand> within;
    for (const auto& [worker, free] : domain)
      within.push_back(
          {worker, placeable_ranks(state, worker, free, request), free.cpus_free_milli});
    if (total_ranks(within) < ranks) continue;
    std::vector<Stand> chosen = on_one(state, within, ranks, request);
    if (chosen.empty()) chosen = fewest(std::move(within), ranks);
    std::pair price(chosen.size(), free_gpus_in(domain));
    if (of_best != nullptr && least <= price) continue;
    of_best = &domain;
    least = price;
    best = std::move(chosen);
  }
  for (const Stand& stand : best) free_by_worker[stand.worker] = of_best->at(stand.worker);
  return best;
}

/// What each of so many ranks on a host gets: all at once where each gets one, or NVLink joins all,
/// so that they share islands; else one rank after the other.
std::vector<std::vector<std::string>> devices_of(const std::vector<Gpu>& gpus, FreeResources left,
                                                 const GpuRequest& request, uint32_t ranks) {
  std::vector<std::vector<std::string>> devices(ranks);
  if (request.milli == 0) return devices;
  GpuRequest all = request;
  all.milli *= static_cast<int32_t>(ranks);
  std::vector<std::string> uuids;
  bool is_at_once =
      !request.is_share() && (request.count() == 1 || has_island_for(gpus, left, all));
  if (is_at_once) uuids = choose_gpus(gpus, left, all);
  std::stable_sort(uuids.begin(), uuids.end(), [&](const std::string& a, const std::string& b) {
    return gpus[*find_gpu(gpus, a)].nvlink < gpus[*find_gpu(gpus, b)].nvlink;
  });
  for (uint32_t rank = 0; rank < ranks; rank++) {
    auto first = uuids.begin() + static_cast<std::ptrdiff_t>(rank * request.count());
    if (!uuids.empty()) {
      devices[rank].assign(first, first + static_cast<std::ptrdiff_t>(request.count()));
      continue;
    }
    devices[rank] = choose_gpus(gpus, left, request);
    take_gpus(gpus, left, request, devices[rank]);
  }
  return devices;
}

/// Ranks of one host come one after the other, hosts in their order.
std::vector<Placement> placed(const State& state, const std::vector<FreeResources>& free_by_worker,
                              std::vector<Stand> stands, const SchedulingClass& request) {
  std::sort(stands.begin(), stands.end(),
            [](const Stand& a, const Stand& b) { return a.worker < b.worker; });
  std::vector<Placement> placements;
  for (const Stand& stand : stands) {
    const std::vector<Gpu>& gpus = state.workers[stand.worker].info.gpus;
    for (auto& devices : devices_of(gpus, free_by_worker[stand.worker], request.gpu, stand.ranks))
      placements.push_back({stand.worker, std::move(devices)});
  }
  return placements;
}

}  // namespace

uint32_t placeable_ranks(const State& state, WorkerId at, const FreeResources& free,
                         const SchedulingClass& request) {
  const WorkerState& worker = state.workers[at];
  bool is_open = worker.takes_attempts() &&
                 (worker.info.cpus_milli > 0 || request.cpus_milli == 0) &&
                 (at == 0 || !request.is_head_only) && may_share(free, request) &&
                 !is_avoided(state, at, request, free.units);
  return is_open ? ranks_that_fit(worker.info, free, request, request.ranks_max) : 0;
}

std::optional<std::vector<Placement>> place_gang(const State& state,
                                                 std::vector<FreeResources> free_by_worker,
                                                 const SchedulingClass& request) {
  std::vector<Stand> stands;
  for (size_t i = 0; i < free_by_worker.size(); i++) {
    Stand stand{static_cast<WorkerId>(i), 0, free_by_worker[i].cpus_free_milli};
    stand.ranks = placeable_ranks(state, stand.worker, free_by_worker[i], request);
    if (stand.ranks > 0) stands.push_back(stand);
  }
  // A machine where it failed is avoided unless the gang has fewer ranks without it: an elastic
  // gang would be asked to grow onto that machine again and again.
  std::vector<Stand> others = stands;
  std::erase_if(others, [&](const Stand& stand) {
    return std::find(request.failed_on.begin(), request.failed_on.end(), stand.worker) !=
           request.failed_on.end();
  });
  if (total_ranks(others) >= request.ranks_max) stands = std::move(others);
  uint64_t total = total_ranks(stands);
  if (total < request.ranks) return std::nullopt;
  auto ranks = static_cast<uint32_t>(std::min<uint64_t>(total, request.ranks_max));
  std::vector<Stand> chosen = on_nvlink(state, free_by_worker, stands, ranks, request);
  if (chosen.empty()) chosen = on_one(state, stands, ranks, request);
  if (chosen.empty()) chosen = on_racks(state, stands, ranks);
  return placed(state, free_by_worker, std::move(chosen), request);
}

}  // namespace flow::core
