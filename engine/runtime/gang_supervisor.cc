#include "engine/runtime/gang_supervisor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/core/usage_of_ranks.hpp"

namespace flow {

namespace {

constexpr int64_t kUnexplainedMs = 5'000;   // from a peer's failure to a failure that explains it
constexpr int64_t kPeerFailureMs = 300;     // between ranks that see another one end
constexpr int64_t kRankProgressMs = 2'000;  // after a timeout, for all ranks to report positions
constexpr int64_t kKilledMs = 2'000;        // from the end of the grace to the end of rank 0
constexpr size_t kUnreportedGangsMax = 1'024;
constexpr size_t kRankAddressMax = size_t{1} << 16;  // bytes; a few hundred are usual

/// One of its workers drains: all ranks were asked to stop.
bool is_leaving(const core::State& state, const core::Unit& unit) {
  std::vector<core::WorkerId> workers = core::workers_of(unit);
  return std::any_of(workers.begin(), workers.end(),
                     [&](core::WorkerId worker) { return state.workers[worker].is_draining; });
}

bool is_resizing(const core::Unit& unit) { return unit.detail && unit.detail->is_resizing; }

/// "rank 0 is on `a`, rank 1 on `b`"
std::string ranks_placed(const core::State& state, const core::AttemptId& id) {
  constexpr size_t kNamed = 16;
  std::string text;
  size_t rank = 0;
  core::for_each_rank(
      state.runs.at(id.run).units[id.unit], [&](core::WorkerId worker, const auto&) {
        if (rank < kNamed)
          text += fmt::format("{}rank {}{} on {}", text.empty() ? "" : ", ", rank,
                              text.empty() ? " is" : "", core::worker_text(state, worker));
        rank++;
      });
  return rank > kNamed ? text + fmt::format(" and {} more", rank - kNamed) : text;
}

/// The workers of all ranks.
std::vector<std::string> worker_names(const core::State& state, const core::AttemptId& id) {
  std::vector<std::string> names;
  for (core::WorkerId worker : core::workers_of(state.runs.at(id.run).units[id.unit]))
    names.push_back(worker < state.workers.size() ? state.workers[worker].info.name : "");
  return names;
}

}  // namespace

uint32_t first_rank_on(const core::State& state, const core::AttemptId& id, core::WorkerId worker) {
  uint32_t rank = 0, first = UINT32_MAX;
  core::for_each_rank(state.runs.at(id.run).units[id.unit], [&](core::WorkerId at, const auto&) {
    if (at == worker && first == UINT32_MAX) first = rank;
    rank++;
  });
  return first == UINT32_MAX ? 0 : first;
}

GangSupervisor::Gang* GangSupervisor::find(const core::AttemptId& id, uint32_t rank) {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return nullptr;
  const core::Unit& unit = run->second.units[id.unit];
  bool is_current = unit.phase == core::Phase::running &&
                    core::current_attempt(run->second, id.unit) == id && unit.detail &&
                    !unit.detail->others.empty() && rank <= unit.detail->others.size();
  if (!is_current) return nullptr;
  Gang& gang = gangs_[{id.run, id.unit}];
  if (gang.id == id) return &gang;
  gang = {};
  gang.id = id;
  gang.rank_addresses.resize(unit.detail->others.size() + 1);
  gang.progress.resize(gang.rank_addresses.size());
  gang.ready_at.resize(gang.rank_addresses.size());
  return &gang;
}

void GangSupervisor::note_rank_address(const core::AttemptId& id, uint32_t rank,
                                       const std::string& address) {
  Gang* gang = find(id, rank);
  bool is_valid = !address.empty() && address.size() <= kRankAddressMax;
  if (gang == nullptr || !is_valid) return;
  gang->rank_addresses[rank] = address;
  if (gang->ready_at[rank] == 0) gang->ready_at[rank] = clock_.now();
  bool are_all = std::none_of(gang->rank_addresses.begin(), gang->rank_addresses.end(),
                              [](const std::string& each) { return each.empty(); });
  if (!are_all) return;
  for (const std::string& worker : worker_names(state_, id))
    workers_.exchange_addresses(worker, id, gang->rank_addresses);
}

// If not all are ready, those that are wait until now.
int64_t GangSupervisor::connect_wait_us(const Gang& gang) const {
  constexpr int64_t kUsPerMs = 1000;
  if (gang.id.epoch < core::fencing_token(state_.epoch, 0)) return -1;
  if (std::ranges::max(gang.ready_at) == 0) return -1;
  bool are_all = std::ranges::find(gang.ready_at, 0) == gang.ready_at.end();
  core::Time last = are_all ? std::ranges::max(gang.ready_at) : clock_.now();
  int64_t waited_ms = 0;
  for (core::Time ready : gang.ready_at)
    if (ready > 0) waited_ms += std::max<int64_t>(last - ready, 0);
  return waited_ms * kUsPerMs;
}

// The first failure is the cause, whatever the ranks report after it. Other ranks know what a dead
// rank did last; only all ranks together know which one holds them up.
void GangSupervisor::note_failure(const core::AttemptId& id, uint32_t rank, core::Failure failure,
                                  bool is_timeout, bool worker_died,
                                  const core::AttemptUsage& usage) {
  Gang* gang = find(id, rank);
  if (gang == nullptr)
    return record_(core::AttemptFailed{id, std::move(failure), rank, false, usage});
  if (rank == 0) gang->usage = usage;
  gang->has_rank0_ended = gang->has_rank0_ended || rank == 0;
  if (gang->failure) {
    if (rank == 0) record_(take_failure(*gang));
    return;
  }
  gang->failure = std::move(failure);
  gang->failed_rank = rank;
  gang->worker_died = worker_died;
  if (is_timeout) gang->timed_out = rank;
  if (!gang->awaits_explanation()) return finalize_failure(*gang);
  schedule_report(*gang, is_timeout ? kRankProgressMs : kPeerFailureMs);
  if (!is_timeout) return;
  // The others may have begun later. A rank that is asked to stop reports its position.
  for (const std::string& worker : worker_names(state_, id)) workers_.interrupt(worker, id);
}

bool GangSupervisor::Gang::awaits_explanation() const {
  if (failure->cause == core::Cause::signal) return peer_failure.empty();
  return timed_out &&
         std::any_of(progress.begin(), progress.end(), [](const auto& each) { return !each; });
}

void GangSupervisor::note_rank_progress(const core::AttemptId& id, uint32_t rank,
                                        const std::string& encoded) {
  Gang* gang = find(id, rank);
  auto progress = decode_rank_progress(encoded);
  if (gang == nullptr || !progress) return;
  gang->progress[rank] = progress;
  bool was_awaited = gang->failure && gang->timed_out && !gang->is_finalizing;
  if (was_awaited && !gang->awaits_explanation()) finalize_failure(*gang);
}

void GangSupervisor::note_peer_failure(const core::AttemptId& id, uint32_t rank,
                                       const std::string& text) {
  Gang* gang = find(id, rank);
  if (gang == nullptr || !gang->peer_failure.empty()) return;
  gang->peer_failure = text;
  gang->peer_failure_rank = rank;
  if (gang->failure && !gang->is_finalizing) finalize_failure(*gang);
  if (!gang->failure) schedule_report(*gang, kUnexplainedMs);
}

// The result is rank 0's, which waits until all ranks end. Ranks that were asked to end, as rank 0
// was, leave the report to it.
void GangSupervisor::note_rank_stopped(const core::AttemptId& id, uint32_t rank) {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return;
  const Gang* gang = find(id, rank);
  if (gang != nullptr && gang->failure) return;
  const core::Unit& unit = run->second.units[id.unit];
  bool was_asked = run->second.stopping || run->second.cancelling || run->second.stop_requested ||
                   is_leaving(state_, unit) || is_resizing(unit);
  if (!was_asked) record_(core::AttemptStopped{id});
}

void GangSupervisor::schedule_report(Gang& gang, int64_t ms) {
  gang.report_at = clock_.now() + ms;
  report_times_.emplace(gang.report_at, gang.id);
}

void GangSupervisor::finalize_failure(Gang& gang) {
  if (gang.has_rank0_ended) return record_(take_failure(gang));
  gang.is_finalizing = true;
  schedule_report(gang, grace_ms_of_(gang.id.run) + kKilledMs);
  for (const std::string& worker : worker_names(state_, gang.id))
    workers_.kill_after_flush(worker, gang.id);
}

core::AttemptFailed GangSupervisor::take_failure(Gang& gang) {
  core::Failure failure = *std::exchange(gang.failure, std::nullopt);
  if (failure.cause == core::Cause::lost) failure.message += "\n" + ranks_placed(state_, gang.id);
  bool is_death = failure.cause == core::Cause::signal;
  if (is_death && !gang.peer_failure.empty()) failure.message += "\n" + gang.peer_failure;
  if (auto rank = std::exchange(gang.timed_out, std::nullopt)) {
    std::string hang = hang_text(gang.progress);
    failure.message =
        (hang.empty() ? fmt::format("rank {} of {}: ", *rank, gang.progress.size()) : hang + ". ") +
        failure.message;
  }
  core::AttemptUsage usage = gang.usage;
  core::add_rank(usage, gang.used);
  usage.connect_wait_us = connect_wait_us(gang);
  return {gang.id, std::move(failure), gang.failed_rank, gang.worker_died, usage};
}

core::Time GangSupervisor::next_report_at() const {
  return report_times_.empty() ? INT64_MAX : report_times_.begin()->first;
}

std::vector<core::AttemptId> GangSupervisor::take_due(core::Time now) {
  std::vector<core::AttemptId> due;
  while (!report_times_.empty() && report_times_.begin()->first <= now) {
    due.push_back(std::move(report_times_.begin()->second));
    report_times_.erase(report_times_.begin());
  }
  return due;
}

void GangSupervisor::report_due_failure(const core::AttemptId& id) {
  Gang* gang = find(id, 0);
  if (gang == nullptr || gang->report_at > clock_.now()) return;
  bool is_unexplained = !gang->failure && !gang->peer_failure.empty();
  if (is_unexplained)
    return note_failure(id, gang->peer_failure_rank,
                        {core::Cause::lost, gang->peer_failure, "", 0});
  if (!gang->failure) return;
  if (!gang->is_finalizing) return finalize_failure(*gang);
  record_(take_failure(*gang));
}

bool GangSupervisor::replace_by_first_failure(core::Event& event) {
  if (gangs_.empty()) return false;
  auto replace = [&](const auto& end) -> std::optional<core::AttemptFailed> {
    auto gang = gangs_.find({end.id.run, end.id.unit});
    bool has_failed = gang != gangs_.end() && gang->second.id == end.id && gang->second.failure;
    if (!has_failed) return std::nullopt;
    gang->second.usage = end.usage;
    return take_failure(gang->second);
  };
  std::optional<core::AttemptFailed> first;
  if (const auto* failure = std::get_if<core::AttemptFailed>(&event)) first = replace(*failure);
  if (const auto* waiting = std::get_if<core::AttemptWaiting>(&event)) first = replace(*waiting);
  if (const auto* stopped = std::get_if<core::AttemptStopped>(&event)) first = replace(*stopped);
  if (!first) return false;
  event = std::move(*first);
  return true;
}

std::vector<core::AttemptId> GangSupervisor::gangs_on(core::WorkerId worker) {
  std::vector<core::AttemptId> found;
  for (const auto& [place, gang] : gangs_) {
    if (find(gang.id, 0) == nullptr) continue;
    if (core::is_on(state_.runs.at(place.first).units[place.second], worker))
      found.push_back(gang.id);
  }
  return found;
}

bool GangSupervisor::has_finalizing_gang(core::WorkerId worker) {
  std::vector<core::AttemptId> gangs = gangs_on(worker);
  return std::any_of(gangs.begin(), gangs.end(), [&](const core::AttemptId& id) {
    return find(id, 0)->failure && state_.runs.at(id.run).units[id.unit].worker != worker;
  });
}

void GangSupervisor::kill_finalizing_on(core::WorkerId worker) {
  for (const core::AttemptId& id : gangs_on(worker))
    if (find(id, 0)->is_finalizing) workers_.kill_after_flush(state_.workers[worker].info.name, id);
}

void GangSupervisor::expect_rank_ends(const core::AttemptId& id) {
  Gang* gang = find(id, 0);
  if (gang == nullptr) return;
  auto others = static_cast<uint32_t>(gang->rank_addresses.size() - 1);
  auto ended = static_cast<uint32_t>(gang->ended_ranks.size());
  if (ended >= others) return;
  if (unreported_ranks_.size() >= kUnreportedGangsMax)
    unreported_ranks_.erase(unreported_ranks_.begin());
  unreported_ranks_[id] = others - ended;
}

void GangSupervisor::note_rank_end(const core::AttemptId& id, uint32_t rank,
                                   const core::AttemptUsage& usage) {
  auto expected = unreported_ranks_.find(id);
  if (expected == unreported_ranks_.end()) {
    Gang* gang = find(id, rank);
    bool is_new = gang != nullptr && gang->ended_ranks.insert(rank).second;
    if (is_new) core::add_rank(gang->used, usage);
  } else if (--expected->second == 0) {
    unreported_ranks_.erase(expected);
  }
}

void GangSupervisor::add_use_of_ranks(const core::AttemptId& id, core::AttemptUsage& usage) const {
  auto found = gangs_.find({id.run, id.unit});
  bool is_known = found != gangs_.end() && found->second.id == id;
  if (!is_known) return;
  core::add_rank(usage, found->second.used);
  usage.connect_wait_us = connect_wait_us(found->second);
}

bool GangSupervisor::has_rank_ended(const core::AttemptId& id, uint32_t rank) const {
  auto found = gangs_.find({id.run, id.unit});
  if (found == gangs_.end() || found->second.id != id) return false;
  const Gang& gang = found->second;
  return rank == 0 ? gang.has_rank0_ended : gang.ended_ranks.contains(rank);
}

void GangSupervisor::forget(const core::RunId& run) {
  gangs_.erase(gangs_.lower_bound({run, 0}), gangs_.upper_bound({run, UINT32_MAX}));
}

}  // namespace flow
