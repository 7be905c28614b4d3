#include "engine/runtime/gang_supervisor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/ids.hpp"
#include "engine/base/size_units.hpp"
#include "engine/blobs/checkpoint.hpp"
#include "engine/core/gangs.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr size_t kKeyLetters = 32;  // of 36 each: more than 160 bits
constexpr const char* kGrowAfterVariable = "FLOW_GROW_AFTER";
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

bool has_mig(const std::vector<Gpu>& gpus, const std::vector<std::string>& assigned_gpus) {
  return std::any_of(assigned_gpus.begin(), assigned_gpus.end(), [&](const std::string& uuid) {
    auto at = core::find_gpu(gpus, uuid);
    return at && gpus[*at].is_mig;
  });
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

}  // namespace

Result<int64_t> grow_after_ms() {
  const char* text = std::getenv(kGrowAfterVariable);
  if (text == nullptr || *text == '\0') return core::kGrowAfterMs;
  auto ms = parse_duration_ms(text);
  if (ms.ok()) return ms;
  return user_error(
      fmt::format("{} is `{}`, and is how long a gang runs with fewer ranks before it may begin "
                  "again with more, as \"30s\" or \"10m\"",
                  kGrowAfterVariable, text));
}

void EngineLoop::split(AttemptOrder order, const core::Run& run,
                       std::vector<AttemptOrder>& orders) {
  const core::Unit& unit = run.units[order.id.unit];
  order.gang_key = random_name(kKeyLetters);
  order.encrypts = options_.encrypts;
  size_t first = orders.size();
  std::map<core::WorkerId, uint32_t> ranks_on_worker;
  std::map<core::WorkerId, std::vector<std::string>> gpus_on_worker;
  uint32_t ranks = 0;
  core::for_each_rank(unit, [&](core::WorkerId worker, const std::vector<std::string>& gpus) {
    AttemptOrder& rank = orders.emplace_back(order);
    rank.rank = ranks++;
    rank.local_rank = ranks_on_worker[worker]++;
    rank.worker = worker_name(worker);
    rank.seed = InputResolver::seed(run, order.id.unit, rank.rank);
    if (order.resources.gpus_milli == 0) return;
    rank.gpus = gpus;
    std::vector<std::string>& local_gpus = gpus_on_worker[worker];
    local_gpus.insert(local_gpus.end(), gpus.begin(), gpus.end());
  });
  std::string remote_address;  // a machine that this one reaches
  for (const auto& [worker, count] : ranks_on_worker) {
    if (remote_address.empty()) remote_address = worker_registry_.address_of(worker_name(worker));
  }
  uint32_t at = 0;
  core::for_each_rank(unit, [&](core::WorkerId worker, const auto&) {
    AttemptOrder& rank = orders[first + at++];
    rank.ranks = ranks;
    rank.local_ranks = ranks_on_worker[worker];
    rank.is_spread = ranks_on_worker.size() > 1;
    // As torchrun gives them: LOCAL_RANK is the number of its device.
    bool is_shell = order.kind == TaskKind::shell;
    if (is_shell && !has_mig(state_.workers[worker].info.gpus, rank.gpus)) {
      rank.visible = gpus_on_worker[worker];
    } else if (is_shell && !rank.gpus.empty()) {
      // CUDA shows a process the first MIG instance alone: each rank sees its own, as number 0.
      rank.local_rank = 0;
      rank.local_ranks = 1;
    }
    if (rank.is_spread && rank.worker.empty()) rank.remote_address = remote_address;
  });
}

// At its submission others were still to join.
void EngineLoop::warn_of_small_share(const core::Assigned& assigned) {
  if (!options_.leads_cluster || assigned.share == core::Share{}) return;
  const core::Run& run = state_.runs.at(assigned.id.run);
  int32_t requested = InputResolver::def_of(run, assigned.id.unit)->resources.cpus_milli;
  bool is_of_jobs = run.jobs > 0 && run.jobs < state_.capacity.cpus_milli / 1000;
  if (assigned.share.cpus_milli >= requested || is_of_jobs) return;
  std::string workers;
  for (core::WorkerId worker : core::workers_of(run.units[assigned.id.unit]))
    workers += (workers.empty() ? "" : ", ") + core::worker_text(state_, worker);
  warn(run.id,
       fmt::format("`{}` asks for cpus = {} for each of its {} ranks, and the workers have "
                   "fewer CPUs: each gets {}, on {}. If more workers will join, `flow head "
                   "--expect-workers N` (with Slurm, `--nodes N`) makes the gang wait for "
                   "them",
                   InputResolver::unit_name(run, assigned.id.unit), requested / 1000.0,
                   assigned.others.size() + 1, assigned.share.cpus_milli / 1000.0, workers));
}

// Where rank 0's machine is lost, the next of its gang has what it saved last.
void EngineLoop::replicate(const core::AttemptId& id, const core::Unit& unit) {
  std::vector<core::WorkerId> workers = core::workers_of(unit);
  auto peer = std::find_if(workers.begin(), workers.end(), [&](core::WorkerId worker) {
    return worker != unit.worker && !worker_name(worker).empty();
  });
  if (peer == workers.end()) return;
  std::string task = InputResolver::unit_name(state_.runs.at(id.run), id.unit);
  auto bytes = store_->get(Family::kv, checkpoint_key(id.run, task, unit.key));
  if (!bytes.ok() || !bytes->has_value()) return;
  auto row = decode_checkpoint_row(**bytes);
  if (row.ok() && !row->file.empty())
    worker_registry_.replicate(worker_name(*peer), id, row->digest);
}

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
  return &gang;
}

std::vector<std::string> GangSupervisor::worker_names(const core::AttemptId& id) const {
  std::vector<std::string> names;
  for (core::WorkerId worker : core::workers_of(state_.runs.at(id.run).units[id.unit]))
    names.push_back(worker < state_.workers.size() ? state_.workers[worker].info.name : "");
  return names;
}

void GangSupervisor::note_rank_address(const core::AttemptId& id, uint32_t rank,
                                       const std::string& address) {
  Gang* gang = find(id, rank);
  bool is_valid = !address.empty() && address.size() <= kRankAddressMax;
  if (gang == nullptr || !is_valid) return;
  gang->rank_addresses[rank] = address;
  bool are_all = std::none_of(gang->rank_addresses.begin(), gang->rank_addresses.end(),
                              [](const std::string& each) { return each.empty(); });
  if (!are_all) return;
  for (const std::string& worker : worker_names(id))
    workers_.exchange_addresses(worker, id, gang->rank_addresses);
}

// The first failure is the cause, whatever the ranks report after it. Other ranks know what a dead
// rank did last; only all ranks together know which one holds them up.
void GangSupervisor::note_failure(const core::AttemptId& id, uint32_t rank, core::Failure failure,
                                  bool is_timeout, bool worker_died) {
  Gang* gang = find(id, rank);
  if (gang == nullptr) return record_(core::AttemptFailed{id, std::move(failure), rank});
  gang->has_rank0_ended = gang->has_rank0_ended || rank == 0;
  if (gang->failure) {
    if (rank == 0) record_(take_failure(*gang));
    return;
  }
  gang->failure = std::move(failure);
  gang->failed_rank = rank;
  gang->worker_died = worker_died;
  if (is_timeout) gang->timed_out = rank;
  if (!awaits_explanation(*gang)) return finalize_failure(*gang);
  schedule_report(*gang, is_timeout ? kRankProgressMs : kPeerFailureMs);
  if (!is_timeout) return;
  // The others may have begun later. A rank that is asked to stop reports its position.
  for (const std::string& worker : worker_names(id)) workers_.interrupt(worker, id);
}

bool GangSupervisor::awaits_explanation(const Gang& gang) {
  if (gang.failure->cause == core::Cause::signal) return gang.peer_failure.empty();
  return gang.timed_out && std::any_of(gang.progress.begin(), gang.progress.end(),
                                       [](const auto& progress) { return !progress; });
}

void GangSupervisor::note_rank_progress(const core::AttemptId& id, uint32_t rank,
                                        const std::string& encoded) {
  Gang* gang = find(id, rank);
  auto progress = decode_rank_progress(encoded);
  if (gang == nullptr || !progress) return;
  gang->progress[rank] = progress;
  bool was_awaited = gang->failure && gang->timed_out && !gang->is_finalizing;
  if (was_awaited && !awaits_explanation(*gang)) finalize_failure(*gang);
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
  for (const std::string& worker : worker_names(gang.id))
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
  return {gang.id, std::move(failure), gang.failed_rank, gang.worker_died};
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

void GangSupervisor::replace_by_first_failure(core::Event& event) {
  if (gangs_.empty()) return;
  const core::AttemptId* id = nullptr;
  if (const auto* failure = std::get_if<core::AttemptFailed>(&event)) id = &failure->id;
  if (const auto* waiting = std::get_if<core::AttemptWaiting>(&event)) id = &waiting->id;
  if (const auto* stopped = std::get_if<core::AttemptStopped>(&event)) id = &stopped->id;
  if (id == nullptr) return;
  auto gang = gangs_.find({id->run, id->unit});
  bool has_failed = gang != gangs_.end() && gang->second.id == *id && gang->second.failure;
  if (has_failed) event = take_failure(gang->second);
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
  if (gang->ended_ranks >= others) return;
  if (unreported_ranks_.size() >= kUnreportedGangsMax)
    unreported_ranks_.erase(unreported_ranks_.begin());
  unreported_ranks_[id] = others - gang->ended_ranks;
}

void GangSupervisor::note_rank_end(const core::AttemptId& id) {
  auto expected = unreported_ranks_.find(id);
  if (expected == unreported_ranks_.end()) {
    if (Gang* gang = find(id, 0)) gang->ended_ranks++;
  } else if (--expected->second == 0) {
    unreported_ranks_.erase(expected);
  }
}

void GangSupervisor::forget(const core::RunId& run) {
  gangs_.erase(gangs_.lower_bound({run, 0}), gangs_.upper_bound({run, UINT32_MAX}));
}

}  // namespace flow
