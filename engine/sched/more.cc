// What more hosts would be good for.
#include <algorithm>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/sched/sched.hpp"
#include "engine/sched/tally.hpp"

namespace flow::core {

namespace {

/// Looked at in one call: what lies behind them would need others still.
constexpr size_t kClassesMax = 64, kUnitsLookedAtMax = 4'096;

/// Hosts that are not there, filled with what waits.
class Imagined {
 public:
  Imagined(const State& state, const WorkerInfo& like, uint32_t most)
      : state_(state), like_(like), most_(most) {}

  /// False where there is no room for it, or its run has none.
  bool add(const Run& run, ReadyClass needs) {
    // With more hosts its own slots bind, where now these are all that there is.
    int64_t cpus = tally_.cpus_milli(run) + int64_t{needs.cpus_milli} * needs.ranks;
    bool has_slots = run.jobs == 0 || needs.cpus_milli == 0 || cpus <= int64_t{run.jobs} * 1000;
    if (!has_slots || !tally_.may_start(state_, run, needs)) return false;
    std::vector<FreeResources> before;
    if (needs.ranks > 1) before = free_by_worker_;
    uint32_t ranks = needs.ranks;
    if (needs.is_gang()) ranks -= std::min(ranks, ranks_on_existing_workers(needs));
    fit_to_worker(needs);
    while (ranks > 0 && add_rank(needs)) ranks--;
    if (ranks > 0) {
      if (needs.ranks > 1) free_by_worker_ = std::move(before);
      return false;
    }
    tally_.start(run, needs, needs.ranks);
    return true;
  }
  uint32_t count() const { return static_cast<uint32_t>(free_by_worker_.size()); }

 private:
  /// What a host that comes would clamp it to.
  void fit_to_worker(ReadyClass& needs) const {
    needs.cpus_milli = std::min(needs.cpus_milli, like_.cpus_milli);
    bool is_bound_by_others = state_.reach.cpus_milli > 0;
    if (!is_bound_by_others) needs.memory_bytes = std::min(needs.memory_bytes, like_.memory_bytes);
  }

  uint32_t ranks_on_existing_workers(const ReadyClass& needs) const {
    uint32_t ranks = 0;
    for (const WorkerState& worker : state_.workers) {
      bool may_run = worker.takes_attempts() && worker.info.cpus_milli > 0;
      if (may_run) ranks += ranks_that_fit(worker.info, worker.free, needs, needs.ranks);
    }
    return ranks;
  }

  bool add_rank(const ReadyClass& needs) {
    for (FreeResources& free : free_by_worker_)
      if (take_rank(free, needs)) return true;
    if (free_by_worker_.size() >= most_) return false;
    FreeResources fresh = all_free(like_);
    if (!take_rank(fresh, needs)) return false;
    free_by_worker_.push_back(std::move(fresh));
    return true;
  }
  bool take_rank(FreeResources& free, const ReadyClass& needs) const {
    if (ranks_that_fit(like_, free, needs, 1) == 0) return false;
    std::vector<std::string> gpus;
    if (needs.gpu.milli > 0) gpus = choose_gpus(like_.gpus, free, needs.gpu);
    take(free, needs, 0);
    take_gpus(like_.gpus, free, needs.gpu, gpus);
    return true;
  }

  const State& state_;
  const WorkerInfo& like_;
  const uint32_t most_;
  std::vector<FreeResources> free_by_worker_;
  Tally tally_;
};

}  // namespace

uint32_t hosts_that_would_help(const State& state, const WorkerInfo& like, uint32_t most) {
  bool is_known = like.cpus_milli > 0;
  Imagined imagined(state, like, most);
  size_t classes = 0, units = 0;
  for (const ReadyHead& head : state.ready) {
    if (++classes > kClassesMax) break;
    const Run& run = state.runs.at(head.run);
    if (head.what.is_home) continue;
    if (!is_known) {
      bool may = may_start(state, run, head.what, run.cpus_used_milli, 0);
      if (may) return std::min<uint32_t>(1, most);
      continue;
    }
    for (UnitId unit = head.unit; unit != kNoNode && ++units <= kUnitsLookedAtMax;
         unit = run.ready.at(head.what).after(unit))
      if (!imagined.add(run, head.what)) break;
  }
  return imagined.count();
}

}  // namespace flow::core
