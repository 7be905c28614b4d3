// Proposes the best ready units for what is free. Looks at one unit of each class of needs, so a
// long queue behind a unit that does not fit costs nothing.
#include <algorithm>
#include <map>
#include <optional>

#include "engine/core/gpus.hpp"
#include "engine/core/room.hpp"
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

/// What the proposals so far would take, on top of the state.
class Plans {
 public:
  explicit Plans(const State& state) : state_(state) {
    for (const Host& host : state.hosts) rooms_.push_back(host.room);
  }

  /// The host that the unit goes to, or none where it does not fit.
  std::optional<HostId> place(const Run& run, UnitId unit, const ReadyClass& needs) {
    if (!may_start(state_, run, needs, run_cpus(run), map_running(run, needs))) return std::nullopt;
    uint32_t expected_us = expected_short_us(run, unit);
    std::optional<HostId> best;
    Price least{};
    for (size_t i = 0; i < rooms_.size(); i++) {
      if (!fits(state_, static_cast<HostId>(i), rooms_[i], needs, expected_us)) continue;
      Price price = price_of(i, needs);
      if (best && !(price < least)) continue;
      best = static_cast<HostId>(i);
      least = price;
    }
    return best;
  }
  Assigned add(const Run& run, UnitId unit, const ReadyClass& needs, HostId host) {
    Assigned assigned{next_attempt(state_, run, unit), {}, host};
    const std::vector<Gpu>& gpus = state_.hosts[host].info.gpus;
    Room& room = rooms_[host];
    if (needs.gpu.milli > 0) assigned.gpus = choose_gpus(gpus, room, needs.gpu);
    take(room, needs, expected_short_us(run, unit));
    take_gpus(gpus, room, needs.gpu, assigned.gpus);
    run_cpus(run) += needs.cpus_milli;
    if (needs.limited_map != kNoNode) map_running(run, needs)++;
    return assigned;
  }

 private:
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
    auto host = plans.place(run, best.unit, best.what);
    if (!host) {
      blocked++;
      continue;
    }
    proposals.push_back(plans.add(run, best.unit, best.what, *host));
    UnitId follower = run.ready.at(best.what).after(best.unit);
    if (follower == kNoNode) continue;
    best.unit = follower;
    next.insert(std::move(best));
  }
  return proposals;
}

}  // namespace flow::core
