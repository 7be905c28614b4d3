// Placement: given ready units and what is free, propose assignments. Pure; the proposals are
// journaled like any event.
#pragma once
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// At most `limit` Assigned events, best first. Units known to be short may be assigned beyond the
/// free slots, up to a bounded backlog, so that a slot never waits for a disk sync.
std::vector<Event> schedule(const State& state, size_t limit);

/// Why `unit` is not running: the binding constraint and who holds it, as a sentence.
std::string explain_wait(const State& state, const RunId& run, UnitId unit);

}  // namespace flow::core
