// Attempts of several ranks: an order for each, how they find each other, and what a rank's end is
// the end of.
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
constexpr int64_t kUnexplainedMs = 5'000;  // from what a rank noticed to a failure that explains it
constexpr int64_t kPeerFailureMs = 300;    // between ranks that see one end
constexpr int64_t kRankProgressMs =
    2'000;                            // after a timeout: for all ranks to report their positions
constexpr int64_t kKilledMs = 2'000;  // from the end of the grace to who was killed
constexpr size_t kUnreportedGangsMax = 1'024;
constexpr size_t kRankAddressMax = size_t{1} << 16;  // a rank's say a few hundred bytes

/// One of its hosts drains: all ranks were asked to stop.
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

EngineLoop::GangState* EngineLoop::gang_of(const core::AttemptId& id, uint32_t rank) {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return nullptr;
  const core::Unit& unit = run->second.units[id.unit];
  bool is_current = unit.phase == core::Phase::running &&
                    core::current_attempt(run->second, id.unit) == id && unit.detail &&
                    !unit.detail->others.empty() && rank <= unit.detail->others.size();
  if (!is_current) return nullptr;
  GangState& gang = gangs_[{id.run, id.unit}];
  if (gang.id == id) return &gang;
  gang = {};
  gang.id = id;
  gang.rank_addresses.resize(unit.detail->others.size() + 1);
  gang.progress_of_ranks.resize(gang.rank_addresses.size());
  return &gang;
}

// When all are known each is told of all; of who comes back, and says it again, again.
void EngineLoop::note_rank_address(const core::AttemptId& id, uint32_t rank,
                                   const std::string& address) {
  GangState* gang = gang_of(id, rank);
  bool is_valid = !address.empty() && address.size() <= kRankAddressMax;
  if (gang == nullptr || !is_valid) return;
  gang->rank_addresses[rank] = address;
  bool are_all = std::none_of(gang->rank_addresses.begin(), gang->rank_addresses.end(),
                              [](const std::string& each) { return each.empty(); });
  if (!are_all) return;
  const core::Unit& unit = state_.runs.at(id.run).units[id.unit];
  for (core::WorkerId worker : core::workers_of(unit))
    worker_registry_.exchange_addresses(worker_name(worker), id, gang->rank_addresses);
}

// The first failure is the cause, whatever the ranks say after it. What a dead rank did last, the
// others know; who holds them up, all of them together.
void EngineLoop::note_failure(const core::AttemptId& id, uint32_t rank, core::Failure failure,
                              bool is_timeout, bool worker_died) {
  GangState* gang = gang_of(id, rank);
  if (gang == nullptr)
    return record_if_admitted(core::AttemptFailed{id, std::move(failure), rank}, clock_.now());
  gang->has_rank0_ended = gang->has_rank0_ended || rank == 0;
  if (gang->failure) {
    if (rank == 0) record_if_admitted(take_failure(*gang), clock_.now());
    return;
  }
  gang->failure = std::move(failure);
  gang->failed_rank = rank;
  gang->worker_died = worker_died;
  if (is_timeout) gang->timed_out = rank;
  if (!awaits_explanation(*gang)) return finalize_failure(*gang);
  schedule_failure_report(*gang, is_timeout ? kRankProgressMs : kPeerFailureMs);
  if (!is_timeout) return;
  // They may have begun later. Whoever is asked to stop says where it is.
  const core::Unit& unit = state_.runs.at(id.run).units[id.unit];
  for (core::WorkerId worker : core::workers_of(unit))
    worker_registry_.interrupt(worker_name(worker), id);
}

bool EngineLoop::awaits_explanation(const GangState& gang) {
  if (gang.failure->cause == core::Cause::signal) return gang.peer_failure.empty();
  return gang.timed_out && std::any_of(gang.progress_of_ranks.begin(), gang.progress_of_ranks.end(),
                                       [](const auto& progress) { return !progress; });
}

void EngineLoop::note_rank_progress(const core::AttemptId& id, uint32_t rank,
                                    const std::string& encoded) {
  GangState* gang = gang_of(id, rank);
  auto progress = decode_rank_progress(encoded);
  if (gang == nullptr || !progress) return;
  gang->progress_of_ranks[rank] = progress;
  bool was_awaited = gang->failure && gang->timed_out && !gang->is_finalizing;
  if (was_awaited && !awaits_explanation(*gang)) finalize_failure(*gang);
}

void EngineLoop::note_peer_failure(const core::AttemptId& id, uint32_t rank,
                                   const std::string& text) {
  GangState* gang = gang_of(id, rank);
  if (gang == nullptr || !gang->peer_failure.empty()) return;
  gang->peer_failure = text;
  gang->peer_failure_rank = rank;
  if (gang->failure && !gang->is_finalizing) finalize_failure(*gang);
  if (!gang->failure) schedule_failure_report(*gang, kUnexplainedMs);
}

void EngineLoop::schedule_failure_report(GangState& gang, int64_t ms) {
  gang.report_at = clock_.now() + ms;
  gang_failures_.emplace(gang.report_at, gang.id);
}

void EngineLoop::finalize_failure(GangState& gang) {
  if (gang.has_rank0_ended) return record_if_admitted(take_failure(gang), clock_.now());
  gang.is_finalizing = true;
  const RunContext* context = context_of(gang.id.run);
  schedule_failure_report(
      gang, (context != nullptr ? context->grace_ms : RunContext().grace_ms) + kKilledMs);
  const core::Unit& unit = state_.runs.at(gang.id.run).units[gang.id.unit];
  for (core::WorkerId worker : core::workers_of(unit))
    worker_registry_.kill_after_flush(worker_name(worker), gang.id);
}

/// "rank 0 is on `a`, rank 1 on `b`"
std::string EngineLoop::where_ranks_are(const core::AttemptId& id) const {
  constexpr size_t kNamed = 16;
  std::string text;
  size_t rank = 0;
  core::for_each_rank(
      state_.runs.at(id.run).units[id.unit], [&](core::WorkerId worker, const auto&) {
        if (rank < kNamed)
          text += fmt::format("{}rank {}{} on {}", text.empty() ? "" : ", ", rank,
                              text.empty() ? " is" : "", core::worker_text(state_, worker));
        rank++;
      });
  return rank > kNamed ? text + fmt::format(" and {} more", rank - kNamed) : text;
}

core::AttemptFailed EngineLoop::take_failure(GangState& gang) {
  core::Failure failure = *std::exchange(gang.failure, std::nullopt);
  if (failure.cause == core::Cause::lost) failure.message += "\n" + where_ranks_are(gang.id);
  bool is_death = failure.cause == core::Cause::signal;
  if (is_death && !gang.peer_failure.empty()) failure.message += "\n" + gang.peer_failure;
  if (auto rank = std::exchange(gang.timed_out, std::nullopt)) {
    std::string hang = hang_text(gang.progress_of_ranks);
    failure.message =
        (hang.empty() ? fmt::format("rank {} of {}: ", *rank, gang.progress_of_ranks.size())
                      : hang + ". ") +
        failure.message;
  }
  return {gang.id, std::move(failure), gang.failed_rank, gang.worker_died};
}

void EngineLoop::report_due_failure(const core::AttemptId& id) {
  GangState* gang = gang_of(id, 0);
  if (gang == nullptr || gang->report_at > clock_.now()) return;
  bool is_unexplained = !gang->failure && !gang->peer_failure.empty();
  if (is_unexplained)
    return note_failure(id, gang->peer_failure_rank,
                        {core::Cause::lost, gang->peer_failure, "", 0});
  if (!gang->failure) return;
  if (!gang->is_finalizing) return finalize_failure(*gang);
  record_if_admitted(take_failure(*gang), clock_.now());
}

void EngineLoop::replace_by_first_failure(core::Event& event) {
  const core::AttemptId* id = nullptr;
  if (const auto* failure = std::get_if<core::AttemptFailed>(&event)) id = &failure->id;
  if (const auto* waiting = std::get_if<core::AttemptWaiting>(&event)) id = &waiting->id;
  if (const auto* stopped = std::get_if<core::AttemptStopped>(&event)) id = &stopped->id;
  if (id == nullptr) return;
  auto gang = gangs_.find({id->run, id->unit});
  bool has_failed = gang != gangs_.end() && gang->second.id == *id && gang->second.failure;
  if (has_failed) event = take_failure(gang->second);
}

bool EngineLoop::is_own_timeout(const TaskFinished& finished) {
  return finished.failure.cause == core::Cause::timeout && !finished.of_gang;
}

// Failures to which the driver adds what other ranks reported, in which calls they were, or on
// which machines they ran.
bool EngineLoop::needs_gang_context(const TaskFinished& finished) {
  core::Cause cause = finished.failure.cause;
  return cause == core::Cause::signal || cause == core::Cause::lost || is_own_timeout(finished);
}

void EngineLoop::report_rank_failure(const Report& report, TaskFinished& finished, Input& input) {
  bool is_timeout = is_own_timeout(finished);
  input.only([this, id = report.id, rank = report.rank, failure = std::move(finished.failure),
              is_timeout](Batch&, core::State&) mutable {
    note_failure(id, rank, std::move(failure), is_timeout);
  });
}

// The result is rank 0's, who waits for all to come to their end. Others that were asked to end,
// as it was, leave the word to it too.
void EngineLoop::finish_rank(const Report& report, TaskFinished& finished, Input& input) {
  if (finished.outcome == TaskFinished::Outcome::failed)
    return report_rank_failure(report, finished, input);
  input.has_event = false;
  input.reads_store = false;
  if (finished.outcome != TaskFinished::Outcome::stopped) return;
  input.control = [this, id = report.id, rank = report.rank](Batch&, core::State& state) {
    auto run = state.runs.find(id.run);
    if (run == state.runs.end() || id.unit >= run->second.units.size()) return;
    const GangState* gang = gang_of(id, rank);
    if (gang != nullptr && gang->failure) return;
    bool was_asked = run->second.stopping || run->second.cancelling || run->second.stop_requested ||
                     is_leaving(state, run->second.units[id.unit]) ||
                     is_resizing(run->second.units[id.unit]);
    if (!was_asked) record_if_admitted(core::AttemptStopped{id}, clock_.now());
  };
}

// The ranks of a gang that succeeds have met at its end, so each reports its own soon.
void EngineLoop::expect_rank_ends(const core::AttemptId& id) {
  GangState* gang = gang_of(id, 0);
  if (gang == nullptr) return;
  auto others = static_cast<uint32_t>(gang->rank_addresses.size() - 1);
  if (gang->ended_ranks >= others) return;
  if (unreported_ranks_.size() >= kUnreportedGangsMax)
    unreported_ranks_.erase(unreported_ranks_.begin());
  unreported_ranks_[id] = others - gang->ended_ranks;
}

void EngineLoop::note_rank_end(const core::AttemptId& id) {
  auto expected = unreported_ranks_.find(id);
  if (expected == unreported_ranks_.end()) {
    if (GangState* gang = gang_of(id, 0)) gang->ended_ranks++;
  } else if (--expected->second == 0) {
    unreported_ranks_.erase(expected);
  }
}

void EngineLoop::await_rank_ends(std::chrono::milliseconds most) {
  auto until = std::chrono::steady_clock::now() + most;
  while (true) {
    bool is_one_missing = false;
    inspect(
        [&](const core::State&, InputResolver&) { is_one_missing = !unreported_ranks_.empty(); });
    if (!is_one_missing || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace flow
