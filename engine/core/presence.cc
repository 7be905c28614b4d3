// When workers had GPUs that attempts could get, for reports of the time in which these were idle.
#include <algorithm>
#include <functional>

#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// Without those that failed. A machine without CPUs runs nothing.
std::vector<std::pair<std::string, uint32_t>> usable_gpus(const WorkerState& worker) {
  std::vector<std::pair<std::string, uint32_t>> counts;
  if (worker.is_lost() || worker.info.cpus_milli == 0) return counts;
  for (const Gpu& gpu : worker.info.gpus) {
    if (!gpu.fault.empty()) continue;
    auto count = std::ranges::find(counts, gpu.name, &std::pair<std::string, uint32_t>::first);
    if (count == counts.end())
      counts.emplace_back(gpu.name, 1);
    else
      count->second++;
  }
  std::ranges::sort(counts);
  return counts;
}

bool lasts(const GpuPresence& presence) { return presence.until == 0; }

/// Ends the presence, and forgets one that did not last.
void end_presence(State& state, std::vector<GpuPresence>::iterator presence, Time until) {
  presence->until = until;
  if (until <= presence->from) state.presences.erase(presence);
}

void forget_oldest(State& state) {
  auto ended = std::ranges::count_if(state.presences, std::not_fn(lasts));
  if (static_cast<size_t>(ended) <= kPresencesMax) return;
  auto oldest = state.presences.end();
  for (auto each = state.presences.begin(); each != state.presences.end(); ++each) {
    if (lasts(*each)) continue;
    if (oldest == state.presences.end() || each->until < oldest->until) oldest = each;
  }
  state.presences_since = std::max(state.presences_since, oldest->until);
  state.presences.erase(oldest);
}

}  // namespace

void Transition::note_presence(WorkerId at) {
  const WorkerState& worker = state_.workers[at];
  auto gpus = usable_gpus(worker);
  auto present = std::ranges::find_if(state_.presences, [&](const GpuPresence& each) {
    return lasts(each) && each.worker == worker.info.name;
  });
  bool is_present = present != state_.presences.end();
  if (is_present && present->gpus == gpus) return;
  if (is_present) end_presence(state_, present, state_.at);
  if (!gpus.empty()) state_.presences.push_back({state_.at, 0, worker.info.name, std::move(gpus)});
  forget_oldest(state_);
}

// A starting engine knows no GPU of its machine, and its workers have to join again.
void Transition::end_presences(Time until) {
  for (GpuPresence& each : state_.presences)
    if (lasts(each)) each.until = std::max(each.from, until);
  std::erase_if(state_.presences,
                [](const GpuPresence& each) { return !lasts(each) && each.until <= each.from; });
  while (state_.presences.size() > kPresencesMax) forget_oldest(state_);
}

void begin_presences(State& state) {
  state.presences.clear();
  state.presences_since = state.at;
  for (const WorkerState& worker : state.workers) {
    auto gpus = usable_gpus(worker);
    if (!gpus.empty()) state.presences.push_back({state.at, 0, worker.info.name, std::move(gpus)});
  }
}

}  // namespace flow::core
