// Proposes the best ready units for what is free. Looks at one unit of each class of needs, so a
// long queue behind a unit that does not fit costs nothing.
#include <map>

#include "engine/core/gpus.hpp"
#include "engine/core/room.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

namespace {

/// Classes that did not fit, looked at in one call. What lies behind them waits for the next.
constexpr size_t kBlockedMax = 64;

/// What the proposals so far would take, on top of the state.
class Plans {
 public:
  explicit Plans(const State& state) : state_(state), room_(state.room) {}

  bool fit(const Run& run, UnitId unit, const ReadyClass& needs) {
    return fits(state_, room_, run, unit, needs, run_cpus(run), map_running(run, needs));
  }
  Assigned add(const Run& run, UnitId unit, const ReadyClass& needs) {
    Assigned assigned{next_attempt(state_, run, unit)};
    if (needs.gpu.milli > 0) assigned.gpus = choose_gpus(state_, room_, needs.gpu);
    take(room_, needs, expected_short_us(run, unit));
    take_gpus(state_, room_, needs.gpu, assigned.gpus);
    run_cpus(run) += needs.cpus_milli;
    if (needs.limited_map != kNoNode) map_running(run, needs)++;
    return assigned;
  }

 private:
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
  Room room_;
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
    if (!plans.fit(run, best.unit, best.what)) {
      blocked++;
      continue;
    }
    proposals.push_back(plans.add(run, best.unit, best.what));
    UnitId follower = run.ready.at(best.what).after(best.unit);
    if (follower == kNoNode) continue;
    best.unit = follower;
    next.insert(std::move(best));
  }
  return proposals;
}

}  // namespace flow::core
