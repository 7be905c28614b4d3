#include "engine/sched/gang_placement.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"

namespace flow::core {

namespace {

/// A worker and the number of ranks that fit there.
struct RankPlacementCandidate {
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

/// The fewest workers that fit all ranks, those with the most room first, with the ranks of each;
/// all candidates if they are too few.
std::vector<RankPlacementCandidate> fewest_workers(std::vector<RankPlacementCandidate> candidates,
                                                   uint32_t ranks) {
  std::sort(candidates.begin(), candidates.end(),
            [](const RankPlacementCandidate& a, const RankPlacementCandidate& b) {
              return std::tuple(b.ranks, a.worker) < std::tuple(a.ranks, b.worker);
            });
  size_t count = 0;
  for (; count < candidates.size() && ranks > 0; count++) {
    candidates[count].ranks = std::min(candidates[count].ranks, ranks);
    ranks -= candidates[count].ranks;
  }
  candidates.resize(count);
  return candidates;
}

/// The fullest worker that fits all ranks, or nothing. A gang without GPUs prefers workers without
/// GPUs.
std::vector<RankPlacementCandidate> on_one_worker(
    const State& state, const std::vector<RankPlacementCandidate>& candidates, uint32_t ranks,
    const SchedulingClass& request) {
  const RankPlacementCandidate* best = nullptr;
  auto score = [&](const RankPlacementCandidate& candidate) {
    return std::tuple(has_gpus_to_spare(state, candidate.worker, request),
                      candidate.cpus_free_milli, candidate.worker);
  };
  for (const RankPlacementCandidate& candidate : candidates)
    if (candidate.ranks >= ranks && (best == nullptr || score(candidate) < score(*best)))
      best = &candidate;
  return best == nullptr ? std::vector<RankPlacementCandidate>{} : fewest_workers({*best}, ranks);
}

uint64_t total_ranks(const std::vector<RankPlacementCandidate>& candidates) {
  uint64_t total = 0;
  for (const RankPlacementCandidate& candidate : candidates) total += candidate.ranks;
  return total;
}

/// Workers of the rack in which the ranks need the fewest workers, or else of as few racks as
/// possible.
std::vector<RankPlacementCandidate> on_racks(const State& state,
                                             const std::vector<RankPlacementCandidate>& candidates,
                                             uint32_t ranks) {
  std::map<std::string, std::vector<RankPlacementCandidate>> racks;
  for (const RankPlacementCandidate& candidate : candidates)
    racks[rack_of(state.workers[candidate.worker].info)].push_back(candidate);
  std::vector<RankPlacementCandidate> best;
  for (const auto& [name, of_rack] : racks) {
    std::vector<RankPlacementCandidate> chosen = fewest_workers(of_rack, ranks);
    bool is_enough = total_ranks(chosen) >= ranks;
    if (is_enough && (best.empty() || chosen.size() < best.size())) best = std::move(chosen);
  }
  if (!best.empty()) return best;
  std::vector<std::vector<RankPlacementCandidate>> largest_first;
  for (auto& [name, of_rack] : racks) largest_first.push_back(std::move(of_rack));
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const auto& a, const auto& b) { return total_ranks(a) > total_ranks(b); });
  for (const std::vector<RankPlacementCandidate>& of_rack : largest_first) {
    auto missing = ranks - static_cast<uint32_t>(std::min<uint64_t>(ranks, total_ranks(best)));
    for (const RankPlacementCandidate& candidate : fewest_workers(of_rack, missing))
      best.push_back(candidate);
  }
  return best;
}

/// An NVLink domain on one or several workers: the free resources of each, with only these GPUs.
using NvlinkDomain = std::map<WorkerId, FreeResources>;

std::vector<NvlinkDomain> domains_of(const State& state,
                                     const std::vector<FreeResources>& free_by_worker,
                                     const std::vector<RankPlacementCandidate>& candidates) {
  std::map<std::tuple<std::string, WorkerId, int32_t>, NvlinkDomain> domains;
  for (const RankPlacementCandidate& candidate : candidates) {
    const FreeResources& free = free_by_worker[candidate.worker];
    FreeResources without = free;
    for (FreeGpu& gpu : without.gpus) gpu = {};
    const std::vector<Gpu>& gpus = state.workers[candidate.worker].info.gpus;
    for (size_t i = 0; i < gpus.size(); i++) {
      bool is_joined = gpus[i].nvlink >= 0 || !gpus[i].fabric.empty();
      if (!is_joined) continue;
      bool is_of_one = gpus[i].fabric.empty();
      std::tuple key(gpus[i].fabric, is_of_one ? candidate.worker : WorkerId{0},
                     is_of_one ? gpus[i].nvlink : -1);
      domains[key].try_emplace(candidate.worker, without).first->second.gpus[i] = free.gpus[i];
    }
  }
  std::vector<NvlinkDomain> all;
  for (auto& [key, domain] : domains) all.push_back(std::move(domain));
  return all;
}

size_t free_gpus_in(const NvlinkDomain& domain) {
  size_t count = 0;
  for (const auto& [worker, free] : domain)
    for (const FreeGpu& gpu : free.gpus) count += gpu.milli_free == kWholeGpuMilli;
  return count;
}

/// Workers of an NVLink domain that fits the GPUs of all ranks: on the fewest workers, then with
/// the least free. Afterwards only those GPUs are free in `free_by_worker`. Nothing if there is
/// none.
std::vector<RankPlacementCandidate> on_nvlink(const State& state,
                                              std::vector<FreeResources>& free_by_worker,
                                              const std::vector<RankPlacementCandidate>& candidates,
                                              uint32_t ranks, const SchedulingClass& request) {
  std::vector<RankPlacementCandidate> best;
  if (request.gpu.milli < kWholeGpuMilli) return best;
  std::vector<NvlinkDomain> domains = domains_of(state, free_by_worker, candidates);
  const NvlinkDomain* of_best = nullptr;
  std::pair<size_t, size_t> least;
  for (const NvlinkDomain& domain : domains) {
    std::vector<RankPlacementCandidate> within;
    for (const auto& [worker, free] : domain)
      within.push_back(
          {worker, placeable_ranks(state, worker, free, request), free.cpus_free_milli});
    if (total_ranks(within) < ranks) continue;
    std::vector<RankPlacementCandidate> chosen = on_one_worker(state, within, ranks, request);
    if (chosen.empty()) chosen = fewest_workers(std::move(within), ranks);
    std::pair score(chosen.size(), free_gpus_in(domain));
    if (of_best != nullptr && least <= score) continue;
    of_best = &domain;
    least = score;
    best = std::move(chosen);
  }
  for (const RankPlacementCandidate& candidate : best)
    free_by_worker[candidate.worker] = of_best->at(candidate.worker);
  return best;
}

/// The devices of each rank on a worker. Chosen together if each rank gets one GPU or NVLink joins
/// all of them, so that the ranks share islands; else rank by rank.
std::vector<std::vector<std::string>> devices_of(const std::vector<Gpu>& gpus, FreeResources unused,
                                                 const GpuRequest& request, uint32_t ranks) {
  std::vector<std::vector<std::string>> devices(ranks);
  if (request.milli == 0) return devices;
  GpuRequest all = request;
  all.milli *= static_cast<int32_t>(ranks);
  std::vector<std::string> uuids;
  bool is_at_once =
      !request.is_share() && (request.count() == 1 || has_island_for(gpus, unused, all));
  if (is_at_once) uuids = choose_gpus(gpus, unused, all);
  std::stable_sort(uuids.begin(), uuids.end(), [&](const std::string& a, const std::string& b) {
    return gpus[*find_gpu(gpus, a)].nvlink < gpus[*find_gpu(gpus, b)].nvlink;
  });
  for (uint32_t rank = 0; rank < ranks; rank++) {
    auto first = uuids.begin() + static_cast<std::ptrdiff_t>(rank * request.count());
    if (!uuids.empty()) {
      devices[rank].assign(first, first + static_cast<std::ptrdiff_t>(request.count()));
      continue;
    }
    devices[rank] = choose_gpus(gpus, unused, request);
    allocate_gpus(gpus, unused, request, devices[rank]);
  }
  return devices;
}

/// Ranks of one worker are consecutive; workers are in their order.
std::vector<Placement> placed(const State& state, const std::vector<FreeResources>& free_by_worker,
                              std::vector<RankPlacementCandidate> candidates,
                              const SchedulingClass& request) {
  std::sort(candidates.begin(), candidates.end(),
            [](const RankPlacementCandidate& a, const RankPlacementCandidate& b) {
              return a.worker < b.worker;
            });
  std::vector<Placement> placements;
  for (const RankPlacementCandidate& candidate : candidates) {
    const std::vector<Gpu>& gpus = state.workers[candidate.worker].info.gpus;
    for (auto& devices :
         devices_of(gpus, free_by_worker[candidate.worker], request.gpu, candidate.ranks))
      placements.push_back({candidate.worker, std::move(devices)});
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
  std::vector<RankPlacementCandidate> candidates;
  for (size_t i = 0; i < free_by_worker.size(); i++) {
    RankPlacementCandidate candidate{static_cast<WorkerId>(i), 0,
                                     free_by_worker[i].cpus_free_milli};
    candidate.ranks = placeable_ranks(state, candidate.worker, free_by_worker[i], request);
    if (candidate.ranks > 0) candidates.push_back(candidate);
  }
  // A worker where it failed is avoided unless the gang has fewer ranks without it: an elastic gang
  // would be asked to grow onto that worker again and again.
  std::vector<RankPlacementCandidate> others = candidates;
  std::erase_if(others, [&](const RankPlacementCandidate& candidate) {
    return std::find(request.failed_on.begin(), request.failed_on.end(), candidate.worker) !=
           request.failed_on.end();
  });
  if (total_ranks(others) >= request.ranks_max) candidates = std::move(others);
  uint64_t total = total_ranks(candidates);
  if (total < request.ranks) return std::nullopt;
  auto ranks = static_cast<uint32_t>(std::min<uint64_t>(total, request.ranks_max));
  std::vector<RankPlacementCandidate> chosen =
      on_nvlink(state, free_by_worker, candidates, ranks, request);
  if (chosen.empty()) chosen = on_one_worker(state, candidates, ranks, request);
  if (chosen.empty()) chosen = on_racks(state, candidates, ranks);
  return placed(state, free_by_worker, std::move(chosen), request);
}

}  // namespace flow::core
