#include "tests/sim/engine_ranks.hpp"

#include <utility>

#include "tests/sim/engine_world.hpp"

namespace flow::sim {

void GangRanks::add(const AttemptOrder& order) {
  if (order.ranks > 1) attempts_.insert(order.id);
}

void GangRanks::stop(const core::AttemptId& id) {
  attempts_.erase(id);
  offered_.erase(id);
}

void GangRanks::offer(const std::vector<core::AttemptId>& attempts) {
  offered_.insert(attempts.begin(), attempts.end());
}

// Other attempts than those of gangs end at their own report, without a stop command.
void GangRanks::accept(const DurableState& durable) {
  for (const core::AttemptId& id : std::exchange(offered_, {})) {
    if (!durable.runs(id))
      throw BrokenPromise{"a join was accepted before a stale attempt was told to stop: " +
                          text_of(id)};
    const core::Run& run = durable.state().runs.at(id.run);
    if (core::def_of(run, id.unit)->resources.is_gang()) attempts_.insert(id);
  }
}

void GangRanks::check(const DurableState& durable) const {
  for (const core::AttemptId& id : attempts_)
    if (!durable.runs(id))
      throw BrokenPromise{"ranks of a gang that has ended were not told to stop: " + text_of(id)};
}

}  // namespace flow::sim
