// Proposes the best ready units for what is free. Looks at one unit of each class of needs, so a
// long queue behind a unit that does not fit costs nothing.
#include <algorithm>
#include <map>
#include <optional>

#include "engine/core/gpus.hpp"
#include "engine/core/room.hpp"
#include "engine/sched/gangs.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

namespace {

/// Classes that did not fit, looked at in one call. What lies behind them waits for the next.
constexpr size_t kBlockedMax = 64;

/// Which host a unit goes to, of those that it fits on: the least of these. A free slot comes
/// before one that will be free; who needs no GPU leaves those that have some to others; the
/// engine's own machine has the inputs; then the fullest, so that a wide unit still finds room.
struct Price {
  bool waits_for_slot, blocks_gpus;
  size_t gpus_left;
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
  for (size_t i = 0; i < least.gpus.size(); i++) {
    GpuRoom& gpu = least.gpus[i];
    gpu.milli_free = std::min(gpu.milli_free, b.gpus[i].milli_free);
    gpu.memory_free_bytes = std::min(gpu.memory_free_bytes, b.gpus[i].memory_free_bytes);
  }
  return least;
}

/// What the proposals so far would take, on top of the state.
class Plans {
 public:
  explicit Plans(const State& state) : state_(state) {
    for (const Host& host : state.hosts) rooms_.push_back(host.room);
  }

  /// Where the unit, or each of its ranks, goes; nowhere where it does not fit.
  std::optional<Assigned> propose(const Run& run, UnitId unit, const ReadyClass& needs) {
    if (!may_start(state_, run, needs, run_cpus(run), map_running(run, needs))) return std::nullopt;
    if (needs.cpus_milli > 0 && drained_.contains(run.id)) return std::nullopt;
    bool is_late = reservation_ && !ends_by(state_, run, unit, reservation_->at);
    auto assigned =
        needs.is_gang() ? gang(run, unit, needs, is_late) : one(run, unit, needs, is_late);
    if (!assigned) return std::nullopt;
    take_all(*assigned, needs, expected_short_us(run, unit), is_late);
    run_cpus(run) += needs.cpus_milli * static_cast<int32_t>(assigned->others.size() + 1);
    if (needs.limited_map != kNoNode) map_running(run, needs)++;
    return assigned;
  }

  /// A gang was passed over. What it waits for is kept for the first one: only what ends before it
  /// can start, or leaves it room, may still go where it will. Where its run's own slots bind,
  /// nothing more of that run takes one.
  void keep_for(const Run& run, const ReadyClass& needs, const std::vector<Event>& proposals) {
    if (!may_start(state_, run, needs, run_cpus(run), map_running(run, needs))) {
      if (may_start(state_, run, needs, 0, map_running(run, needs))) drained_.insert(run.id);
      return;
    }
    if (!reservation_) reservation_ = reserve(state_, rooms_, proposals, needs);
  }

 private:
  std::optional<Assigned> one(const Run& run, UnitId unit, const ReadyClass& needs, bool is_late) {
    uint32_t expected_us = expected_short_us(run, unit);
    std::optional<HostId> best;
    Price least{};
    for (size_t i = 0; i < rooms_.size(); i++) {
      auto at = static_cast<HostId>(i);
      if (!fits(state_, at, rooms_[i], needs, expected_us)) continue;
      if (is_late && !fits(state_, at, least_of(rooms_[i], reservation_->rooms[i]), needs, 0))
        continue;
      Price price = price_of(i, needs);
      if (best && !(price < least)) continue;
      best = at;
      least = price;
    }
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
    return may_start(state_, run, needs, run_cpus(run), map_running(run, needs));
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
    return {needs.cpus_milli > room.cpus_free_milli, !needs_gpu && !room.gpus.empty(),
            needs_gpu ? free_whole(room) : 0, host != 0, room.cpus_free_milli};
  }
  int32_t& run_cpus(const Run& run) {
    return run_cpus_.try_emplace(run.id, run.cpus_used_milli).first->second;
  }
  uint32_t& map_running(const Run& run, const ReadyClass& needs) {
    if (needs.limited_map == kNoNode) return none_ = 0;
    auto found = run.map_running.find(needs.limited_map);
    uint32_t running = found == run.map_running.end() ? 0 : found->second;
    return map_running_.try_emplace({run.id, needs.limited_map}, running).first->second;
  }

  const State& state_;
  std::vector<Room> rooms_;
  std::optional<Reservation> reservation_;
  std::set<RunId> drained_;
  std::map<RunId, int32_t> run_cpus_;
  std::map<std::pair<RunId, UnitId>, uint32_t> map_running_;
  uint32_t none_ = 0;
};

}  // namespace

std::vector<Event> schedule(const State& state, size_t limit) {
  std::vector<Event> proposals;
  Plans plans(state);
  std::set<ReadyHead> next;  // of classes whose first ones were proposed
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
    auto proposal = plans.propose(run, best.unit, best.what);
    if (!proposal) {
      if (best.what.is_gang()) plans.keep_for(run, best.what, proposals);
      blocked++;
      continue;
    }
    proposals.push_back(std::move(*proposal));
    UnitId follower = run.ready.at(best.what).after(best.unit);
    if (follower == kNoNode) continue;
    best.unit = follower;
    next.insert(std::move(best));
  }
  return proposals;
}

}  // namespace flow::core
