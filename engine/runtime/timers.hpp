// What is due at a time: timers of the core, ends of serving, failures of gangs that wait for an
// explanation.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/turn_input.hpp"

namespace flow {

/// Used by the turn's thread. An entry leaves when it is due, or with its run.
class Timers {
 public:
  void set(const core::SetTimer& timer) { timers_.emplace(timer.at, timer); }
  /// The run serves until then, and no earlier end of it counts.
  void end_serving(const core::RunId& run, core::Time at) {
    std::erase_if(serve_ends_, [&](const auto& each) { return each.second == run; });
    serve_ends_.emplace(at, run);
  }
  /// The inputs of a turn for all that is due at `now`.
  std::vector<TurnInput> take_due(core::Time now) {
    std::vector<TurnInput> due;
    for (const core::SetTimer& timer : take(timers_, now))
      due.push_back({PostedEvent{core::TimerFired{timer.run, timer.unit, timer.serial}}});
    for (core::RunId& run : take(serve_ends_, now))
      due.push_back({PostedEvent{core::ServeEnded{std::move(run)}}});
    return due;
  }
  /// INT64_MAX: nothing waits.
  core::Time next_due() const { return std::min(first(timers_), first(serve_ends_)); }
  /// The run has ended.
  void forget(const core::RunId& run) {
    std::erase_if(timers_, [&](const auto& each) { return each.second.run == run; });
    std::erase_if(serve_ends_, [&](const auto& each) { return each.second == run; });
  }

 private:
  template <typename Entry>
  static std::vector<Entry> take(std::multimap<core::Time, Entry>& entries, core::Time now) {
    std::vector<Entry> due;
    auto end = entries.upper_bound(now);
    for (auto each = entries.begin(); each != end; ++each) due.push_back(std::move(each->second));
    entries.erase(entries.begin(), end);
    return due;
  }
  template <typename Entry>
  static core::Time first(const std::multimap<core::Time, Entry>& entries) {
    return entries.empty() ? INT64_MAX : entries.begin()->first;
  }

  std::multimap<core::Time, core::SetTimer> timers_;
  std::multimap<core::Time, core::RunId> serve_ends_;
};

}  // namespace flow
