// What the engine remembers of the ranks of running gangs: their addresses, and which failure ends
// the attempt of all of them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "flow/collective.hpp"

namespace flow {

/// The first rank of the attempt that is placed on this worker; 0 if none is. `id` is in the state.
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

  /// Sends the addresses to the workers of all ranks once all are known, and after each repetition.
  void note_rank_address(const core::AttemptId& id, uint32_t rank, const std::string& address);
  /// A rank failed. The first failure ends the attempt, perhaps after other ranks have explained
  /// it. Of an attempt that is not a gang's the failure is recorded at once.
  void note_failure(const core::AttemptId& id, uint32_t rank, core::Failure failure,
                    bool is_timeout = false, bool worker_died = false);
  /// How a rank saw another one end.
  void note_peer_failure(const core::AttemptId& id, uint32_t rank, const std::string& text);
  /// In which call a rank is, as encoded by encode_rank_progress.
  void note_rank_progress(const core::AttemptId& id, uint32_t rank, const std::string& encoded);
  /// A rank above 0 was stopped. That ends the attempt, unless all ranks were asked to end.
  void note_rank_stopped(const core::AttemptId& id, uint32_t rank);
  /// Replaces an end of an attempt that a rank has failed by that rank's failure.
  void replace_by_first_failure(core::Event& event);

  /// When report_due_failure() is to be called next; INT64_MAX: never.
  core::Time next_report_at() const;
  /// Attempts whose failure is due at `now`; each for one call of report_due_failure().
  std::vector<core::AttemptId> take_due(core::Time now);
  void report_due_failure(const core::AttemptId& id);

  /// Current attempts of gangs with a rank on this worker.
  std::vector<core::AttemptId> gangs_on(core::WorkerId worker);
  /// Whether a gang with a rank on this worker has failed, and rank 0, on another worker, is still
  /// writing what it is to keep.
  bool has_finalizing_gang(core::WorkerId worker);
  /// After the worker has rejoined: tells it which gangs are about to end.
  void kill_finalizing_on(core::WorkerId worker);

  /// The attempt succeeded: its other ranks are still to report their ends. They have met at the
  /// end, so each reports soon.
  void expect_rank_ends(const core::AttemptId& id);
  /// A rank above 0 has reported its end.
  void note_rank_end(const core::AttemptId& id);
  bool has_unreported_ranks() const { return !unreported_ranks_.empty(); }

  /// Before the run leaves the state.
  void forget(const core::RunId& run);

 private:
  struct Gang {
    core::AttemptId id;
    std::vector<std::string> rank_addresses;  // by rank; "": not yet known
    uint32_t peer_failure_rank = 0;           // the rank that reported `peer_failure`
    std::string peer_failure;                 // by the first rank that saw another one end
    std::optional<core::Failure> failure;     // the first one, until it is recorded
    uint32_t failed_rank = 0;                 // the rank of `failure`
    uint32_t ended_ranks = 0;                 // of those above 0
    bool worker_died = false;                 // with the failed rank
    core::Time report_at = 0;                 // when the failure is recorded at the latest
    bool is_finalizing = false;               // rank 0 writes its state, and is killed
    bool has_rank0_ended = false;
    std::vector<std::optional<RankProgress>> progress;  // by rank, when they had to stop
    std::optional<uint32_t> timed_out;                  // the first rank whose time was over
    /// Of `failure`: whether other ranks may still report why.
    bool awaits_explanation() const;
  };

  /// The gang of a current attempt that has this rank; else null.
  Gang* find(const core::AttemptId& id, uint32_t rank);
  void schedule_report(Gang& gang, int64_t ms);
  /// Lets rank 0 write what it is to keep. Failures of ranks after the first are ignored.
  void finalize_failure(Gang& gang);
  /// The failure of the attempt, once: the gang forgets it.
  core::AttemptFailed take_failure(Gang& gang);

  const core::State& state_;
  const StateClock& clock_;
  WorkerRegistry& workers_;
  const RecordEvent record_;
  const GraceOf grace_ms_of_;
  // Newest attempts of runs in the state: they leave in forget().
  std::map<std::pair<core::RunId, core::UnitId>, Gang> gangs_;
  std::multimap<core::Time, core::AttemptId> report_times_;  // Gang::report_at: they leave then
  // Of gangs that succeeded: how many ranks have not reported their ends. Entries leave as these
  // ranks report; the oldest leave where there are kUnreportedGangsMax.
  std::map<core::AttemptId, uint32_t> unreported_ranks_;
};

}  // namespace flow
