// Proposes the best ready units for the free resources. Examines one unit per scheduling class, so
// that a long queue behind a unit that does not fit costs nothing.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/core/free_resources.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/sched/backfill.hpp"
#include "engine/sched/gang_placement.hpp"
#include "engine/sched/sched.hpp"
#include "engine/sched/usage_overlay.hpp"

namespace flow::core {

namespace {

/// Classes that did not fit and are examined in one call; the others wait for the next call.
constexpr size_t kBlockedMax = 64;
/// Units of the same class that may overtake one whose inputs are on another worker or that would
/// end too late.
constexpr size_t kAheadMax = 32;

/// Placement score: a unit goes to the fitting worker with the lowest score. Criteria in order: no
/// attempt of the unit failed there; a service stays beside its front, and else spreads its
/// replicas; a slot is free now; a unit without GPUs and custom resources
/// leaves the workers that have them to others; NVLink joins enough GPUs; the fewest GPUs stay
/// free; most of the inputs are there (the engine's own machine has all of them); the fewest CPUs
/// stay free, so that a wide unit still fits elsewhere.
struct PlacementScore {
  bool failed_there;  // because of its disk or a missing input
  bool leaves_front;  // a replica of a service, whose front is on the engine's machine
  size_t replicas_there;
  bool waits_for_slot, blocks_others;
  bool is_split;  // NVLink joins no such GPUs there
  size_t gpus_left;
  uint64_t mib_elsewhere;  // of the inputs, beyond the host that has most; less is not worth a move
  bool is_remote;
  int32_t cpus_left_milli;
  auto operator<=>(const PlacementScore&) const = default;
};

size_t free_whole(const FreeResources& free) {
  return static_cast<size_t>(
      std::count_if(free.gpus.begin(), free.gpus.end(),
                    [](const FreeGpu& gpu) { return gpu.milli_free == kWholeGpuMilli; }));
}

using UnitNames = std::set<std::pair<RunId, UnitId>>;

uint32_t def_index(const Run& run, UnitId unit) { return run.node(run.units[unit].node).def; }

/// Collects proposals and keeps account of what they take from the state's free resources.
class ProposalBuilder {
 public:
  ProposalBuilder(const State& state, const InputLocations* inputs)
      : state_(state), inputs_(inputs), backfill_(state) {
    for (const WorkerState& worker : state.workers) free_by_worker_.push_back(worker.free);
  }

  /// Proposes a placement of the unit or its ranks. Returns false if it does not fit or if the free
  /// resources are reserved for an earlier unit.
  bool propose(const Run& run, UnitId unit, const SchedulingClass& request) {
    Time end = end_if_started(state_, run, unit);
    auto assigned = place(run, unit, request, end);
    if (assigned && backfill_.is_wanted(*assigned)) {
      backfill_.reserve_for_passed(free_by_worker_, proposals_, overlay_);
      assigned = place(run, unit, request, end);
    }
    if (!assigned) return false;
    if (!may_spend(state_, run, *assigned)) {
      refused_.emplace(run.id, unit);
      refused_defs_.emplace(run.id, def_index(run, unit));
      return false;
    }
    allocate_all(*assigned, request, expected_short_us(run, unit));
    backfill_.allocate(run, request, *assigned, end);
    overlay_.start(run, request, static_cast<uint32_t>(assigned->others.size() + 1));
    proposals_.push_back(std::move(*assigned));
    return true;
  }

  /// Returns the first unit of a class, or, if its inputs would have to be transferred, one behind
  /// it whose inputs are on the worker. `ahead`: units that overtook it before.
  UnitId next_of(const Run& run, const ReadyHead& head, const UnitNames& ahead) {
    find_inputs(run, head.unit);
    if (most_mib_ == 0 || head.request.is_gang()) return head.unit;
    auto at = best_worker(run, head.unit, head.request, end_if_started(state_, run, head.unit));
    if (!at || mib_at(*at) == most_mib_) return head.unit;
    const UnitSet& ready = run.ready.at(head.request);
    UnitId unit = head.unit;
    for (size_t count = 0; count < kAheadMax; count++) {
      unit = ready.after(unit);
      if (unit == kNoNode) break;
      if (ahead.contains({run.id, unit})) continue;
      find_inputs(run, unit);
      bool is_there = most_mib_ > 0 && mib_at(*at) == most_mib_;
      uint32_t expected_us = expected_short_us(run, unit);
      Time end = end_if_started(state_, run, unit);
      if (is_there && can_place(*at, head.request, expected_us, end)) return unit;
    }
    return head.unit;
  }

  /// For a class whose first unit would end too late to be backfilled: the later unit of the class
  /// that ends soonest, or none.
  UnitId sooner_of(const Run& run, const ReadyHead& head, const UnitNames& ahead) const {
    if (!backfill_.has_reservations()) return kNoNode;
    const UnitSet& ready = run.ready.at(head.request);
    Time end = end_if_started(state_, run, head.unit);
    UnitId unit = head.unit, soonest = kNoNode;
    for (size_t count = 0; count < kAheadMax; count++) {
      unit = ready.after(unit);
      if (unit == kNoNode) break;
      Time own = end_if_started(state_, run, unit);
      if (own >= end || ahead.contains({run.id, unit})) continue;
      soonest = unit;
      end = own;
    }
    return soonest;
  }

  /// For a class whose first unit costs more than what is left of its run's budget: a later unit of
  /// the class, of a task of which none was refused, or none.
  UnitId cheaper_of(const Run& run, const ReadyHead& head, const UnitNames& ahead) {
    if (!is_refused(run, head.unit)) return kNoNode;
    const UnitSet& ready = run.ready.at(head.request);
    UnitId unit = head.unit;
    for (size_t count = 0; count < kAheadMax; count++) {
      unit = ready.after(unit);
      if (unit == kNoNode) break;
      bool is_dear = refused_defs_.contains({run.id, def_index(run, unit)});
      if (!is_dear && !ahead.contains({run.id, unit})) return unit;
    }
    return kNoNode;
  }
  bool is_refused(const Run& run, UnitId unit) const { return refused_.contains({run.id, unit}); }

  /// The runs in which nothing runs, and in which the budget alone keeps all that is ready from
  /// starting.
  std::vector<Event> exhausted() const {
    std::map<RunId, size_t> refused;  // classes
    for (const auto& [id, unit] : refused_heads_) refused[id]++;
    std::vector<Event> events;
    for (const auto& [id, count] : refused) {
      const Run& run = state_.runs.at(id);
      bool is_started = std::ranges::any_of(proposals_, [&](const Event& proposal) {
        return std::get<Assigned>(proposal).id.run == id;
      });
      bool is_all = count >= std::min(run.ready.size(), kBlockedMax);
      bool may_stop = !run.stopping && !run.cancelling && !run.ending;
      // A service that is up does not end by itself.
      bool nothing_ends = run.phase_count(Phase::running) == run.services_up;
      if (is_all && may_stop && !is_started && nothing_ends) events.push_back(BudgetReached{id});
    }
    return events;
  }

  /// No unit of this class was proposed. If its map limits its instances, no resources are reserved
  /// for it.
  void pass_over(const Run& run, const ReadyHead& head) {
    if (is_refused(run, head.unit)) {
      refused_heads_.emplace(run.id, head.unit);
      return;
    }
    uint32_t map_running = overlay_.map_running(run, head.request);
    if (may_start(state_, run, head.request, 0, map_running)) backfill_.pass_over(head);
  }

  /// The unit whose reservation blocks a unit that was not proposed, or null.
  const ReadyHead* blocking_owner(const Run& run, UnitId unit, const SchedulingClass& request) {
    if (!overlay_.may_start(state_, run, request)) return nullptr;
    Time end = end_if_started(state_, run, unit);
    if (!backfill_.has_slots(run, request, end)) return backfill_.slot_reservation_owner(run);
    if (request.is_gang()) {
      auto placements = place_gang(state_, free_by_worker_, request);
      if (!placements) return nullptr;
      for (const Placement& rank : *placements)
        if (const ReadyHead* owner = backfill_.reservation_owner(rank.worker, end)) return owner;
      return nullptr;
    }
    for (size_t i = 0; i < free_by_worker_.size(); i++) {
      auto at = static_cast<WorkerId>(i);
      if (fits(state_, at, free_by_worker_[i], request, expected_short_us(run, unit)))
        return backfill_.reservation_owner(at, end);
    }
    return nullptr;
  }

  const std::vector<Event>& proposals() const { return proposals_; }
  std::vector<Event> take_proposals() { return std::move(proposals_); }

 private:
  std::optional<Assigned> place(const Run& run, UnitId unit, const SchedulingClass& request,
                                Time end) {
    if (!may_start_now(run, request, end)) return std::nullopt;
    return request.is_gang() ? gang(run, unit, request, end) : one(run, unit, request, end);
  }
  bool may_start_now(const Run& run, const SchedulingClass& request, Time end) {
    return overlay_.may_start(state_, run, request) && backfill_.has_slots(run, request, end);
  }

  std::optional<Assigned> one(const Run& run, UnitId unit, const SchedulingClass& request,
                              Time end) {
    find_inputs(run, unit);
    auto best = best_worker(run, unit, request, end);
    if (!best) return std::nullopt;
    Assigned assigned{next_attempt(state_, run, unit), {}, *best};
    if (request.gpu.milli > 0)
      assigned.gpus =
          choose_gpus(state_.workers[*best].info.gpus, free_for(*best, end), request.gpu);
    return assigned;
  }

  std::optional<Assigned> gang(const Run& run, UnitId unit, SchedulingClass request, Time end) {
    Assigned assigned{next_attempt(state_, run, unit)};
    assigned.share = {request.cpus_milli, request.memory_bytes};
    while (request.ranks_max > request.ranks && !may_be_of(run, request, request.ranks_max, end))
      request.ranks_max--;
    std::vector<FreeResources> free_by_worker;
    for (size_t i = 0; i < free_by_worker_.size(); i++)
      free_by_worker.push_back(free_for(static_cast<WorkerId>(i), end));
    auto placements = place_gang(state_, std::move(free_by_worker), request);
    if (!placements) return std::nullopt;
    assigned.worker = placements->front().worker;
    assigned.gpus = std::move(placements->front().gpus);
    assigned.others.assign(std::make_move_iterator(placements->begin() + 1),
                           std::make_move_iterator(placements->end()));
    return assigned;
  }
  bool may_be_of(const Run& run, SchedulingClass request, uint32_t ranks, Time end) {
    request.ranks = ranks;
    return may_start_now(run, request, end);
  }

  bool can_place(WorkerId at, const SchedulingClass& request, uint32_t expected_us,
                 Time end) const {
    if (!fits(state_, at, free_by_worker_[at], request, expected_us)) return false;
    return !backfill_.is_reserved(at, end) || fits(state_, at, free_for(at, end), request, 0);
  }
  /// Takes the locations of its inputs into account.
  std::optional<WorkerId> best_worker(const Run& run, UnitId unit, const SchedulingClass& request,
                                      Time end) const {
    uint32_t expected_us = expected_short_us(run, unit);
    std::optional<WorkerId> best;
    PlacementScore least{};
    for (size_t i = 0; i < free_by_worker_.size(); i++) {
      auto at = static_cast<WorkerId>(i);
      if (!can_place(at, request, expected_us, end)) continue;
      PlacementScore score = score_of(run, unit, i, request);
      if (best && !(score < least)) continue;
      best = at;
      least = score;
    }
    return best;
  }

  FreeResources free_for(WorkerId worker, Time end) const {
    return backfill_.free_for(worker, free_by_worker_[worker], end);
  }
  void allocate_all(const Assigned& assigned, const SchedulingClass& request,
                    uint32_t expected_us) {
    auto allocate_at = [&](WorkerId at, const std::vector<std::string>& devices) {
      allocate(free_by_worker_[at], request, expected_us);
      allocate_gpus(state_.workers[at].info.gpus, free_by_worker_[at], request.gpu, devices);
    };
    allocate_at(assigned.worker, assigned.gpus);
    for (const Placement& rank : assigned.others) allocate_at(rank.worker, rank.gpus);
  }

  PlacementScore score_of(const Run& run, UnitId unit, size_t worker,
                          const SchedulingClass& request) const {
    const FreeResources& free = free_by_worker_[worker];
    bool needs_gpu = request.gpu.milli > 0;
    const auto& failed_on = request.failed_on;
    return {std::find(failed_on.begin(), failed_on.end(), worker) != failed_on.end(),
            request.is_service && worker != 0,
            request.is_service ? replicas_on(run, unit, worker) : 0,
            request.cpus_milli > free.cpus_free_milli,
            (!needs_gpu && !free.gpus.empty()) ||
                (request.custom_resources.empty() && !free.custom_resources.empty()),
            needs_gpu && !has_island_for(state_.workers[worker].info.gpus, free, request.gpu),
            needs_gpu ? free_whole(free) : 0,
            most_mib_ - mib_at(worker),
            worker != 0,
            free.cpus_free_milli};
  }
  /// How many replicas of the unit's service run there, or are proposed to.
  size_t replicas_on(const Run& run, UnitId unit, size_t worker) const {
    auto is_there = [&](UnitId other, WorkerId at) {
      return other != unit && run.units[other].node == run.units[unit].node && at == worker;
    };
    size_t count = 0;
    for (UnitId other : run.services)
      if (run.units[other].phase == Phase::running && is_there(other, run.units[other].worker))
        count++;
    for (const Event& proposal : proposals_) {
      const auto& assigned = std::get<Assigned>(proposal);
      if (assigned.id.run == run.id && is_there(assigned.id.unit, assigned.worker)) count++;
    }
    return count;
  }
  void find_inputs(const Run& run, UnitId unit) {
    input_bytes_.clear();
    most_mib_ = 0;
    if (inputs_ != nullptr && free_by_worker_.size() > 1) input_bytes_ = inputs_->of(run, unit);
    for (auto& [worker, bytes] : input_bytes_) most_mib_ = std::max(most_mib_, bytes >>= 20);
  }
  uint64_t mib_at(size_t worker) const {
    for (const auto& [at, mib] : input_bytes_)
      if (at == worker) return mib;
    return 0;
  }

  const State& state_;
  const InputLocations* const inputs_;
  std::vector<std::pair<WorkerId, uint64_t>> input_bytes_;  // of the examined unit, in MiB
  uint64_t most_mib_ = 0;
  std::vector<FreeResources> free_by_worker_;
  std::vector<Event> proposals_;
  Backfill backfill_;
  UsageOverlay overlay_;
  std::set<std::pair<RunId, uint32_t>> refused_defs_;
  UnitNames refused_;        // they fit, but not into what is left of the budget
  UnitNames refused_heads_;  // the first units of the classes of which none was proposed
};

/// Proposes assignments for ready units in order. Calls `on_passed_over(head)` for the first unit
/// of each class that does not fit.
template <typename OnPassedOver>
void propose_in_order(const State& state, ProposalBuilder& builder, size_t limit,
                      OnPassedOver on_passed_over) {
  std::set<ReadyHead> next;  // classes whose first units were proposed
  UnitNames ahead;
  auto head = state.ready.begin();
  size_t blocked = 0;
  while (builder.proposals().size() < limit && blocked < kBlockedMax) {
    bool none_left = head == state.ready.end();
    if (none_left && next.empty()) break;
    ReadyHead best;
    if (!next.empty() && (none_left || *next.begin() < *head)) {
      best = std::move(next.extract(next.begin()).value());
    } else {
      best = *head++;
    }
    const Run& run = state.runs.at(best.run);
    UnitId unit = builder.next_of(run, best, ahead);
    bool is_proposed = builder.propose(run, unit, best.request);
    if (!is_proposed && unit != best.unit && builder.is_refused(run, unit)) {
      unit = best.unit;  // the first unit decides whether the budget refuses the class
      is_proposed = builder.propose(run, unit, best.request);
    }
    if (!is_proposed) {
      unit = builder.sooner_of(run, best, ahead);
      is_proposed = unit != kNoNode && builder.propose(run, unit, best.request);
    }
    while (!is_proposed) {
      unit = builder.cheaper_of(run, best, ahead);
      if (unit == kNoNode) break;
      is_proposed = builder.propose(run, unit, best.request);
      if (!builder.is_refused(run, unit)) break;
    }
    if (!is_proposed) {
      on_passed_over(best);
      builder.pass_over(run, best);
      blocked++;
      continue;
    }
    if (unit != best.unit) {
      ahead.emplace(best.run, unit);
    } else {
      const UnitSet& ready = run.ready.at(best.request);
      do best.unit = ready.after(best.unit);
      while (best.unit != kNoNode && ahead.contains({best.run, best.unit}));
    }
    if (best.unit != kNoNode) next.insert(std::move(best));
  }
}

}  // namespace

std::vector<Event> schedule(const State& state, size_t limit, const InputLocations* inputs) {
  ProposalBuilder builder(state, inputs);
  propose_in_order(state, builder, limit, [](const ReadyHead&) {});
  std::vector<Event> exhausted = builder.exhausted();
  std::vector<Event> proposals = builder.take_proposals();
  std::ranges::move(exhausted, std::back_inserter(proposals));
  return proposals;
}

std::map<ClassOfRun, ReadyHead> reservations(const State& state) {
  constexpr size_t kProposalsMax = 1000;
  ProposalBuilder builder(state, nullptr);
  std::map<ClassOfRun, ReadyHead> owners;
  propose_in_order(state, builder, kProposalsMax, [&](const ReadyHead& head) {
    const Run& run = state.runs.at(head.run);
    if (const ReadyHead* owner = builder.blocking_owner(run, head.unit, head.request))
      owners.try_emplace({head.run, head.request}, *owner);
  });
  return owners;
}

}  // namespace flow::core
