// Usage of the runs' own limits: that of the state plus assignments that are only assumed.
#pragma once
#include <map>
#include <utility>

#include "engine/core/core.hpp"

namespace flow::core {

class UsageOverlay {
 public:
  int32_t& cpus_milli(const Run& run) {
    return cpus_.try_emplace(run.id, run.cpus_used_milli).first->second;
  }
  /// Running instances of the map that limits such a unit; 0 without a limit.
  uint32_t& map_running(const Run& run, const SchedulingClass& request) {
    if (request.limited_map == kNoNode) return none_ = 0;
    auto found = run.map_running.find(request.limited_map);
    uint32_t running = found == run.map_running.end() ? 0 : found->second;
    return map_running_.try_emplace({run.id, request.limited_map}, running).first->second;
  }
  bool may_start(const State& state, const Run& run, const SchedulingClass& request) {
    return core::may_start(state, run, request, cpus_milli(run), map_running(run, request));
  }
  void start(const Run& run, const SchedulingClass& request, uint32_t ranks) {
    cpus_milli(run) += request.cpus_milli * static_cast<int32_t>(ranks);
    map_running(run, request)++;
  }

 private:
  std::map<RunId, int32_t> cpus_;
  std::map<std::pair<RunId, UnitId>, uint32_t> map_running_;
  uint32_t none_ = 0;
};

}  // namespace flow::core
