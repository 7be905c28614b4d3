// Tracks the ranks of running gangs (attempts with several ranks): their addresses, and the one
// failure that ends the attempt of all of them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "flow/collective.hpp"

namespace flow {

/// The first rank of the attempt that is placed on this worker; 0 if there is none (a failure is
/// then attributed to rank 0). `id` must be in the state.
uint32_t first_rank_on(const core::State& state, const core::AttemptId& id, core::WorkerId worker);

/// Used within turns only. A rank that no current attempt has is ignored.
class GangSupervisor {
 public:
  /// Records the event if the core admits it.
  using RecordEvent = std::function<void(core::Event)>;
  /// How long attempts of a run may take to end after they are asked to.
  using GraceOf = std::function<int64_t(const core::RunId&)>;
  /// `state`, `clock` and `workers` outlive it.
  GangSupervisor(const core::State& state, const StateClock& clock, WorkerRegistry& workers,
                 RecordEvent record, GraceOf grace_ms_of)
      : state_(state),
        clock_(clock),
        workers_(workers),
        record_(std::move(record)),
        grace_ms_of_(std::move(grace_ms_of)) {}

  /// Sends the addresses to the workers of all ranks once all are known, and again whenever a rank
  /// reports its address again.
  void note_rank_address(const core::AttemptId& id, uint32_t rank, const std::string& address);
  /// A rank failed. The first failure ends the attempt, possibly after other ranks have had time to
  /// report its cause. The failure of an attempt with one rank is recorded at once.
  void note_failure(const core::AttemptId& id, uint32_t rank, core::Failure failure,
                    bool is_timeout = false, bool worker_died = false,
                    const core::AttemptUsage& usage = {});
  /// A rank observed the end of another rank.
  void note_peer_failure(const core::AttemptId& id, uint32_t rank, const std::string& text);
  /// The collective call that a rank is in, encoded by encode_rank_progress.
  void note_rank_progress(const core::AttemptId& id, uint32_t rank, const std::string& encoded);
  /// A rank above 0 was stopped. That ends the attempt, unless all ranks were asked to end.
  void note_rank_stopped(const core::AttemptId& id, uint32_t rank);
  /// If a rank of the event's attempt has failed, replaces the event by that failure. Returns
  /// whether it did.
  bool replace_by_first_failure(core::Event& event);
  /// Adds what the other ranks that have ended used.
  void add_use_of_ranks(const core::AttemptId& id, core::AttemptUsage& usage) const;

  /// The next time at which report_due_failure() must be called; INT64_MAX: never.
  core::Time next_report_at() const;
  /// Attempts whose failure is due at `now`; each for one call of report_due_failure().
  std::vector<core::AttemptId> take_due(core::Time now);
  void report_due_failure(const core::AttemptId& id);

  /// Current attempts of gangs with a rank on this worker.
  std::vector<core::AttemptId> gangs_on(core::WorkerId worker);
  /// Whether a gang with a rank on this worker has failed and its rank 0, on another worker, is
  /// still writing its checkpoints.
  bool has_finalizing_gang(core::WorkerId worker);
  /// After the worker has rejoined: repeats the commands for gangs that are about to end.
  void kill_finalizing_on(core::WorkerId worker);

  /// The attempt succeeded; its other ranks have not reported their ends yet. All ranks have
  /// finished (they leave together), so each reports soon.
  void expect_rank_ends(const core::AttemptId& id);
  /// A rank above 0 has reported its end.
  void note_rank_end(const core::AttemptId& id, uint32_t rank,
                     const core::AttemptUsage& usage = {});
  /// Whether the rank of a current attempt has reported its end to this engine.
  bool has_rank_ended(const core::AttemptId& id, uint32_t rank) const;
  bool has_unreported_ranks() const { return !unreported_ranks_.empty(); }

  /// Call this before the run leaves the state.
  void forget(const core::RunId& run);

 private:
  struct Gang {
    core::AttemptId id;
    std::vector<std::string> rank_addresses;  // by rank; "": not yet known
    std::vector<core::Time> ready_at;         // by rank: when its address was first known; else 0
    uint32_t peer_failure_rank = 0;           // the rank that reported `peer_failure`
    std::string peer_failure;                 // by the first rank that saw another one end
    std::optional<core::Failure> failure;     // the first one, until it is recorded
    uint32_t failed_rank = 0;                 // the rank of `failure`
    core::AttemptUsage usage;                 // of rank 0, once it has failed
    std::set<uint32_t> ended_ranks;           // of ranks above 0
    core::AttemptUsage used;                  // by these
    bool worker_died = false;                 // with the failed rank
    core::Time report_at = 0;                 // when the failure is recorded at the latest
    bool is_finalizing = false;               // rank 0 writes its state, and is killed
    bool has_rank0_ended = false;
    std::vector<std::optional<RankProgress>> progress;  // by rank, when they had to stop
    // The first rank that exceeded its time limit.
    std::optional<uint32_t> timed_out;
    /// Whether other ranks may still report the cause of `failure`.
    bool awaits_explanation() const;
  };

  /// How long its ranks were ready to connect before the last one was, together; below 0 if
  /// none has been ready, or if that was reported to a former engine.
  int64_t connect_wait_us(const Gang& gang) const;
  /// The gang of a current attempt that has this rank; else null.
  Gang* find(const core::AttemptId& id, uint32_t rank);
  void schedule_report(Gang& gang, int64_t ms);
  /// Lets rank 0 write its pending checkpoints. Later failures of ranks are ignored.
  void finalize_failure(Gang& gang);
  /// Returns the failure of the attempt and forgets it.
  core::AttemptFailed take_failure(Gang& gang);

  const core::State& state_;
  const StateClock& clock_;
  WorkerRegistry& workers_;
  const RecordEvent record_;
  const GraceOf grace_ms_of_;
  // Newest attempts of runs in the state; removed by forget().
  std::map<std::pair<core::RunId, core::UnitId>, Gang> gangs_;
  // By Gang::report_at; entries leave then.
  std::multimap<core::Time, core::AttemptId> report_times_;
  // Per succeeded gang: number of ranks that have not reported their ends. Entries are removed when
  // these ranks report; with kUnreportedGangsMax entries the oldest is removed.
  std::map<core::AttemptId, uint32_t> unreported_ranks_;
};

}  // namespace flow
