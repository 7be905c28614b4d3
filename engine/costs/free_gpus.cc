#include "engine/costs/free_gpus.hpp"

#include <algorithm>

namespace flow {

namespace {

/// The changes at one point in time.
struct Change {
  int64_t at = 0;
  int worked = 0, wanted = 0;
  double free = 0;
};

void add_span(std::vector<Change>& changes, const TimeSpan& span, const Change& what) {
  if (span.from >= span.until) return;
  changes.push_back({span.from, what.worked, what.wanted, what.free});
  changes.push_back({span.until, -what.worked, -what.wanted, -what.free});
}

}  // namespace

FreeGpus free_gpus(const MachineUse& use) {
  std::vector<Change> changes;
  for (const TimeSpan& span : use.worked) add_span(changes, span, {0, 1, 0, 0});
  for (const TimeSpan& span : use.wanted) add_span(changes, span, {0, 0, 1, 0});
  for (const HeldGpus& each : use.there) add_span(changes, each.time, {0, 0, 0, each.gpus});
  for (const HeldGpus& each : use.held) add_span(changes, each.time, {0, 0, 0, -each.gpus});
  std::ranges::sort(changes, {}, &Change::at);
  Change now;
  FreeGpus free;
  for (const Change& change : changes) {
    double& cause = now.wanted == 0 ? free.without_queue_ms : free.fragmented_ms;
    if (now.worked > 0) cause += std::max(0.0, now.free) * static_cast<double>(change.at - now.at);
    now = {change.at, now.worked + change.worked, now.wanted + change.wanted,
           now.free + change.free};
  }
  return free;
}

}  // namespace flow
