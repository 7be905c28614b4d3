#include "tests/sim/engine_ranks.hpp"

#include <utility>

#include "tests/sim/engine_world.hpp"

namespace flow::sim {

void GangRanks::add(const core::AttemptId& id, uint32_t ranks) {
  if (ranks > 1) attempts_.insert(id);
}

void GangRanks::stop(const core::AttemptId& id) {
  attempts_.erase(id);
  offered_.erase(id);
}

// Other attempts than those of gangs end at their own report, without a stop command.
void GangRanks::accept(const DurableState& durable, uint64_t batches) {
  for (const core::AttemptId& id : std::exchange(offered_, {})) {
    if (!durable.ran(id, batches))
      throw BrokenPromise{"a join was accepted before a stale attempt was told to stop: " +
                          text_of(id)};
    auto run = durable.state().runs.find(id.run);
    if (run == durable.state().runs.end()) continue;
    if (core::def_of(run->second, id.unit)->resources.is_gang()) attempts_.insert(id);
  }
}

std::optional<core::AttemptId> GangRanks::stale(const DurableState& durable) const {
  for (const core::AttemptId& id : attempts_)
    if (!durable.runs(id)) return id;
  return std::nullopt;
}

}  // namespace flow::sim
