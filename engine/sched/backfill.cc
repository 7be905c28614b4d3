#include "engine/sched/backfill.hpp"

#include <algorithm>
#include <tuple>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/mutants.hpp"
#include "engine/sched/gang_placement.hpp"

namespace flow::core {

namespace {

constexpr Time kUnknownMs = Time{10} * 365 * 24 * 3600 * 1000;

uint32_t usual_us(const Run& run, UnitId unit) {
  uint32_t def = run.node(run.units[unit].node).def;
  return def < run.durations_us.size() ? run.durations_us[def] : 0;
}

Time usual_ms(const Run& run, UnitId unit) { return (Time{usual_us(run, unit)} + 999) / 1000; }

/// Expected end of an attempt that began then: far in the future if no attempt of the task has
/// ended yet; now if it already takes longer than expected.
Time expected_end(const State& state, const Run& run, UnitId unit, Time began) {
  if (usual_us(run, unit) == 0) return began + kUnknownMs;
  return std::max(began + usual_ms(run, unit), state.at);
}

bool could_be_on(const State& state, WorkerId at, const SchedulingClass& request) {
  const WorkerState& worker = state.workers[at];
  if (!worker.takes_attempts() || (request.is_head_only && at != 0)) return false;
  if (is_avoided(state, at, request, 0)) return false;
  return ranks_that_fit(worker.info, all_free(worker.info), request, 1) > 0;
}

}  // namespace

Time end_if_started(const State& state, const Run& run, UnitId unit) {
  return usual_us(run, unit) == 0 ? kNever : expected_end(state, run, unit, state.at);
}

FreeResources element_min(const FreeResources& a, const FreeResources& b) {
  FreeResources least = a;
  least.cpus_free_milli = std::min(a.cpus_free_milli, b.cpus_free_milli);
  least.memory_free_bytes = std::min(a.memory_free_bytes, b.memory_free_bytes);
  least.custom_resources = flow::element_min(a.custom_resources, b.custom_resources);
  least.units = std::max(a.units, b.units);
  least.alone = std::max(a.alone, b.alone);
  for (size_t i = 0; i < least.gpus.size(); i++) {
    FreeGpu& gpu = least.gpus[i];
    gpu.milli_free = std::min(gpu.milli_free, b.gpus[i].milli_free);
    gpu.memory_free_bytes = std::min(gpu.memory_free_bytes, b.gpus[i].memory_free_bytes);
  }
  return least;
}

void Backfill::pass_over(const ReadyHead& head) {
  if (has_mutant(Mutant::no_reservations)) return;
  if (reservations_.size() < kReservationsMax && tried_ + passed_.size() < kReservationTriesMax)
    passed_.push_back(head);
}

bool Backfill::is_wanted(const Assigned& assigned) const {
  return std::any_of(passed_.begin(), passed_.end(), [&](const ReadyHead& head) {
    auto may_be_on = [&](WorkerId at) { return could_be_on(state_, at, head.request); };
    return head.run == assigned.id.run || may_be_on(assigned.worker) ||
           std::any_of(assigned.others.begin(), assigned.others.end(),
                       [&](const Placement& rank) { return may_be_on(rank.worker); });
  });
}

void Backfill::reserve_for_passed(const std::vector<FreeResources>& free_by_worker,
                                  const std::vector<Event>& proposals, UsageOverlay& overlay) {
  find_ends(proposals);
  for (const ReadyHead& head : std::exchange(passed_, {})) {
    if (reservations_.size() == kReservationsMax) return;
    tried_++;
    if (!could_ever_fit(head.request)) continue;
    const Run& run = state_.runs.at(head.run);
    bool has_own_slots = run.jobs > 0 && int64_t{run.jobs} * 1000 < state_.capacity.cpus_milli;
    if (!has_own_slots) {
      reserve(head, free_by_worker, 0);
      continue;
    }
    int64_t used_milli = overlay.cpus_milli(run);
    size_t suffice = slots_suffice(head, used_milli);
    auto begins = reserve(head, free_by_worker, suffice);
    if (begins)
      slot_reservations_.try_emplace(
          head.run,
          SlotReservation{head, reservations_.back().at, slots_left(head, used_milli, *begins)});
  }
}

// Resources of a service are not expected to become free: nothing is reserved for a unit that waits
// for them.
void Backfill::find_ends(const std::vector<Event>& proposals) {
  for (const auto& entry : state_.runs) {
    const Run& run = entry.second;
    uint32_t left = has_running_ ? 0 : run.phase_count(Phase::running);
    for (UnitId unit = 0; unit < run.units.size() && left > 0; unit++) {
      const Unit& u = run.units[unit];
      if (u.phase != Phase::running || u.dropped) continue;
      left--;
      for_each_rank(u, [&](WorkerId at, const std::vector<std::string>& gpus) {
        SchedulingClass held = held_on(state_.workers[at].info, run, unit);
        add_end(run, unit, u.assigned, at, std::move(held), gpus, u.expected_us);
      });
    }
  }
  bool is_first = !std::exchange(has_running_, true);
  for (; proposals_seen_ < proposals.size(); proposals_seen_++) {
    const auto& e = std::get<Assigned>(proposals[proposals_seen_]);
    const Run& run = state_.runs.at(e.id.run);
    SchedulingClass request = resource_request(state_, run, e.id.unit);
    uint32_t expected_us = expected_short_us(run, e.id.unit);
    add_end(run, e.id.unit, state_.at, e.worker, request, e.gpus, expected_us);
    for (const Placement& rank : e.others)
      add_end(run, e.id.unit, state_.at, rank.worker, request, rank.gpus, expected_us);
  }
  std::stable_sort(changes_.begin(), changes_.end(), [is_first](const Change& a, const Change& b) {
    return is_first ? std::tie(a.at, a.worker) < std::tie(b.at, b.worker) : a.at < b.at;
  });
}

void Backfill::add_end(const Run& run, UnitId unit, Time began, WorkerId at, SchedulingClass held,
                       const std::vector<std::string>& gpus, uint32_t expected_us) {
  if (is_service(run, unit)) return;
  Time end = expected_end(state_, run, unit, began);
  changes_.push_back({end, at, &run, std::move(held), gpus, expected_us});
}

void Backfill::apply_change(const Change& change,
                            std::vector<FreeResources>& free_by_worker) const {
  FreeResources& free = free_by_worker[change.worker];
  const std::vector<Gpu>& gpus = state_.workers[change.worker].info.gpus;
  if (change.is_end()) {
    release(free, change.held, change.expected_us);
    release_gpus(gpus, free, change.held.gpu, change.gpus);
  } else {
    core::allocate(free, change.held, change.expected_us);
    allocate_gpus(gpus, free, change.held.gpu, change.gpus);
  }
}

bool Backfill::could_ever_fit(const SchedulingClass& request) const {
  uint64_t ranks = 0;
  for (size_t i = 0; i < state_.workers.size() && ranks < request.ranks; i++) {
    const WorkerState& worker = state_.workers[i];
    if (could_be_on(state_, static_cast<WorkerId>(i), request))
      ranks += ranks_that_fit(worker.info, all_free(worker.info), request, request.ranks);
  }
  return ranks >= request.ranks;
}

// Reserves at the first time at which the unit fits next to the earlier reservations. Attempts with
// the same expected end count as ending one after the other, because most ends are not known.
std::optional<size_t> Backfill::reserve(const ReadyHead& head,
                                        std::vector<FreeResources> free_by_worker,
                                        size_t changes_before) {
  SchedulingClass least = head.request;
  least.ranks_max = least.ranks;
  // Number of ranks of each reservation that have begun.
  std::vector<size_t> begun(reservations_.size());
  auto has_unstarted_ranks = [&](size_t which) {
    return begun[which] < reservations_[which].placements.size();
  };
  auto free_on = [&](WorkerId worker) {
    FreeResources left = free_by_worker[worker];
    for (size_t i = 0; i < reservations_.size(); i++) {
      auto remaining = reservations_[i].remaining.find(worker);
      if (has_unstarted_ranks(i) && remaining != reservations_[i].remaining.end())
        left = element_min(left, remaining->second);
    }
    return left;
  };
  std::vector<uint32_t> free;
  uint64_t total = 0;
  for (size_t i = 0; i < free_by_worker.size(); i++) {
    free.push_back(placeable_ranks(state_, static_cast<WorkerId>(i),
                                   free_on(static_cast<WorkerId>(i)), least));
    total += free.back();
  }
  auto count_again = [&](WorkerId worker) {
    total -= free[worker];
    free[worker] = placeable_ranks(state_, worker, free_on(worker), least);
    total += free[worker];
  };
  for (size_t i = 0; i < changes_.size(); i++) {
    const Change& change = changes_[i];
    apply_change(change, free_by_worker);
    if (!change.is_end()) begun[change.begins]++;
    count_again(change.worker);
    bool all_began = !change.is_end() && !has_unstarted_ranks(change.begins);
    if (all_began)
      for (const Placement& rank : reservations_[change.begins].placements)
        count_again(rank.worker);
    if (total < least.ranks || i + 1 < changes_before) continue;
    std::vector<FreeResources> left;
    for (size_t worker = 0; worker < free_by_worker.size(); worker++)
      left.push_back(free_on(static_cast<WorkerId>(worker)));
    auto placements = place_gang(state_, std::move(left), least);
    FLOW_CHECK(placements.has_value());
    Reservation reservation{head, change.at, std::move(*placements), {}};
    for (const Placement& rank : reservation.placements)
      reservation.remaining.emplace(rank.worker, free_by_worker[rank.worker]);
    // The reserved unit still runs when later ones begin.
    for (size_t which = 0; which < reservations_.size(); which++)
      if (has_unstarted_ranks(which)) subtract(reservation, reservations_[which]);
    subtract(reservation, reservation);
    add_reservation(std::move(reservation), i + 1);
    return i + 1;
  }
  return std::nullopt;
}

void Backfill::subtract(const Reservation& own, Reservation& other) const {
  const SchedulingClass& request = own.owner.request;
  for (const Placement& rank : own.placements) {
    auto remaining = other.remaining.find(rank.worker);
    if (remaining == other.remaining.end()) continue;
    core::allocate(remaining->second, request, 0);
    allocate_gpus(state_.workers[rank.worker].info.gpus, remaining->second, request.gpu, rank.gpus);
  }
}

void Backfill::add_reservation(Reservation reservation, size_t changes_before) {
  const ReadyHead& head = reservation.owner;
  const Run& run = state_.runs.at(head.run);
  std::vector<Change> begins, ends;
  for (const Placement& rank : reservation.placements) {
    Change change{reservation.at,      rank.worker, &run, head.request, rank.gpus, 0,
                  reservations_.size()};
    begins.push_back(change);
    if (usual_us(run, head.unit) == 0 || is_service(run, head.unit)) continue;
    change.at += usual_ms(run, head.unit);
    change.begins = SIZE_MAX;
    ends.push_back(std::move(change));
  }
  changes_.insert(changes_.begin() + static_cast<std::ptrdiff_t>(changes_before), begins.begin(),
                  begins.end());
  changes_.insert(changes_.end(), ends.begin(), ends.end());
  std::stable_sort(changes_.begin(), changes_.end());
  reservations_.push_back(std::move(reservation));
}

int64_t Backfill::slots_left(const ReadyHead& head, int64_t used_milli, size_t changes) const {
  int64_t asked_milli = int64_t{head.request.cpus_milli} * head.request.ranks;
  int64_t left_milli = int64_t{state_.runs.at(head.run).jobs} * 1000 - used_milli - asked_milli;
  for (size_t i = 0; i < changes; i++) {
    const Change& change = changes_[i];
    if (change.run->id != head.run) continue;
    left_milli += change.is_end() ? change.held.cpus_milli : -change.held.cpus_milli;
  }
  return left_milli;
}

size_t Backfill::slots_suffice(const ReadyHead& head, int64_t used_milli) const {
  int64_t left_milli = slots_left(head, used_milli, 0);
  size_t changes = 0;
  for (; changes < changes_.size() && left_milli < 0; changes++) {
    const Change& change = changes_[changes];
    if (change.run->id != head.run) continue;
    left_milli += change.is_end() ? change.held.cpus_milli : -change.held.cpus_milli;
  }
  return changes;
}

FreeResources Backfill::free_for(WorkerId worker, const FreeResources& free, Time end) const {
  FreeResources left = free;
  for (const Reservation& reservation : reservations_) {
    auto remaining = reservation.remaining.find(worker);
    if (end > reservation.at && remaining != reservation.remaining.end())
      left = element_min(left, remaining->second);
  }
  return left;
}

bool Backfill::has_slots(const Run& run, const SchedulingClass& request, Time end) const {
  auto reservation = slot_reservations_.find(run.id);
  return reservation == slot_reservations_.end() || request.cpus_milli == 0 ||
         end <= reservation->second.at ||
         int64_t{request.cpus_milli} * request.ranks <= reservation->second.spare_milli;
}

void Backfill::allocate(const Run& run, const SchedulingClass& request, const Assigned& assigned,
                        Time end) {
  auto allocate_at = [&](WorkerId worker, const std::vector<std::string>& gpus) {
    for (Reservation& reservation : reservations_) {
      auto remaining = reservation.remaining.find(worker);
      if (end <= reservation.at || remaining == reservation.remaining.end()) continue;
      core::allocate(remaining->second, request, 0);
      allocate_gpus(state_.workers[worker].info.gpus, remaining->second, request.gpu, gpus);
    }
  };
  allocate_at(assigned.worker, assigned.gpus);
  for (const Placement& rank : assigned.others) allocate_at(rank.worker, rank.gpus);
  auto slots = slot_reservations_.find(run.id);
  auto ranks = static_cast<int64_t>(assigned.others.size() + 1);
  if (slots != slot_reservations_.end() && end > slots->second.at)
    slots->second.spare_milli -= request.cpus_milli * ranks;
}

const ReadyHead* Backfill::reservation_owner(WorkerId worker, Time end) const {
  for (const Reservation& reservation : reservations_)
    if (end > reservation.at && reservation.remaining.contains(worker)) return &reservation.owner;
  return nullptr;
}

const ReadyHead* Backfill::slot_reservation_owner(const Run& run) const {
  auto reservation = slot_reservations_.find(run.id);
  return reservation == slot_reservations_.end() ? nullptr : &reservation->second.owner;
}

}  // namespace flow::core
