#include "engine/costs/free_gpus.hpp"

#include <algorithm>

namespace flow {

namespace {

/// The changes at one point in time.
struct Change {
  int64_t at = 0;
  int worked = 0, wanted = 0;
  double held = 0;
};

void add_span(std::vector<Change>& changes, const TimeSpan& span, const Change& what) {
  if (span.from >= span.until) return;
  changes.push_back({span.from, what.worked, what.wanted, what.held});
  changes.push_back({span.until, -what.worked, -what.wanted, -what.held});
}

}  // namespace

double gpus_without_queue(const MachineUse& use) {
  std::vector<Change> changes;
  for (const TimeSpan& span : use.worked) add_span(changes, span, {0, 1, 0, 0});
  for (const TimeSpan& span : use.wanted) add_span(changes, span, {0, 0, 1, 0});
  for (const HeldGpus& each : use.held) add_span(changes, each.time, {0, 0, 0, each.gpus});
  std::ranges::sort(changes, {}, &Change::at);
  Change now;
  double free_ms = 0;
  for (const Change& change : changes) {
    if (now.worked > 0 && now.wanted == 0)
      free_ms += std::max(0.0, use.gpus - now.held) * static_cast<double>(change.at - now.at);
    now = {change.at, now.worked + change.worked, now.wanted + change.wanted,
           now.held + change.held};
  }
  return free_ms;
}

}  // namespace flow
