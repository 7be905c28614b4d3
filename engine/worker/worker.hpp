// The port to a worker: executor processes, scratch folders, limits. It knows attempts and their
// processes, but no runs and no graph.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/core/types.hpp"
#include "engine/worker/report.hpp"
#include "flow/tags.hpp"

namespace flow {

/// Everything an executor needs to run one attempt.
struct AttemptOrder {
  core::AttemptId id;
  uint32_t rank = 0, ranks = 1;
  uint32_t local_rank = 0, local_ranks = 1;  // among the ranks on its worker
  std::string gang_key;        // random; authenticates the ranks of a gang to each other
  bool encrypts = false;       // long transfers between its ranks are encrypted
  bool is_spread = false;      // ranks are on other workers
  std::string remote_address;  // if is_spread: an address that is routed to the other workers
  std::string worker;          // name of the worker that runs it; "" this machine's own
  std::string task;            // ctx.task
  std::string tag;             // of the task instance; "" if it has none
  std::string task_name;       // TaskDef::name
  TaskKind kind = TaskKind::lua;
  Digest bundle;
  std::shared_ptr<const std::string> bundle_bytes;  // sent once per executor
  uint32_t ordinal = 0;
  std::string args;                                   // canonical bytes, refs resolved
  std::vector<std::pair<Digest, std::string>> blobs;  // small blobs that args needs
  Digest key;
  uint64_t seed = 0;
  Resources resources;
  std::vector<std::string> gpus;     // UUIDs of the GPUs that are assigned to it
  std::vector<std::string> visible;  // for programs of a gang: GPUs of all ranks on its worker
  int64_t timeout_ms = 0;            // of the attempt; 0: none, as for each service
  int64_t grace_ms = 10'000;
  std::vector<std::pair<std::string, std::string>> steps, signals;  // name to canonical bytes
  bool has_checkpoint = false;
  std::string checkpoint;
  struct Wait {
    std::string name;
    core::Time deadline = 0;
    bool expired = false;
  };
  std::vector<Wait> waits;
  std::shared_ptr<const EnvironmentVariables> environment;  // the submitter's
  EnvironmentVariables env;                // of the task, with placeholders replaced
  std::vector<std::string> hide;           // shown as *** in logs
  std::shared_ptr<const ShellSpec> shell;  // of a shell task
  std::string defined_at;                  // of a shell task: "p.lua:3"
  bool stage_copy = false, named_args = false;
  ServiceSpec service;
  int64_t request_timeout_ms = 0;   // of a service: deadline of its requests; 0: the default
  std::string front;                // of a service: folder of its front
  int64_t front_lease_ms = 60'000;  // how long it serves without an engine
  std::string service_keys;         // value of the variable that `service` names; also in `hide`
  std::string traceparent;          // TRACEPARENT of its programs; "": the run's
  int64_t fetch_us = 0;             // how long its worker fetched its inputs from other machines
  int64_t fetched_bytes = 0;        // that these sent
  RankId rank_id() const { return {id, rank}; }
  std::string shown_task() const { return tagged_name(task, tag); }  // for texts
};

/// Maximum cost of reported, unacknowledged logs and metrics. Beyond it executors are not read, so
/// tasks that print block.
constexpr size_t kUnackedLogsMax = 32 << 20;

/// How fronts on this machine are reached by workers of other machines.
struct FrontGate {
  std::string host;  // numeric; where they listen
  std::string name;  // of the head, and that of flow and its messages
  std::string version;
  uint32_t schema = 0;
  std::string secret;  // bytes of the cluster's secret
  int64_t lost_after_ms = 0;
  /// A front listens at this port now. Called on the worker's thread without a lock. `front`: name
  /// of its folder.
  std::function<void(const std::string& front, uint16_t port)> on_port{};
};
/// A front that is needed although no replica runs on this machine.
struct HeldFront {
  std::string folder;
  int64_t lease_ms = 0;
  bool operator==(const HeldFront&) const = default;
};

struct WorkerOptions {
  std::string state_dir;      // scratch is below state_dir/scratch
  std::string executor;       // path of flow-executor
  int32_t executors_max = 2;  // maximum number of processes
  /// Listens in the folder of a front for replicas, if the front is on another machine; else the
  /// worker starts the front itself.
  std::function<Status(const std::string& folder)> open_front{};
};

struct InputPattern;  // engine/blobs/input_listing.hpp

struct BuildOrder {
  std::string root, main, params, working_directory, pinned;
  std::string main_text{};  // the text of `main`; "": of the file
  std::vector<std::pair<std::string, std::string>> text_params;
  int64_t time_limit_ms = 30'000;
  int64_t memory_limit_bytes = int64_t{4} << 30;
  bool describe = false;  // only the pipeline's name and parameters; its body does not run
  /// Lists the files of a pattern for the script, which the build's process cannot do.
  std::function<Result<std::vector<std::string>>(const InputPattern&)> list_inputs{};
  /// Calls the tag function of this map of the plan for each item, after the build.
  struct TagOrder {
    uint32_t node = 0;
    std::vector<std::string> items;  // canonical bytes
  };
  std::optional<TagOrder> tags{};
  /// Calls the resource functions of a task of the plan, after the build.
  struct ResourceCall {
    uint32_t def = 0;
    std::string args;  // canonical bytes of the list of arguments
    bool named_args = false;
    uint32_t attempt = 1;
    uint8_t functions = 0;  // those that are called: bits of ResourceFunction
  };
  std::vector<ResourceCall> resource_calls{};
};
struct BuildReply {
  std::string plan, bundle;       // encoded; with a TagOrder or resource calls both are empty
  std::vector<std::string> tags;  // as many as the TagOrder's items
  /// The options of the task's definition with the values of its functions, or an error.
  struct CallResources {
    std::string error;
    Resources resources;
    int64_t timeout_ms = 0;
  };
  std::vector<CallResources> resources;  // as many as the resource calls
  std::vector<std::string> errors;
  std::string printed;  // by the script, at top level and in its body
};

/// Thread-safe. OnReport is called on the worker's own thread without a lock.
class Worker {
 public:
  using OnReport = std::function<void(std::vector<Report>)>;
  virtual ~Worker() = default;  // kills every executor's process group and waits for its end
  /// Passes orders whose events are part of this commit, while it is being written. Until its
  /// release they cause no lasting or visible effect (speculative start): a Lua task may compute
  /// its result but waits before its first external effect; commands and services wait before they
  /// begin. Commits are numbered from 1.
  virtual void stage(std::vector<AttemptOrder> orders, uint64_t commit) = 0;
  /// This commit and all earlier ones are durable.
  virtual void release(uint64_t commit) = 0;
  void start(std::vector<AttemptOrder> orders) { stage(std::move(orders), 0); }
  /// Passes the addresses of all ranks, in rank order, to the ranks of the gang on this worker. May
  /// be repeated.
  virtual void exchange_addresses(const core::AttemptId& id,
                                  const std::vector<std::string>& rank_addresses) = 0;
  /// SIGTERM, then SIGKILL after the order's grace; with `kill` SIGKILL at once. The attempt ends
  /// with its report; all ranks of a gang on this worker are stopped.
  virtual void stop(const core::AttemptId& id, bool kill) = 0;
  /// Sets ctx.stopping: the attempt may save and end, or finish. After the order's grace it gets
  /// SIGTERM, and shortly later SIGKILL.
  virtual void interrupt(const core::AttemptId& id) { stop(id, false); }
  /// SIGKILL as soon as the attempt's pending checkpoints are written, or at the end of the order's
  /// grace.
  virtual void kill_after_flush(const core::AttemptId& id) { stop(id, true); }
  /// Starts nothing more: requeues attempts that have not begun and interrupts the others, which
  /// get this many ms before SIGTERM.
  virtual void drain(int64_t) {}
  virtual void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) = 0;
  /// Keeps a replica of this checkpoint, which rank 0 of the attempt saved on another worker, so
  /// that the next attempt finds it nearby.
  virtual void replicate(const core::AttemptId&, const Digest&) {}
  /// The run has ended: data that is kept for its further attempts can be released.
  virtual void forget(const core::RunId&) {}
  /// The interrupted run has another plan: of the replicas of its services that an earlier engine
  /// left, those of these units are now those of the units that they are mapped to. The others end.
  virtual void move_replicas(const core::RunId&, const std::map<core::UnitId, core::UnitId>&) {}
  /// From now on the fronts that are held can be reached by workers of other machines.
  virtual void open_fronts(FrontGate) {}
  /// Keeps these fronts running instead of those of the last call.
  virtual void hold_fronts(std::vector<HeldFront>) {}
  /// Workers reach the front of this name at this port of the head's host.
  virtual void set_front_port(const std::string&, uint16_t) {}
  /// Acknowledges logs and metrics of this cost.
  virtual void ack_logs(size_t cost) = 0;
  /// The destructor leaves the processes that serve these runs to the next engine, for their lease.
  virtual void leave_services(std::set<core::RunId>) {}
};

/// A connected worker on another machine. Its reports are numbered from 1, continuously over all
/// its connections.
class WorkerConnection : public Worker {
 public:
  /// Accepts the join: offered attempts that were not stopped by now continue, and the worker sends
  /// its reports after number `acked`.
  virtual void accept_join(uint64_t acked) = 0;
  /// Acknowledges its reports up to this number: they are durable.
  virtual void ack_reports(uint64_t number) = 0;
  /// Ends the connection. `why` is shown to users.
  virtual void disconnect(const std::string& why) = 0;
};

/// Creates the worker of this machine. First kills leftovers of attempts that the slot files
/// record.
Result<std::unique_ptr<Worker>> make_worker(const WorkerOptions& options,
                                            Worker::OnReport on_report);

class BuildChild;

/// Builds each graph in a child process with CPU, memory and time limits. Thread-safe.
class Builder {
 public:
  explicit Builder(std::string executor);
  ~Builder();  // ends its child processes
  /// Starts the child process for the next graph in advance, because starting takes as long as
  /// building a small graph. Done automatically from the second build on.
  void prefork();
  /// Blocks.
  Result<BuildReply> build(const BuildOrder& order);
  /// Waits until the child of the last build has ended and the next one, if any, has started.
  void wait_idle();

 private:
  Result<std::unique_ptr<BuildChild>> start() const;
  void clean_up_in_background(std::unique_ptr<BuildChild> ended, bool builds_often);

  const std::string executor_;
  std::mutex mutex_;
  std::unique_ptr<BuildChild> preforked_;
  uint64_t builds_ = 0;
  std::mutex cleanup_mutex_;
  std::thread cleanup_;
};

}  // namespace flow
