// The simulated world: what is submitted to it, and its time.
#include "tests/sim/simulation.hpp"

#include <algorithm>

#include "tests/core/dump.hpp"

namespace flow::sim {

using namespace core;

namespace {

constexpr size_t kTurnsMax = 20'000;
constexpr size_t kInboxMax = 8;

}  // namespace

Simulation::Simulation(uint64_t seed, const Weather& weather, Cast cast)
    : random_(seed), weather_(weather), cast_(cast) {
  // What is submitted depends on the seed alone, not on the weather.
  Random plans(seed * 7919 + 1);
  uint32_t runs = 1 + plans.below(3);
  for (uint32_t i = 0; i < runs; i++) {
    Client client;
    client.starts = now_ + plans.below(60);
    client.plan = is_contest() ? contest_plan(plans.next()) : random_plan(plans.next());
    if (!is_contest()) choose_ways(client, plans);
    clients_["run-" + std::to_string(i)] = client;
  }
  if (is_contest()) bring_workers();
  crashes_left_ = weather.crashes ? 6 : 0;
  meddling_left_ = weather.meddling ? 12 : 0;
  joins_left_ = weather.workers ? 12 : 0;
}

void Simulation::choose_ways(Client& client, Random& plans) {
  client.fail_fast = plans.one_in(8);
  client.fresh = plans.one_in(6);
  client.cancels = plans.one_in(10);
  client.jobs = int32_t(plans.below(3));
}

std::string Simulation::run() {
  recover();
  for (size_t turns = 0; problem_.empty() && !all_done(); turns++) {
    if (turns == kTurnsMax) {
      broken("it does not end");
      break;
    }
    if (clients_act() || workers_act() || lines_act()) continue;
    Time next = INT64_MAX;
    if (!network_.empty()) next = network_.begin()->first;
    if (!timers_.empty()) next = std::min(next, timers_.begin()->first);
    if (!leases_.empty()) next = std::min(next, leases_.begin()->first);
    if (!returns_.empty()) next = std::min(next, returns_.begin()->first);
    if (!departures_.empty()) next = std::min(next, departures_.begin()->first);
    for (const auto& [id, client] : clients_) {
      if (!state_.runs.contains(id) && !outcomes_.contains(id)) {
        next = std::min(next, std::max(client.starts, now_));
      }
    }
    if (next == INT64_MAX && questions_.empty()) {
      broken("nothing can happen any more, but runs are open:\n" + dump(state_));
      break;
    }
    if (next != INT64_MAX) now_ = std::max(now_, next);
    std::vector<Event> inbox;
    while (!network_.empty() && network_.begin()->first <= now_ && inbox.size() < kInboxMax) {
      Message message = std::move(network_.begin()->second);
      network_.erase(network_.begin());
      bool is_cut = !message.from.empty() && !is_connected(message.from);
      if (is_cut && (!weather_.bad_network || random_.one_in(2))) continue;
      inbox.push_back(std::move(message.event));
    }
    while (!timers_.empty() && timers_.begin()->first <= now_) {
      inbox.push_back(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    turn(std::move(inbox));
    if (crashed_) recover();
  }
  if (problem_.empty()) check_seen();
  return problem_;
}

void Simulation::broken(const std::string& promise) {
  if (problem_.empty()) problem_ = promise;
}

}  // namespace flow::sim
