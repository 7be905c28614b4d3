// The turn: takes what happened from the inbox, lets the pure core decide, commits, and only then
// acts. Any thread may post. One turn runs at a time: on the driver's own thread, or, where that
// one is idle and there is little to do, on the thread that brings it. Where there is much to do,
// what a turn decided is written and synced on a thread of its own, and the next turns decide
// meanwhile: what they come to is written together when that is done.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/latch.hpp"
#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/blob_pins.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/runtime/gang_supervisor.hpp"
#include "engine/runtime/gpu_inventory.hpp"
#include "engine/runtime/native_tasks.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/worker_membership.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/runtime/worker_reports.hpp"
#include "engine/sched/sched.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"
#include "engine/submission/submission.hpp"
#include "engine/worker/worker.hpp"
#include "flow/collective.hpp"
#include "flow/flow.hpp"

namespace flow {

class References;

struct EngineLoopOptions {
  std::string state_dir;
  std::string executor;
  int32_t jobs = 1;                     // CPU slots of this machine
  ResourceQuantities custom_resources;  // that it has
  bool leads_cluster = false;           // others run what this machine has no slots for
  bool is_closed = false;               // no others than those that it starts itself can join
  bool encrypts = false;                // ranks of gangs seal what is long for each other too
  std::optional<RequestedNodes> requested_nodes;
  uint32_t announced = 0;  // workers that are to join in all
  core::Time grow_after_ms = core::kGrowAfterMs;
  std::shared_ptr<Builder> builder;  // null: one is made
};

/// EngineLoopOptions::grow_after_ms as the environment has it.
Result<int64_t> grow_after_ms();

class EngineLoop {
 public:
  /// Recovers the state, starts the worker and the thread. `store` is this process's alone.
  static Result<std::unique_ptr<EngineLoop>> start(const EngineLoopOptions& options,
                                                   std::unique_ptr<Store> store);
  ~EngineLoop();

  void define_native(const std::string& name, const std::string& version, NativeTask task);
  std::optional<std::string> native_version(const std::string& name) const;
  void define_operations(const std::string& name, const std::string& library);
  /// The library of these operations, or "".
  std::string operations_library(const std::string& name) const;

  /// Commits the run and its content, then starts it on so many CPU slots, 0 for all. Blocks until
  /// it is committed.
  Status submit(Prepared prepared, int32_t jobs);
  /// Takes an unfinished or failed run up again, or with `task` runs that one anew. Blocks until
  /// committed.
  Status resume(RunContext context, const std::string& task);
  /// Blocks while a run of this engine is being interrupted; whether it was.
  Result<bool> await_interrupted(const RunId& id);
  /// Posts an event and blocks until it is committed or refused (false).
  Result<bool> post_and_wait(core::Event event,
                             std::vector<std::pair<Digest, std::string>> blobs = {},
                             std::vector<std::pair<std::string, std::string>> kv = {});
  void interrupt(const RunId& run, bool kill);
  /// Submits an unfinished or frozen run anew, with other code under the same id.
  Status replace(Prepared prepared, int32_t jobs);
  /// Blobs that gc keeps for runs that are not there yet.
  BlobPins& pins() { return pins_; }
  const BlobPins& pins() const { return pins_; }
  /// Runs `mark` on a turn with nobody holding content. What it adds to the batch is committed with
  /// a snapshot: the journal, which may name content of runs that ended, is replayed no more. Then,
  /// where that went well, `sweep`.
  void collect(const std::function<void(const core::State&, Batch&)>& mark,
               const std::function<void()>& sweep);
  /// Runs `read` in a turn with the state as it is after a turn, and waits for it.
  void inspect(const std::function<void(const core::State&, InputResolver&)>& read);

  /// Workers of other machines.
  WorkerMembership& membership() { return membership_; }
  WorkerRegistry& worker_registry() { return worker_registry_; }
  /// Which of them have large content.
  const std::shared_ptr<cluster::BlobDirectory>& blob_directory() const { return blob_directory_; }
  /// Those that an engine before this one had, and that may be back.
  std::vector<std::string> disconnected_workers();
  /// Of them, those that run something, by the state's account.
  std::vector<std::string> disconnected_workers_at_work();
  /// Keeps a row that no event belongs to, or takes it away where it is "".
  void put_metadata(std::string key, std::string value);
  /// A rank on a worker says how it is reached.
  void rank_address_reported(Report report) {
    post(as_input(reports_.input_of(std::move(report), "")));
  }
  /// What the worker `name` reported. `row` is committed with it; then `decided` is told whether it
  /// was taken, and `durable` is called.
  void worker_reported(const std::string& name, Report report,
                       std::pair<std::string, std::string> row,
                       std::function<void(bool admitted)> decided, std::function<void()> durable);
  /// In a `durable` only: called when all that the commit holds was told.
  void after_effects(std::function<void()> effect) { after_effects_.push_back(std::move(effect)); }

  /// This machine's GPUs, which the core knows too when this returns. They are looked for when this
  /// is first called, and again while none is found; from then on it is heard which of them fail.
  /// Blocks.
  Result<MachineGpus> gpus() { return gpus_.gpus(); }

  /// What records are stamped with.
  const StateClock& clock() const { return clock_; }
  /// An id that sorts behind all of this state.
  core::RunId new_run_id() const;

  Builder& builder() { return *builder_; }
  Store& store() { return *store_; }
  Blobs& blobs() { return blobs_; }
  const EngineLoopOptions& options() const { return options_; }
  /// The error that stopped the engine, if one did.
  std::optional<Error> stopped_by() const;
  /// Waits until the ranks of gangs that have succeeded have reported their ends, and so their last
  /// log lines, but no longer than `most`. Rank 0 may be the first to report.
  void await_rank_ends(std::chrono::milliseconds most);
  /// Ends every attempt and the thread; what runs is interrupted.
  void shut_down();

 private:
  /// A state that holds this run alone, as it was frozen; nothing where it was not.
  Result<std::optional<core::State>> archived_run(const RunId& id) const;
  Status add_run(Prepared prepared, int32_t jobs, bool replaces);
  void erase_run_data(const RunId& run, Batch& batch);
  struct Input {
    core::Event event;
    bool has_event = true;
    std::vector<std::pair<Digest, std::string>> blobs;    // committed with the event
    std::vector<std::pair<std::string, std::string>> kv;  // committed with the event
    std::function<void(Batch&, core::State&)> control;    // in the turn, before the commit
    bool reads_store = true;  // control may: what earlier turns decided is durable first
    std::function<void(bool admitted)> done;  // after the commit
    bool is_log = false;
    core::AttemptId attempt;  // of a log, and where `at` is given
    uint32_t log_rank = 0;
    uint32_t stream = 0;
    std::string text;
    core::Time at = 0;  // of an event that is told late, of a log; else 0
    size_t log_cost = 0;
    /// No event: `what` alone, which reads nothing of the store.
    void only(std::function<void(Batch&, core::State&)> what) {
      has_event = false;
      reads_store = false;
      control = std::move(what);
    }
  };

  using Outcome = std::pair<std::function<void(bool)>, bool>;  // `done`, and whether admitted

  /// What one or more turns decided: what is to be written, and what follows when it is durable.
  struct Commit {
    uint64_t number = 1;  // orders staged with it wait for it
    Batch batch;
    std::vector<core::Record> records;
    bool is_durable = false;     // it is to be
    size_t log_cost = 0;         // of the logs in the batch, for the worker
    uint64_t journal_bytes = 0;  // that its records came to
    std::unordered_map<Digest, std::string, DigestHash> staged;  // content that the batch holds
    size_t staged_bytes = 0;
    std::unordered_map<Digest, CacheEntry, DigestHash> cached;  // entries that it holds
    std::vector<core::Command> effects;
    std::vector<Outcome> outcomes;
    std::vector<Event> events;  // for the listeners
    EngineLogLines log_lines;   // of the engine's log
    bool empty() const {
      return batch.writes.empty() && records.empty() && effects.empty() && outcomes.empty() &&
             events.empty();
    }
  };

  EngineLoop(const EngineLoopOptions& options, std::unique_ptr<Store> store);
  GpuInventory::Hooks gpu_hooks();
  Status recover_state();
  Status resume_clock();
  void post(Input input);
  void post(std::vector<Input> inputs);
  void post_or_turn(std::vector<Input> inputs);
  core::Time next_timer() const;
  /// The driver's thread has something to do.
  bool has_work() const;
  void post_failure(const core::AttemptId& id, core::Cause cause, std::string message);
  void loop();
  void fail(const Error& error);

  // group_commit.cc
  /// Writes what the turn decided and makes it durable: here, or where that is much and
  /// `may_defer`, on the writing thread, which the next turns do not wait for. While that one
  /// writes, what they decide gathers for the next commit.
  void commit(bool may_defer);
  Commit take_open_batch();
  Status write(Commit& commit);
  uint64_t lock_inode() const;
  void begin_commit();
  /// Waits for a commit that is under way and does what follows from it.
  void await_commit();
  bool is_commit_in_flight() const;
  void write_loop();
  void finish(Commit commit, const Status& written);
  bool is_snapshot_due() const;
  void add_snapshot();

  // turn.cc
  /// A turn up to its commit.
  void decide(std::vector<Input> inputs);
  void turn(std::vector<Input> inputs, bool may_defer);
  core::Time event_time(const Input& input, core::Time now) const;
  void save_clock();
  void record(core::Event event, core::Time at);
  void stage(const Digest& digest, std::string bytes);
  uint64_t next_log(const core::AttemptId& id);
  void remember(const core::AttemptSucceeded& event);
  void run_until_stable(core::Time now);
  std::vector<core::Event> next_resize();
  struct ResolvedInputs {
    RunId run;
    core::UnitId unit;
    Digest key;
    bool may_hit = false;
    std::optional<CacheEntry> entry;
  };
  void resolve_inputs(core::Time now);
  void look_up(std::vector<ResolvedInputs>& resolved);
  std::optional<CacheEntry> cached(const Digest& key);
  void resolve(const core::Command& query, core::Time now);
  void record_if_admitted(core::Event event, core::Time now);
  void fail_unit(const RunId& run, core::UnitId unit, const Error& error, core::Time now);
  Result<std::string> gather(const core::Run& run, core::UnitId unit);
  /// Of content that is decided on and not yet in the store; null where it is not that.
  const std::string* staged(const Digest& digest) const;
  Result<std::string> read_blob(const Digest& digest);
  std::shared_ptr<const PlanFragment> fragment(const Digest& digest);
  bool may_hit_cache(const core::Run& run, core::UnitId unit, const CacheEntry& entry) const;
  // missing_results.cc
  /// That all of this is in the state, as far as sizes tell.
  bool has_all(const References& needed);
  /// Whether some of it is lost or damaged. What cannot be read now may not be.
  bool is_missing_any(const References& needed);
  /// A result and what it refers to; of a dynamic task its list of calls and what that refers to.
  bool holds_result_of(const CacheEntry& entry);
  /// Of a run that is taken up again, which may be folded: reads what those took that failed for
  /// want of something, and removes what is damaged. Not in a turn.
  void drop_damaged(const RunId& id, const std::optional<core::State>& archived);
  struct MissingOutputs {
    std::vector<core::UnitId> results;  // units whose results are gone, or what these refer to
    std::vector<core::UnitId> calls;    // dynamic tasks: the content that their calls refer to
  };
  /// What those took that failed for want of something, and the state does not hold any more.
  MissingOutputs find_missing_outputs(const core::Run& run);
  /// Has the dynamic tasks of `missing` make their calls again once the run goes on. Of the results
  /// it leaves those that are still lost then. For a run at rest; not in a turn.
  Status rerun_dynamic_tasks(const RunId& id, MissingOutputs& missing);
  RunContext* context_of(const RunId& run);
  bool is_being_interrupted(const RunId& id) const;
  void end_interruptions();

  // execute_commands.cc, attempt_orders.cc, run_events.cc: in a turn. worker_reports.cc: on the
  // threads that report
  /// Takes the attempts that can be staged out of the effects from `effects_before` on.
  void defer_starts(size_t effects_before);
  /// Executors fetch and decode what is about to start while its events are committed.
  void prefetch_orders(uint64_t commit);
  bool can_prefetch(const core::AttemptId& id) const;
  bool is_interrupted(const core::StopAttempt& stop) const;
  void stop(const core::StopAttempt& stop);
  std::string worker_name(core::WorkerId worker) const;
  void execute(const std::vector<core::Command>& effects);
  std::optional<AttemptOrder> make_order(const core::AttemptId& id);
  /// One for each rank of the attempt.
  void add_orders(const core::AttemptId& id, std::vector<AttemptOrder>& orders);
  void attach_blobs(AttemptOrder& order);
  void attach_progress(const core::Run& run, const core::Unit& unit, AttemptOrder& order);
  void attach_value(const std::string& bytes, AttemptOrder& order);
  void on_reports(std::vector<Report> reports);
  static Input as_input(TurnInput from);
  // gang_supervisor.cc
  void split(AttemptOrder order, const core::Run& run, std::vector<AttemptOrder>& orders);
  void replicate(const core::AttemptId& id, const core::Unit& unit);
  void publish_progress(const Report& report);
  void notify_unit(const RunId& run, core::UnitId unit);
  void notify_run(const RunId& run);
  void warn(const RunId& run, std::string text);
  void warn_of_small_share(const core::Assigned& assigned);
  void end_if_interrupted(const RunId& run);
  void notify_listeners(std::vector<Event> events);
  void write_run_record(const RunId& run);
  void archive(const RunId& run);
  std::vector<Input> due_timers(core::Time now);

  EngineLoopOptions options_;
  std::unique_ptr<Store> store_;
  Blobs blobs_;
  InputResolver resolver_;
  StateClock clock_;
  uint64_t lock_inode_ = 0;  // when the state was opened; no other file gets it meanwhile
  WorkerRegistry worker_registry_;
  const std::shared_ptr<cluster::BlobDirectory> blob_directory_ =
      std::make_shared<cluster::BlobDirectory>();
  std::shared_ptr<Builder> builder_;
  NativeRunner native_;
  // Library by name, under mutex_. As many as the embedding program defines.
  std::map<std::string, std::string> operations_;

  // A turn's alone.
  core::State state_;
  std::map<RunId, RunContext> contexts_;  // of runs in state_: they leave with RunEnded
  core::Time clock_saved_ =
      0;               // how far the clock was ahead of the wall clock, as the store has it
  Commit open_batch_;  // of this turn, and of those before it whose commit has not begun
  /// Is being written: batch and records are the writing thread's, what it holds of content and of
  /// cache entries is read by turns.
  Commit in_flight_;
  std::vector<std::function<void()>> after_effects_;  // of the commit that is being finished
  std::vector<core::AttemptId>
      deferred_starts_;                  // set aside: their orders are made beside the commit
  bool has_speculative_start_ = false;   // of those some compute until they are durable
  std::vector<core::Command> commands_;  // of the events applied since they were last drained
  std::deque<core::Command> queries_;
  std::vector<core::AttemptId> checkpointed_;  // of this turn: whose checkpoints
  // Entries leave when they are due, or with RunEnded.
  std::multimap<core::Time, core::SetTimer> timers_;
  std::multimap<core::Time, RunId> serve_ends_;
  // Of calls that wait until a run is interrupted: they leave in end_interruptions().
  std::multimap<RunId, std::shared_ptr<Latch>> interruptions_;
  GangSupervisor gangs_;
  WorkerReports reports_;
  WorkerMembership membership_;
  // Of runs in state_: they leave when the run is folded.
  std::map<std::pair<RunId, core::UnitId>, uint64_t> log_counts_;
  uint64_t late_logs_ = 0;  // lines of runs that had ended
  uint64_t journal_bytes_ = 0, snapshot_bytes_ = 0, snapshot_sequence_ = 0;
  bool snapshot_due_ = false;
  BlobPins pins_;
  GpuInventory gpus_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  enum class CommitPhase : uint8_t { idle, writing, written };
  CommitPhase commit_phase_ = CommitPhase::idle;
  Status commit_status_;
  bool is_writer_quitting_ = false;
  std::condition_variable commit_begun_, commit_written_;
  std::thread write_thread_;
  std::deque<Input> inbox_;
  bool is_turning_ = false;  // a thread is in a turn: what turns own is its alone
  bool is_started_ = false;  // the driver's thread is there
  core::Time wake_at_ = 0;   // when the driver's thread wakes by itself
  bool quit_ = false;
  std::optional<Error> stopped_by_;
  std::thread thread_;
};

}  // namespace flow
