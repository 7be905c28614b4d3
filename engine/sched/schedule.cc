// Proposes the best ready units for what is free. Looks at one unit of each class of needs, so a
// long queue behind a unit that does not fit costs nothing.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/core/gpus.hpp"
#include "engine/core/room.hpp"
#include "engine/sched/gangs.hpp"
#include "engine/sched/sched.hpp"
#include "engine/sched/tally.hpp"

namespace flow::core {

namespace {

/// Classes that did not fit, looked at in one call. What lies behind them waits for the next.
constexpr size_t kBlockedMax = 64;
/// Units behind one whose inputs lie elsewhere that may go before it.
constexpr size_t kAheadMax = 32;

/// Which host a unit goes to, of those that it fits on: the least of these. A free slot comes
/// before one that will be free; who needs no GPU, and nothing by name, leaves those that have
/// some to others, and who needs GPUs goes where NVLink joins as many, then where the fewest are
/// free; then where most of the inputs lie; the engine's own machine has them all; then the
/// fullest, so that a wide unit still finds room.
struct Price {
  bool waits_for_slot, blocks_others;
  bool is_split;  // NVLink joins no such GPUs there
  size_t gpus_left;
  uint64_t mib_elsewhere;  // of the inputs, beyond the host that has most; less is not worth a move
  bool is_away;
  int32_t cpus_left_milli;
  auto operator<=>(const Price&) const = default;
};

size_t free_whole(const Room& room) {
  return static_cast<size_t>(
      std::count_if(room.gpus.begin(), room.gpus.end(),
                    [](const GpuRoom& gpu) { return gpu.milli_free == kWholeGpuMilli; }));
}

/// What is free in both.
Room least_of(const Room& a, const Room& b) {
  Room least = a;
  least.cpus_free_milli = std::min(a.cpus_free_milli, b.cpus_free_milli);
  least.memory_free_bytes = std::min(a.memory_free_bytes, b.memory_free_bytes);
  least.named = flow::least_of(a.named, b.named);
  for (size_t i = 0; i < least.gpus.size(); i++) {
    GpuRoom& gpu = least.gpus[i];
    gpu.milli_free = std::min(gpu.milli_free, b.gpus[i].milli_free);
    gpu.memory_free_bytes = std::min(gpu.memory_free_bytes, b.gpus[i].memory_free_bytes);
  }
  return least;
}

using UnitNames = std::set<std::pair<RunId, UnitId>>;

/// What the proposals so far would take, on top of the state.
class Plans {
 public:
  Plans(const State& state, const InputPlaces* inputs) : state_(state), inputs_(inputs) {
    for (const Host& host : state.hosts) rooms_.push_back(host.room);
  }

  /// Where the unit, or each of its ranks, goes; nowhere where it does not fit.
  std::optional<Assigned> propose(const Run& run, UnitId unit, const ReadyClass& needs) {
    if (!tally_.may_start(state_, run, needs)) return std::nullopt;
    if (needs.cpus_milli > 0 && drained_.contains(run.id)) return std::nullopt;
    bool is_late = ends_late(run, unit);
    auto assigned =
        needs.is_gang() ? gang(run, unit, needs, is_late) : one(run, unit, needs, is_late);
    if (!assigned) return std::nullopt;
    take_all(*assigned, needs, expected_short_us(run, unit), is_late);
    tally_.start(run, needs, static_cast<uint32_t>(assigned->others.size() + 1));
    return assigned;
  }

  /// Of a class the first unit, or, where that one's inputs would have to be moved, one behind it
  /// whose inputs lie where it would go. Those that went ahead of it before are `ahead`.
  UnitId next_of(const Run& run, const ReadyHead& head, const UnitNames& ahead) {
    find_inputs(run, head.unit);
    if (most_mib_ == 0 || head.what.is_gang()) return head.unit;
    auto at = best_host(run, head.unit, head.what, ends_late(run, head.unit));
    if (!at || mib_at(*at) == most_mib_) return head.unit;
    const UnitSet& ready = run.ready.at(head.what);
    UnitId unit = head.unit;
    for (size_t looked = 0; looked < kAheadMax; looked++) {
      unit = ready.after(unit);
      if (unit == kNoNode) break;
      if (ahead.contains({run.id, unit})) continue;
      find_inputs(run, unit);
      bool is_there = most_mib_ > 0 && mib_at(*at) == most_mib_;
      uint32_t expected_us = expected_short_us(run, unit);
      if (is_there && has_room(*at, head.what, expected_us, ends_late(run, unit))) return unit;
    }
    return head.unit;
  }

  /// A gang was passed over. What it waits for is kept for the first one: only what ends before it
  /// can start, or leaves it room, may still go where it will. Where its run's own slots bind,
  /// nothing more of that run takes one.
  void keep_for(const Run& run, const ReadyClass& needs, const std::vector<Event>& proposals) {
    if (!tally_.may_start(state_, run, needs)) {
      if (may_start(state_, run, needs, 0, tally_.map_running(run, needs))) drained_.insert(run.id);
      return;
    }
#ifdef FLOW_MUTANT_NOTHING_IS_KEPT_FOR_A_GANG
    (void)proposals;
#else
    if (!reservation_) reservation_ = reserve(state_, rooms_, proposals, needs);
#endif
  }

 private:
  std::optional<Assigned> one(const Run& run, UnitId unit, const ReadyClass& needs, bool is_late) {
    find_inputs(run, unit);
    auto best = best_host(run, unit, needs, is_late);
    if (!best) return std::nullopt;
    Assigned assigned{next_attempt(state_, run, unit), {}, *best};
    if (needs.gpu.milli > 0)
      assigned.gpus =
          choose_gpus(state_.hosts[*best].info.gpus, room_for(*best, is_late), needs.gpu);
    return assigned;
  }

  std::optional<Assigned> gang(const Run& run, UnitId unit, ReadyClass needs, bool is_late) {
    Assigned assigned{next_attempt(state_, run, unit)};
    assigned.share = {needs.cpus_milli, needs.memory_bytes};
    while (needs.ranks_max > needs.ranks && !may_be_of(run, needs, needs.ranks_max))
      needs.ranks_max--;
    std::vector<Room> rooms;
    for (size_t i = 0; i < rooms_.size(); i++) rooms.push_back(room_for(i, is_late));
    auto placements = place_gang(state_, rooms, needs);
    if (!placements) return std::nullopt;
    assigned.host = placements->front().host;
    assigned.gpus = std::move(placements->front().gpus);
    assigned.others.assign(std::make_move_iterator(placements->begin() + 1),
                           std::make_move_iterator(placements->end()));
    return assigned;
  }
  bool may_be_of(const Run& run, ReadyClass needs, uint32_t ranks) {
    needs.ranks = ranks;
    return tally_.may_start(state_, run, needs);
  }

  bool ends_late(const Run& run, UnitId unit) const {
    return reservation_ && !ends_by(state_, run, unit, reservation_->at);
  }
  bool has_room(HostId at, const ReadyClass& needs, uint32_t expected_us, bool is_late) const {
    if (!fits(state_, at, rooms_[at], needs, expected_us)) return false;
    return !is_late || fits(state_, at, least_of(rooms_[at], reservation_->rooms[at]), needs, 0);
  }
  /// With its inputs found.
  std::optional<HostId> best_host(const Run& run, UnitId unit, const ReadyClass& needs,
                                  bool is_late) const {
    uint32_t expected_us = expected_short_us(run, unit);
    std::optional<HostId> best;
    Price least{};
    for (size_t i = 0; i < rooms_.size(); i++) {
      auto at = static_cast<HostId>(i);
      if (!has_room(at, needs, expected_us, is_late)) continue;
      Price price = price_of(i, needs);
      if (best && !(price < least)) continue;
      best = at;
      least = price;
    }
    return best;
  }

  Room room_for(size_t host, bool is_late) const {
    return is_late ? least_of(rooms_[host], reservation_->rooms[host]) : rooms_[host];
  }
  void take_all(const Assigned& assigned, const ReadyClass& needs, uint32_t expected_us,
                bool is_late) {
    take_one(assigned.host, assigned.gpus, needs, expected_us, is_late);
    for (const Placement& rank : assigned.others)
      take_one(rank.host, rank.gpus, needs, expected_us, is_late);
  }
  void take_one(HostId at, const std::vector<std::string>& devices, const ReadyClass& needs,
                uint32_t expected_us, bool is_late) {
    const std::vector<Gpu>& gpus = state_.hosts[at].info.gpus;
    take(rooms_[at], needs, expected_us);
    take_gpus(gpus, rooms_[at], needs.gpu, devices);
    if (!is_late) return;
    take(reservation_->rooms[at], needs, 0);
    take_gpus(gpus, reservation_->rooms[at], needs.gpu, devices);
  }

  Price price_of(size_t host, const ReadyClass& needs) const {
    const Room& room = rooms_[host];
    bool needs_gpu = needs.gpu.milli > 0;
    return {needs.cpus_milli > room.cpus_free_milli,
            (!needs_gpu && !room.gpus.empty()) || (needs.named.empty() && !room.named.empty()),
            needs_gpu && !has_island_for(state_.hosts[host].info.gpus, room, needs.gpu),
            needs_gpu ? free_whole(room) : 0,
            most_mib_ - mib_at(host),
            host != 0,
            room.cpus_free_milli};
  }
  void find_inputs(const Run& run, UnitId unit) {
    places_.clear();
    most_mib_ = 0;
    if (inputs_ != nullptr && rooms_.size() > 1) places_ = inputs_->of(run, unit);
    for (auto& [host, bytes] : places_) most_mib_ = std::max(most_mib_, bytes >>= 20);
  }
  uint64_t mib_at(size_t host) const {
    for (const auto& [at, mib] : places_)
      if (at == host) return mib;
    return 0;
  }

  const State& state_;
  const InputPlaces* const inputs_;
  std::vector<std::pair<HostId, uint64_t>> places_;  // of the unit that is looked at, in MiB
  uint64_t most_mib_ = 0;
  std::vector<Room> rooms_;
  std::optional<Reservation> reservation_;
  std::set<RunId> drained_;
  Tally tally_;
};

}  // namespace

std::vector<Event> schedule(const State& state, size_t limit, const InputPlaces* inputs) {
  std::vector<Event> proposals;
  Plans plans(state, inputs);
  std::set<ReadyHead> next;  // of classes whose first ones were proposed
  UnitNames ahead;
  auto head = state.ready.begin();
  size_t blocked = 0;
  while (proposals.size() < limit && blocked < kBlockedMax) {
    bool none_left = head == state.ready.end();
    if (none_left && next.empty()) break;
    ReadyHead best;
    if (!next.empty() && (none_left || *next.begin() < *head)) {
      best = std::move(next.extract(next.begin()).value());
    } else {
      best = *head++;
    }
    const Run& run = state.runs.at(best.run);
    UnitId unit = plans.next_of(run, best, ahead);
    auto proposal = plans.propose(run, unit, best.what);
    if (!proposal) {
      if (best.what.is_gang()) plans.keep_for(run, best.what, proposals);
      blocked++;
      continue;
    }
    proposals.push_back(std::move(*proposal));
    if (unit != best.unit) {
      ahead.emplace(best.run, unit);
    } else {
      const UnitSet& ready = run.ready.at(best.what);
      do best.unit = ready.after(best.unit);
      while (best.unit != kNoNode && ahead.contains({best.run, best.unit}));
    }
    if (best.unit != kNoNode) next.insert(std::move(best));
  }
  return proposals;
}

}  // namespace flow::core
