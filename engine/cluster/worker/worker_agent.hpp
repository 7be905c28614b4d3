// The worker's end of the worker protocol: passes the head's orders to this machine's Worker and
// its reports to the head (RemoteWorker). It outlives sessions: without one, attempts keep running
// and their reports wait in the spool.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/environment_variables.hpp"
#include "engine/cluster/session/session_link.hpp"
#include "engine/cluster/transfer/arrived_blobs.hpp"
#include "engine/cluster/transfer/blob_references.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"
#include "engine/cluster/transfer/bundle_users.hpp"
#include "engine/cluster/transfer/worker_messages.hpp"
#include "engine/cluster/worker/checkpoint_replicas.hpp"
#include "engine/cluster/worker/report_spool.hpp"

namespace flow::cluster {

/// Maximum number of unacknowledged report bytes in flight; further reports wait in the spool.
constexpr uint64_t kInFlightBytesMax = 8u << 20;
/// With more unacknowledged bytes than this, attempts that write logs are blocked.
constexpr uint64_t kSpoolLogsMax = uint64_t{1} << 30;
/// Maximum number of acknowledged ends of ranks that a worker offers again.
constexpr size_t kAckedEndsMax = 256;

/// Thread-safe.
class WorkerAgent {
 public:
  /// Creates the worker whose reports go to the head.
  using MakeWorker = std::function<Result<std::unique_ptr<Worker>>(Worker::OnReport)>;
  struct Options {
    std::string spool_dir;
    std::shared_ptr<SpoolFolder> spool_folder;  // null: that of spool_dir
    std::shared_ptr<BlobCache> store;           // of the worker's own folder
    core::WorkerInfo worker;
    std::string head;  // address; the ranks of other machines are reached in the same direction
    /// The address at which peers download blobs from this worker; "": none.
    std::function<std::string()> blob_address = [] { return std::string(); };
    /// As TransferOptions::follow_redirect.
    std::function<void(const BlobInfo&, Addresses, OnFetched)> follow_redirect;
    /// Whether blobs are encrypted: the head's last setting.
    std::shared_ptr<std::atomic<bool>> encrypts = std::make_shared<std::atomic<bool>>(false);
    /// Receives lines for the log, on any thread; it must not block.
    std::function<void(std::string)> on_note = [](std::string) {};
    /// Workers reach the front of this name at this port of the head's host.
    std::function<void(const std::string& front, uint16_t port)> on_front_port{};
    /// Milliseconds since the Unix epoch.
    std::function<int64_t()> clock = now_ms;
    /// The machine's hardware; reported to the head.
    Hardware machine = own_hardware();
    /// Threads that read, write and remove files. With 0, for a simulator, run_jobs() does that.
    size_t threads = 2;
  };
  static Result<std::unique_ptr<WorkerAgent>> start(Options options, const MakeWorker& make);
  ~WorkerAgent();  // ends what runs

  /// Joins the head of an open session. `send` may still be called shortly after disconnect().
  void connect(Send send, std::shared_ptr<Link> link, const BulkSeal& seal,
               const std::string& peer);
  void disconnect(const Error& why);
  /// Whether the head accepted the join in this session, or in the last one.
  bool was_accepted() const;
  /// Handles a chunk from the head. Returns false if it is invalid; the caller then ends the
  /// session.
  bool on_message(std::string_view chunk);
  /// Starts nothing more and asks running attempts to stop within `grace_ms`. `why` is shown to
  /// users.
  void drain(int64_t grace_ms, const std::string& why);
  /// A GPU of this machine failed (see core::GpuFailed). Reported to this head and to later ones.
  void gpu_failed(const std::string& uuid, const std::string& fault, bool is_dead);
  /// What a GPU of this machine measures. The head gets the newest sample of each.
  void note_gpu_sample(const GpuSample& sample);
  /// Counts a transferred blob; the counts are reported to the head.
  void note_transfer(BlobVolume Traffic::*way, const BlobInfo& blob);
  /// Runs the waiting jobs on the calling thread.
  void run_jobs() { thread_pool_.run_waiting(); }
  /// Number of attempts that run here or whose end the head has not acknowledged.
  size_t attempts() const;
  /// The blobs that it has transferred since it started.
  Traffic traffic() const;

 private:
  /// Converts commit numbers: the head counts per session, the worker over all sessions.
  struct CommitNumbers {
    uint64_t base = 0, last = 0;
    /// 0: no commit.
    uint64_t local(uint64_t number) {
      if (number == 0) return 0;
      last = std::max(last, base + number);
      return base + number;
    }
  };
  explicit WorkerAgent(Options options);
  void load_spool();
  bool dispatch(worker_protocol::ToWorker& message);
  bool on_front_port(const worker_protocol::FrontPort& at);
  bool on_bundle(const wire::LoadBundle& load);
  bool on_environment(const wire::Environment& environment);
  bool on_order(worker_protocol::Order& in);
  bool on_join_accepted(const worker_protocol::JoinAccepted& accepted);
  bool on_release(uint64_t commit);
  bool on_replica(const worker_protocol::Replica& replica);
  void fetch_replica(const core::AttemptId& of, const Digest& digest);
  /// A signal that drains this worker may also have been sent to its attempts, whose reports may
  /// come first: waits for the drain.
  void await_drain(const std::vector<Report>& reports);
  void requeue(const RankId& id);
  /// An attempt that a drain ended before it saved anything is reported as preempted and restarts
  /// elsewhere.
  void mark_preempted(Report& report) const;
  void on_report_ack(uint64_t number);
  /// An order that waits for its blobs or for disk space.
  struct StagedOrder {
    AttemptOrder order;
    uint64_t commit = 0;
    std::vector<BlobReference> references;
    size_t missing = 0;
    int64_t received_us = 0;         // by the monotonic clock
    bool awaits_disk_space = false;  // until free_disk_for() has freed disk space
    std::optional<Error> problem;
  };
  using StagedOrderPtr = std::shared_ptr<StagedOrder>;
  void send_blob_message(uint64_t session, std::string_view bytes);
  void fetch(const StagedOrderPtr& staged);
  void on_fetched(const StagedOrderPtr& staged, const std::shared_ptr<BlobTransfer>& from,
                  const Status& status);
  void begin(const StagedOrderPtr& staged);
  void fail(const RankId& id, const std::string& why);
  /// Stops an order that has not begun. Returns false if it has.
  bool stop_staged(const core::AttemptId& id);
  void place(const StagedOrderPtr& staged);
  void unplace(const std::vector<StagedOrderPtr>& all);
  void pin_reported_blobs(const Report& report);
  void hold_checkpoint(const RankId& rank, const BlobReference& reference);
  void note_blob_added(const BlobInfo& blob);
  void note_blob_removed(const Digest& digest);
  void note_blob_removed_locked(const std::optional<Digest>& digest);
  /// Sends a rank's address, and again to each later head until the rank ends.
  void send_rank_address(const RankId& id, const std::string& address);
  void on_reports(std::vector<Report> reports);
  std::string scratch_dir() const;
  /// Whether a running attempt uses the scratch folder of this name. With `until_acked` also an
  /// attempt that has ended but whose end the head has not acknowledged. True if the name is not
  /// that of an attempt's folder.
  bool holds_folder(const std::string& run, const std::string& name, bool until_acked) const;
  /// Removes scratch folders of failed attempts, except the newest ones and that of `newest`. If
  /// `newest` failed because the disk was full (`is_disk_full`), only its folder is kept.
  void trim_scratch_later(const core::AttemptId& newest, bool is_disk_full);
  /// Whether scratch folders may have to be removed before an attempt starts.
  bool needs_disk_space() const;
  /// Removes scratch folders of ended attempts: all of them if an attempt ran out of disk space
  /// since the last call, otherwise the oldest ones. Then starts the order.
  void free_disk_for(const RankId& id);
  /// Returns the order if it can start in this session. Returns null if it was stopped, or if there
  /// is no session; on_join_accepted() starts it then.
  StagedOrderPtr end_disk_wait(const RankId& id);
  /// Checks the disk after failures to read or write.
  void handle_failures(const std::vector<Report>& reports);
  void note_end(const Report& report, uint64_t number);
  /// A step or checkpoint that was reported. An attempt waits until the head has answered.
  struct UnansweredSave {
    uint64_t number = 0;  // of the report
    RankId rank;
    std::string name;
  };
  void note_answer(const core::AttemptId& id, const std::string& name);
  /// Takes out those whose reports a head has committed, as far as `acked`.
  std::vector<UnansweredSave> take_committed_saves(uint64_t acked);
  void forget_ended(uint64_t number);
  bool runs_any_of(const core::RunId& run) const;
  bool on_forget(const core::RunId& run);
  void set_aside_run(const core::RunId& run);
  void set_aside_runs();
  void remove_later(const std::string& path);
  void evict_later(const std::vector<Digest>& digests);
  std::string join_message();
  std::string draining_message() const;
  /// Sends queued messages and reports in order, on one thread at a time.
  void progress();
  bool next_message(std::string& message);

  const Options options_;
  const std::string process_;

  mutable std::mutex mutex_;
  core::WorkerInfo worker_info_;  // including faults since then
  std::unique_ptr<ReportSpool> spool_;
  std::set<RankId> saved_;  // running ranks that have saved something; entries leave at their end
  // Of attempts that run. They leave with the answer, or at the attempt's end.
  std::vector<UnansweredSave> unanswered_saves_;
  std::condition_variable drains_;
  std::string draining_;  // the reason; "" while it accepts orders
  // With the number of the report that ended it; 0: it runs. Entries leave in forget_ended(), when
  // the head has acknowledged that report; so do those of ends_.
  std::map<RankId, uint64_t> attempts_;
  struct AttemptEnd {
    uint64_t number = 0;
    RankId rank;
    bool is_over = false;  // it will not start again
  };
  std::deque<AttemptEnd> ends_;
  // The newest acknowledged successes of ranks above 0. A head that started later learns from them
  // that these ranks are not missing: the gang may still run elsewhere. They leave in on_forget().
  std::deque<RankId> acked_ends_;
  ArrivedBlobs arrived_;
  PlacedCheckpoints placed_;
  CheckpointReplicas replicas_;
  std::set<core::RunId> ended_runs_;         // ended runs with entries in attempts_
  std::map<RankId, StagedOrderPtr> staged_;  // until they begin, fail or are stopped
  bool has_filled_disk_ = false;             // an attempt filled the disk since free_disk_for()
  bool may_have_scratch_ = true;             // folders of attempts that have ended
  size_t freeing_disk_ = 0;                  // unfinished jobs of free_disk_for()
  std::condition_variable disk_freed_;
  std::map<RankId, std::string> rank_addresses_;  // messages of the gangs' ranks that run
  std::shared_ptr<BlobTransfer> transfer_;        // of this session
  Send send_;                                     // null while there is no session
  uint64_t sessions_ = 0;                         // number of sessions so far
  std::deque<std::string> priority_messages_;     // messages that are sent before reports
  std::map<uint32_t, GpuSample> gpu_samples_;     // to be sent, by index of the GPU
  BlobInventoryDelta inventory_delta_;            // changes to report
  bool has_inventory_delta_ = false;
  bool is_accepted_ = false;
  std::deque<std::pair<uint64_t, size_t>> in_flight_;  // reports that were sent: number and bytes
  uint64_t in_flight_bytes_ = 0;
  bool is_progressing_ = false;
  size_t deferred_log_acks_ = 0;  // cost of acknowledged logs of which the worker was not notified
  std::string noted_problem_;

  // Used by the message thread only:
  MessageAssembler assembler_;
  CommitNumbers commit_numbers_;
  uint64_t held_release_ = 0;  // releases that arrived before JoinAccepted
  // Runs of this session that have not ended; entries leave in on_forget().
  BundleUsers bundle_users_;
  std::map<Digest, std::shared_ptr<const std::string>> bundles_;
  std::map<std::string, std::shared_ptr<const EnvironmentVariables>> environments_;

  ThreadPool thread_pool_;
  std::unique_ptr<Worker> worker_;  // last: its reports use the other members
};

}  // namespace flow::cluster
