#include "tests/sim/engine_ranks.hpp"

#include "tests/sim/engine_world.hpp"

namespace flow::sim {

void GangRanks::add(const AttemptOrder& order) {
  if (order.ranks > 1) attempts_.insert(order.id);
}

void GangRanks::offer(const std::vector<core::AttemptId>& attempts) {
  attempts_.insert(attempts.begin(), attempts.end());
  is_joining_ = true;
}

// Other attempts than those of gangs end at their own report, without a stop command.
void GangRanks::accept(const DurableState& durable) {
  is_joining_ = false;
  for (const core::AttemptId& id : attempts_)
    if (!durable.runs(id))
      throw BrokenPromise{"a join was accepted before a stale attempt was told to stop: " +
                          text_of(id)};
  std::erase_if(attempts_, [&](const core::AttemptId& id) {
    return !core::def_of(durable.state().runs.at(id.run), id.unit)->resources.is_gang();
  });
}

void GangRanks::check(const DurableState& durable) const {
  if (is_joining_) return;
  for (const core::AttemptId& id : attempts_)
    if (!durable.runs(id))
      throw BrokenPromise{"ranks of a gang that has ended were not told to stop: " + text_of(id)};
}

}  // namespace flow::sim
