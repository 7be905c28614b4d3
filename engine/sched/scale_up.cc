// Estimates the demand for additional workers.
#include <algorithm>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/sched/sched.hpp"
#include "engine/sched/usage_overlay.hpp"

namespace flow::core {

namespace {

/// Bounds of one call; units beyond them would need further workers.
constexpr size_t kClassesMax = 64, kUnitsLookedAtMax = 4'096;

/// Fills imagined workers with waiting units.
class ScaleUpEstimator {
 public:
  ScaleUpEstimator(const State& state, const WorkerInfo& like, uint32_t most)
      : state_(state), like_(like), most_(most) {}

  /// Returns false if the unit does not fit, or if its run's limits do not allow it.
  bool add(const Run& run, SchedulingClass request) {
    // With more workers the run's own slots are the limit, even if they equal today's CPUs.
    int64_t cpus = overlay_.cpus_milli(run) + int64_t{request.cpus_milli} * request.ranks;
    bool has_slots = run.jobs == 0 || request.cpus_milli == 0 || cpus <= int64_t{run.jobs} * 1000;
    if (!has_slots || !overlay_.may_start(state_, run, request)) return false;
    std::vector<FreeResources> before;
    if (request.ranks > 1) before = free_by_worker_;
    uint32_t ranks = request.ranks;
    if (request.is_gang()) ranks -= std::min(ranks, ranks_on_existing_workers(request));
    fit_to_worker(request);
    while (ranks > 0 && add_rank(request)) ranks--;
    if (ranks > 0) {
      if (request.ranks > 1) free_by_worker_ = std::move(before);
      return false;
    }
    overlay_.start(run, request, request.ranks);
    return true;
  }
  uint32_t count() const { return static_cast<uint32_t>(free_by_worker_.size()); }

 private:
  /// Clamps the request to the capacity of the new worker.
  void fit_to_worker(SchedulingClass& request) const {
    request.cpus_milli = std::min(request.cpus_milli, like_.cpus_milli);
    bool is_bound_by_others = state_.capacity.cpus_milli > 0;
    if (!is_bound_by_others)
      request.memory_bytes = std::min(request.memory_bytes, like_.memory_bytes);
  }

  uint32_t ranks_on_existing_workers(const SchedulingClass& request) const {
    uint32_t ranks = 0;
    for (const WorkerState& worker : state_.workers) {
      bool may_run = worker.takes_attempts() && worker.info.cpus_milli > 0;
      if (may_run) ranks += ranks_that_fit(worker.info, worker.free, request, request.ranks);
    }
    return ranks;
  }

  bool add_rank(const SchedulingClass& request) {
    for (FreeResources& free : free_by_worker_)
      if (allocate_rank(free, request)) return true;
    if (free_by_worker_.size() >= most_) return false;
    FreeResources fresh = all_free(like_);
    if (!allocate_rank(fresh, request)) return false;
    free_by_worker_.push_back(std::move(fresh));
    return true;
  }
  bool allocate_rank(FreeResources& free, const SchedulingClass& request) const {
    if (ranks_that_fit(like_, free, request, 1) == 0) return false;
    std::vector<std::string> gpus;
    if (request.gpu.milli > 0) gpus = choose_gpus(like_.gpus, free, request.gpu);
    allocate(free, request, 0);
    allocate_gpus(like_.gpus, free, request.gpu, gpus);
    return true;
  }

  const State& state_;
  const WorkerInfo& like_;
  const uint32_t most_;
  std::vector<FreeResources> free_by_worker_;
  UsageOverlay overlay_;
};

}  // namespace

uint32_t scale_up_demand(const State& state, const WorkerInfo& like, uint32_t most) {
  bool is_known = like.cpus_milli > 0;
  ScaleUpEstimator estimator(state, like, most);
  size_t classes = 0, units = 0;
  for (const ReadyHead& head : state.ready) {
    if (++classes > kClassesMax) break;
    const Run& run = state.runs.at(head.run);
    if (head.request.is_head_only) continue;
    if (!is_known) {
      bool may = may_start(state, run, head.request, run.cpus_used_milli, 0);
      if (may) return std::min<uint32_t>(1, most);
      continue;
    }
    for (UnitId unit = head.unit; unit != kNoNode && ++units <= kUnitsLookedAtMax;
         unit = run.ready.at(head.request).after(unit))
      if (!estimator.add(run, head.request)) break;
  }
  return estimator.count();
}

}  // namespace flow::core
