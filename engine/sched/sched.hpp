// Placement: given ready units and what is free, propose assignments. Pure; the proposals are
// journaled like any event.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// Where the inputs of ready units lie, as far as that is known and worth to be looked at. Not of
/// the state: what it leads to is in the proposals.
class InputLocations {
 public:
  virtual ~InputLocations() = default;
  /// Bytes on each host that has some.
  virtual std::vector<std::pair<WorkerId, uint64_t>> of(const Run& run, UnitId unit) const = 0;
};

/// At most `limit` Assigned events, best first. Units known to be short may be assigned beyond the
/// free slots, up to a bounded backlog, so that a slot never waits for a disk sync.
std::vector<Event> schedule(const State& state, size_t limit,
                            const InputLocations* inputs = nullptr);

/// For whom what is free is kept, where a unit of such needs would find room but for that. None
/// where it starts next, or finds no room.
std::optional<ReadyHead> reserved_for(const State& state, const RunId& run,
                                      const SchedulingClass& request);

/// How many more hosts like this one, up to `most`, what is ready and finds no room would begin on
/// at once. Where it is not known what a host would have (no CPUs), one at most.
uint32_t scale_up_demand(const State& state, const WorkerInfo& like, uint32_t most);

/// That an elastic gang, whose attempt has just saved a checkpoint, is to begin again with more
/// ranks: it has run for `after_ms`, the machines where they would be have been as they are for as
/// long, and nobody who is ready waits for room, and no other grows.
std::optional<ResizeRequested> elastic_scale_up(const State& state, const AttemptId& id,
                                                Time after_ms);
constexpr Time kGrowAfterMs = 60'000;  // so that hosts that come and go do not restart it each time

/// Why `unit` is not running: the binding constraint of each host and who holds it, as a sentence;
/// where there are many hosts, of the rest how many lack what.
std::string explain_wait(const State& state, const RunId& run, UnitId unit);

}  // namespace flow::core
