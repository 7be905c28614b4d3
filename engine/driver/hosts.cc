// Workers of other machines, as turns see them.
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/driver/driver.hpp"

namespace flow {

std::string Driver::host_name(core::HostId host) const {
  return host < state_.hosts.size() ? state_.hosts[host].info.name : "";
}

std::vector<std::string> Driver::awaited_hosts() {
  std::vector<std::string> names;
  inspect([&](const core::State& state, Resolver&) {
    for (const core::Host& host : state.hosts)
      if (host.is_awaited) names.push_back(host.info.name);
  });
  return names;
}

// What it brought that it is to stop is told so before it is welcome: the rest of it goes on then.
void Driver::host_joined(core::HostJoined event, std::function<void(bool)> decided) {
  Input input;
  input.event = std::move(event);
  input.done = [this, decided = std::move(decided)](bool admitted) {
    if (!admitted) return decided(false);
    after_acts_.push_back([decided] { decided(true); });
  };
  post(std::move(input));
}

void Driver::host_away(const std::string& name, std::string why) {
  record_of_host(name, [why](core::HostId host) { return core::HostAway{host, why}; });
}

void Driver::host_draining(const std::string& name, std::string why) {
  record_of_host(name, [why](core::HostId host) { return core::HostDraining{host, why}; });
}

void Driver::host_lost(const std::string& name, std::string why) {
  record_of_host(name, [why](core::HostId host) { return core::HostLost{host, why}; });
}

// Its number is found in the turn: what made it known may be just before in the inbox.
void Driver::record_of_host(const std::string& name,
                            const std::function<core::Event(core::HostId)>& event_of) {
  Input input;
  input.only([this, name, event_of](Batch&, core::State& state) {
    for (size_t host = 1; host < state.hosts.size(); host++) {
      if (state.hosts[host].info.name != name) continue;
      record_if_admitted(event_of(static_cast<core::HostId>(host)), now_ms());
      return;
    }
  });
  post(std::move(input));
}

void Driver::keep_row(std::string key, std::string value) {
  Input input;
  input.only([key = std::move(key), value = std::move(value)](Batch& batch, core::State&) {
    if (value.empty()) return batch.erase(Family::kv, key);
    batch.put(Family::kv, key, value);
  });
  post(std::move(input));
}

void Driver::rank_met(Report report) { post(input_of(std::move(report), "")); }

void Driver::host_reported(const std::string& name, Report report,
                           std::pair<std::string, std::string> row,
                           std::function<void(bool)> decided, std::function<void()> durable) {
  std::vector<Input> inputs;
  inputs.push_back(input_of(std::move(report), name));
  auto told = std::move(inputs.back().done);
  inputs.back().done = [told = std::move(told), decided = std::move(decided)](bool admitted) {
    if (told) told(admitted);
    decided(admitted);
  };
  Input taken;
  taken.only([row = std::move(row)](Batch& batch, core::State&) {
    batch.put(Family::kv, row.first, row.second);
  });
  taken.done = [durable = std::move(durable)](bool admitted) {
    if (admitted) durable();
  };
  inputs.push_back(std::move(taken));
  post(std::move(inputs));
}

}  // namespace flow
