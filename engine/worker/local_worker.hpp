// The worker of this machine: an epoll loop over its executors, with a bounded pipeline of short
// attempts in each. The worker's thread reads; callers write to idle executors directly, under the
// lock.
#pragma once
#include <sys/epoll.h>
#include <sys/resource.h>

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/spin_wait.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/protocol/replica_record.hpp"
#include "engine/worker/front_process.hpp"
#include "engine/worker/gpu_meter.hpp"
#include "engine/worker/slot.hpp"

namespace flow {

constexpr int64_t kLongAttemptUs =
    5'000;  // an attempt that takes longer loses the orders queued behind it
constexpr int64_t kEndGraceUs = 500'000;  // time for an executor to end when it is asked to

class LocalWorker final : public Worker {
 public:
  /// `state_id`: see state_id(). `replicas`: executors that serve without an engine.
  LocalWorker(const WorkerOptions& options, std::string state_id,
              std::vector<ReplicaRecord> replicas, OnReport on_report);
  ~LocalWorker() override;
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override;
  void release(uint64_t commit) override;
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& rank_addresses) override;
  void stop(const core::AttemptId& id, bool kill) override;
  void interrupt(const core::AttemptId& id) override;
  void kill_after_flush(const core::AttemptId& id) override;
  void drain(int64_t grace_ms) override;
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override;
  void ack_logs(size_t cost) override;
  void leave_services(std::set<core::RunId> runs) override;
  void forget(const core::RunId& run) override;
  void move_replicas(const core::RunId& run,
                     const std::map<core::UnitId, core::UnitId>& units) override;
  void open_fronts(FrontGate gate) override;
  void hold_fronts(std::vector<HeldFront> fronts) override;

 private:
  struct PendingOrder {
    PendingOrder(AttemptOrder&& moved, uint64_t number) : order(std::move(moved)), commit(number) {}
    AttemptOrder order;
    uint64_t commit;
  };
  /// The front of services that run here.
  struct Front {
    std::string folder;
    int64_t lease_ms = 0;
    FrontProcess process;  // pidfd below 0: it has ended
    /// Without a replica and an engine it would end after its lease, and a replica may take longer
    /// to start.
    std::optional<FrontClient> control;
    bool is_reached = false;  // the process has been connected to
    int64_t needed_us = 0;    // when it was last needed
    int64_t started_us = 0;
    int64_t next_start_us = 0;  // if it has ended
    int64_t delay_us = 0;       // before it is started again
    bool is_held = false;       // for replicas on other machines,
    bool has_gate = false;      // which this process has asked it to let in,
    uint16_t gate_port = 0;     // here; 0: not yet
  };

  // on the caller's thread:
  /// Takes newly arrived orders.
  void drain_incoming();
  /// Sends what can be sent now and leaves the rest to the worker's thread.
  void dispatch_now();
  void wake();
  void watch(int descriptor, void* target, uint32_t events, int operation = EPOLL_CTL_ADD);
  /// Whether to read from the slot. While unacknowledged logs are at their bound, only slots whose
  /// attempt must end are read.
  bool may_read(const Slot& slot) const;
  void watch_slot(Slot& slot);

  // on the worker's thread:
  void loop();
  /// Whether to spin: one attempt runs, and attempts have been shorter than waking a thread takes.
  bool is_spinning() const;
  int wait(epoll_event* events, int64_t spin_us, int timeout_ms);
  void handle_event(void* target, uint32_t events);
  void reap_exited();
  bool needs_tick() const;
  Slot* slot_of(const RankId& id);
  enum class StopMode : uint8_t { interrupt, terminate, kill_after_flush, kill };
  void stop_attempt(const core::AttemptId& id, StopMode how);
  void stop_running(Slot& slot, AssignedAttempt& running, StopMode how);
  /// Asks the slot's attempt to end and requeues those behind it.
  void drain_slot(Slot& slot);
  /// Requeues the attempts behind the running one.
  static void requeue_queued(Slot& slot);
  static void kill_by(AssignedAttempt& running, int64_t at_us);
  void send_stop(Slot& slot, const RankId& id, StopMode how = StopMode::terminate);

  // from executors:
  /// Reads messages of the slot. Returns false when its process is gone.
  bool read_slot(Slot& slot);
  bool cut(Slot& slot);
  void handle(Slot& slot, wire::FromExecutor& message);
  /// Replaces the attempt's outcome by the worker's own action (such as a timeout) if that explains
  /// it.
  static void adjust(const Slot& slot, AssignedAttempt& running, TaskFinished& finished);
  void requeue(Slot& slot, const core::AttemptId& id);
  /// Reads available output; nothing while logs are at their bound; everything of a dead executor.
  void read_errors(Slot& slot, bool is_dead = false);
  /// Reports a part of a long line.
  void error_chunk(Slot& slot);
  /// Reports a last line without a newline.
  void end_errors(Slot& slot);
  void error_line(Slot& slot, std::string line, bool ends_line = true);
  void log_error(const AssignedAttempt& front, LogBound::Entry entry);
  /// Counts the cost of log lines until they are acknowledged.
  void add_report(Report&& report);
  void report_end(const RankId& id, TaskFinished::Outcome outcome, core::Failure failure,
                  const core::AttemptUsage& usage = {});

  // the end of an executor:
  /// Kills the attempt's program. The executor sees its connection closed, kills the program's
  /// descendants and ends.
  void kill_slot(Slot& slot);
  /// Whether the executor serves one of the runs that are left to the next engine.
  bool is_handed_on(const Slot& slot) const;
  void end_all();
  /// Reaps the executor and kills what it left behind. Returns the wait status.
  /// `used` may be null; it stays as it is for an executor that is not a child.
  int reap(Slot& slot, rusage* used = nullptr);
  /// The process is gone: its running attempt ended with it, the others never started.
  void retire_slot(Slot& slot);

  // time and memory:
  void tick();
  /// CPU time of a process and of the children that it waited for; -1 if it does not exist.
  static int64_t cpu_us(pid_t pid);
  /// A long attempt, and how much memory its processes have together.
  struct MemorySample {
    pid_t executor = 0;
    RankId attempt;
    int64_t bytes = 0;
  };
  /// The attempts whose memory is to be looked at now.
  std::vector<MemorySample> due_samples();
  void begin_measuring(const AttemptOrder& order);
  /// For one that has not begun after all.
  void stop_measuring(const RankId& id);
  /// Keeps the end of an attempt with GPUs until they are measured. Returns whether it is one.
  bool hold_for_gpus(Report& report);
  /// Reports held ends whose GPUs are measured.
  void report_measured();
  /// Keeps the result of a gang, which rank 0 reports, until its other ranks here have reported
  /// what they used: they end with it. Returns whether it is one.
  bool hold_for_ranks(Report& report);
  /// Whether another rank of the attempt has not reported its end yet.
  bool has_other_ranks(const core::AttemptId& id) const;
  /// Reports held results of gangs whose other ranks have ended, or take too long.
  void report_gangs();
  /// Before a report of how another rank ended without a result.
  void report_gang(const core::AttemptId& id);
  /// Looks at all processes of the machine: not to be called with the lock.
  static void take_samples(std::vector<MemorySample>& samples);
  void note_samples(const std::vector<MemorySample>& samples, int64_t began_us);
  static core::AttemptUsage usage_of_killed(const AssignedAttempt& front, const rusage& used);
  void watch_memory(Slot& slot, AssignedAttempt& front);
  /// Called before an attempt begins: sets its memory limit, or removes that of the previous one.
  static void limit_memory(Slot& slot, AssignedAttempt& running);
  /// Whether the kernel has killed a process of the slot for lack of memory since the last call.
  bool has_new_oom_kill(Slot& slot);
  /// Checks whether an attempt that ended by SIGKILL, or near its memory limit, was killed for
  /// that.
  void note_memory(Slot& slot, AssignedAttempt& running, const TaskFinished& finished);

  // to executors:
  static bool is_exclusive(const AttemptOrder& order);
  int32_t cpus_in_use() const;
  /// Returns true if an order waits for an executor that only the worker's thread may start.
  bool dispatch(bool may_spawn);
  /// Moves orders that wait for a GPU that an executor is releasing to `waiting`.
  bool dispatch_pending(bool may_spawn, std::deque<PendingOrder>& waiting);
  /// An idle executor that sees exactly these GPUs.
  Slot* idle_slot(const std::vector<std::string>& gpus);
  /// Ends idle executors other than `except` that hold memory of these GPUs. Returns false if one
  /// has not ended yet.
  bool free_gpus(const std::vector<std::string>& gpus, const Slot* except);
  void requeue_all();
  /// The first order cannot start.
  void fail_pending(const std::string& why);
  /// Starts an executor. If that fails, the first order fails with the reason, and the next one
  /// retries.
  Slot* new_slot();
  /// Kills executors that serve the run's service of this order with other code or options.
  void kill_replaced(const AttemptOrder& order);
  /// The slot of an executor that serves already for the unit of this order; null if there is none.
  Slot* adopt(const AttemptOrder& order);
  std::vector<ReplicaRecord>::iterator replica_for(const AttemptOrder& order);
  /// Connects to the executor. Nothing if that fails.
  std::optional<ExecutorProcess> take_over(const ReplicaRecord& replica) const;
  void kill_replica(const ReplicaRecord& replica);
  /// Ends fronts that nothing needs and that do not listen yet: ServiceFronts cannot tell them.
  void end_starting_fronts();
  /// Kills executors that serve without an engine if they use one of these GPUs.
  void kill_replicas_on(const std::vector<std::string>& gpus);

  // fronts:
  Status start_front(Front& front);
  /// Starts the front of a service's order, and watches it.
  Status ensure_front(const AttemptOrder& order);
  /// The folder of the order's front on this machine.
  std::string own_front(const AttemptOrder& order) const;
  bool is_needed(const Front& front) const;
  void note_front_end(Front& front);
  /// The front of this folder, which is new if it is not known.
  Front& front_in(const std::string& folder);
  void hold_front(Front& front) const;
  void open_gate(Front& front);
  bool awaits_gate(const Front& front) const;
  void restart_fronts();
  /// The slot with the shortest queue whose running attempt is not known to be long.
  Slot* shortest_slot();
  void send(Slot& slot, PendingOrder&& pending);
  /// The unit's name as a folder name.
  static std::string safe_name(const AttemptOrder& order);
  void write_slot(Slot& slot);

  const WorkerOptions options_;
  const std::string state_id_;
  const std::map<std::string, CgroupHierarchy> own_cgroups_;
  const CgroupParent cgroups_;
  const OnReport on_report_;
  int epoll_ = -1, wake_ = -1;

  std::mutex incoming_mutex_;
  // Not yet examined: the orders of a commit, with its number.
  std::vector<std::pair<std::vector<AttemptOrder>, uint64_t>> incoming_;

  std::mutex mutex_;  // protects all members below; taken before the other mutex
  bool quit_ = false;
  bool is_blocked_ = false;  // the thread wakes only on request
  int64_t drain_by_us_ = 0;  // then running attempts are asked to end; 0 while not draining
  uint64_t released_ = 0;    // the newest commit that is durable
  std::deque<PendingOrder> pending_;     // bounded by the head's assignments
  wire::ToExecutor start_message_;       // of the newest order: the next one takes its memory
  std::list<Slot> slots_;                // removed in bury()
  std::vector<ReplicaRecord> replicas_;  // not adopted yet
  std::set<std::string> moved_runs_;     // whose records have units of the plan before
  std::set<core::RunId> left_;           // their services keep running without this engine
  std::list<Front> fronts_;
  std::optional<FrontGate> gate_;
  std::vector<std::pair<std::string, uint16_t>> found_ports_;  // of fronts, to be reported
  // Delivered at the end of each pass of the loop; bounded by kUnackedLogsMax.
  std::vector<Report> reports_;
  size_t unacked_ = 0;        // cost of reported, unacknowledged logs
  bool is_log_full_ = false;  // set at the bound, cleared at half of it
  int64_t memory_checked_us_ = 0;
  int64_t next_sample_us_ = 0;
  std::unique_ptr<GpuMeter> meter_;
  std::set<RankId> measured_;            // that the meter knows and that have not ended
  std::list<Report> held_;               // ends that wait for the meter
  std::set<core::AttemptId> gang_ends_;  // of gangs: rank 0 has a result, not reported yet
  std::list<std::pair<Report, int64_t>> gang_results_;  // that wait for ranks, until then
  int64_t oom_kills_ = 0;               // kills in the worker's own group that were counted
  int64_t last_duration_us_ = kSpinUs;  // of the newest attempt that ended
  std::thread thread_;
};

}  // namespace flow
