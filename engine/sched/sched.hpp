// Placement: given ready units and free resources, propose assignments. Pure; the proposals are
// journaled like any other event.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// Data locality: which workers have the inputs of ready units. It is not part of the state; its
/// effect is in the proposals.
class InputLocations {
 public:
  virtual ~InputLocations() = default;
  /// Input bytes on each worker that has some.
  virtual std::vector<std::pair<WorkerId, uint64_t>> of(const Run& run, UnitId unit) const = 0;
};

/// Returns at most `limit` Assigned events, best first. Short units may be assigned beyond the free
/// slots, up to a bounded backlog, so that a slot never idles during a disk sync.
std::vector<Event> schedule(const State& state, size_t limit,
                            const InputLocations* inputs = nullptr);

/// The ready units of a run with this request.
using ClassOfRun = std::pair<RunId, SchedulingClass>;

/// The units whose reservations keep units of other classes from starting although these fit, by
/// the class that they keep. A class that is not there starts next or does not fit.
std::map<ClassOfRun, ReadyHead> reservations(const State& state);

/// Number of additional workers like this one, at most `most`, on which waiting ready units would
/// start immediately. If their capacity is unknown (no CPUs), at most one.
uint32_t scale_up_demand(const State& state, const WorkerInfo& like, uint32_t most);

/// Decides whether an elastic gang that has just saved a checkpoint restarts with more ranks. It
/// must have run for `after_ms`, the workers for the new ranks must have been unchanged for as
/// long, no ready unit may wait for resources, no other gang may be resizing, and the scheduler
/// must start it with more ranks when it has stopped.
std::optional<ResizeRequested> elastic_scale_up(const State& state, const AttemptId& id,
                                                Time after_ms);
constexpr Time kGrowAfterMs =
    60'000;  // so that workers that come and go do not restart it each time

/// Says why one unit is not running: see WaitExplainer, which costs less for several.
std::string explain_wait(const State& state, const RunId& run, UnitId unit);
/// "restarted 3 times, last: …" with why the last attempt ended, of a service that died after it
/// was ready; else "".
std::string restarts_text(const Unit& unit);

}  // namespace flow::core
