// Workers that come and go.
#include "engine/core/gpus.hpp"
#include "engine/core/machine.hpp"
#include "engine/core/room.hpp"

namespace flow::core {

void Machine::on(const HostJoined& event) {
  auto place = std::find_if(state_.hosts.begin() + 1, state_.hosts.end(),
                            [&](const Host& host) { return host.info.name == event.host.name; });
  if (place == state_.hosts.end()) place = state_.hosts.emplace(place);
  *place = {event.host, true, empty_room(event.host)};
  rebuild_reach(state_);
}

// What is reported of its attempts from now on finds them fenced.
void Machine::on(const HostLost& event) {
  Host& host = state_.hosts[event.host];
  std::string why = "the worker `" + host.info.name + "`, which ran it, was lost: " + event.why;
  for (auto& [id, run] : state_.runs) {
    if (run.phase_count(Phase::running) > 0) lose_attempts(run, event.host, why);
  }
  host.is_up = false;
  rebuild_reach(state_);
}

void Machine::lose_attempts(Run& run, HostId host, const std::string& why) {
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    if (run.units[unit].phase != Phase::running || run.units[unit].host != host) continue;
    touch(run);
    attempt_over(run, unit);
    if (run.ending) {
      end_service(run, unit);
    } else {
      retry_or_fail(run, unit, {Cause::lost, why, "", 0});
    }
  }
}

}  // namespace flow::core
