// flow: durable GPU pipelines in Lua. The public C++ interface; the command line is a client of it
// and of nothing else.
//
//   flow::Engine engine({.state = "state", .jobs = 4});
//   flow::Run run = engine.run("pipeline.lua", {{"epochs", 3}});
//   for (const flow::Event& event : run.events()) …
//   flow::Value result = run.wait();
//
// The library takes no signal handler, reaps no child of the host and never exits (a broken promise
// of its own aborts). Every call may throw flow::Failed (or the more exact RunFailed); none throws
// anything else but std::bad_alloc.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flow/gpu.hpp"
#include "flow/value.hpp"

namespace flow {

/// Anything that went wrong; `error.kind` says who has to act.
class Failed : public std::runtime_error {
 public:
  explicit Failed(Error e) : std::runtime_error(e.message), error(std::move(e)) {}
  Error error;
};
/// A run that ended without its result; what() is the failing task's error.
class RunFailed : public Failed {
 public:
  using Failed::Failed;
};

/// Nodes of Slurm on which the head's workers run: `flow` has to be there by the same path, and the
/// state's folder where the nodes see it.
struct SlurmOptions {
  int32_t nodes = 0;         ///< of the allocation; 0: those that this process is in
  int32_t nodes_min = 0;     ///< where nodes_max > 0 it has so many at least,
  int32_t nodes_max = 0;     ///< at most these, asked for when work is ready for them,
  int64_t idle_ms = 60'000;  ///< and lets those go that did nothing for so long
  int32_t gpus_per_node = 0;
  std::string time{};  ///< "2h", or as Slurm writes it; "" is the partition's
  std::string partition{}, account{}, qos{}, constraint{};
  std::vector<std::string> arguments{};  ///< more of sbatch's
};
/// What Slurm would be asked: the command, and the script that each node runs.
struct SlurmRequest {
  std::string command, script;
};

/// A head can bear the silence of its workers no shorter, and no longer.
constexpr int64_t kLostAfterMsMin = 2'000, kLostAfterMsMax = 86'400'000;

struct EngineOptions {
  std::string
      state{};       ///< folder; "" is $FLOW_STATE, else the nearest .flow/ upwards, else ./.flow
  int32_t jobs = 0;  ///< CPU slots; 0 is the affinity mask
  /// What this machine has by name, and how much of each: what tasks ask for with `resources`. With
  /// `workers` they share it, in whole units as far as it goes; with `slurm` each node has it.
  std::vector<std::pair<std::string, double>> resources{};
  std::string executor{};  ///< path of flow-executor; "" looks beside the library and the program
  std::string working_directory{};  ///< relative paths start here; "" is the process's

  /// "HOST:PORT" of a head on any machine, whose client this engine is. It has no state then: it
  /// reads scripts and their files, and all else is the head's.
  std::string head{};

  // The head of a cluster, if `listen`, `workers` or `slurm` is given. It runs `jobs` of what its
  // workers could run itself, and with 0 nothing but what must run there: native tasks and
  // services.
  std::string listen{};  ///< "HOST:PORT" where workers join; port 0 is chosen
  int32_t workers = 0;   ///< so many workers are started on this machine, which share its CPUs
  /// Number of workers that will join in all. A gang waits for them before its ranks get fewer CPUs
  /// than they ask for. The engine uses at least `workers` and the nodes of `slurm`.
  int32_t expected_workers = 0;
  /// Its workers run on nodes of Slurm. `listen` is then where those reach it; "" is this machine's
  /// address, of a port that is chosen.
  std::optional<SlurmOptions> slurm{};
  /// The cluster's; "": STATE/secret. A head makes it where there is none, `head` needs one.
  std::string secret_file{};
  /// Large content between the machines goes sealed, so that nobody reads it on the way.
  bool encrypt = false;
  /// Who said nothing for so long is lost: a worker to the head, which tells it to its workers and
  /// clients, so that the head is to them. One that is killed is lost within a second.
  int64_t lost_after_ms = 10'000;
  std::string program{};      ///< path of `flow`, for the workers; "" looks beside the executor
  int64_t adopt_ms = 30'000;  ///< workers of an engine that died have so long to come to this one
};

struct RunOptions {
  std::string name{};
  int32_t jobs = 0;    ///< CPU slots of this run; 0: all the engine has
  bool fresh = false;  ///< read no cache from other runs, replace its entries
  bool fail_fast = false;
  int64_t grace_ms = 10'000;
  int64_t serve_for_ms = -1;  ///< end a serving run after this; -1: when asked
  std::vector<std::pair<std::string, std::string>>
      text_params{};          ///< --param k=v, checked against the schema
  std::string params_json{};  ///< --params FILE.json's text
  std::string request{};      ///< a name of this request: repeated after a crash, it finds its run
};

/// One thing that happened in a run, in order. Also the lines of --json.
struct Event {
  std::string type;  ///< run, task, progress, metric, serving, warning, print, plan
  std::string run, task;
  uint32_t attempt = 0;
  std::string status;  ///< of the run or the task; of a plan: cached, runs, unknown
  bool cached = false;
  double fraction = 0;       ///< progress
  std::string text;          ///< printed line, url, error, warning, a plan's reason
  Value data;                ///< metrics
  int64_t at_ms = 0;         ///< since the Unix epoch
  std::string json() const;  ///< one line
};

/// An attempt that failed, and the worker that ran it.
struct FailedAttempt {
  uint32_t attempt = 0;
  std::string worker, cause;
};

struct TaskInfo {
  std::string name, key, status, worker, error;
  uint32_t attempts = 0, ranks = 1;
  uint32_t grew_from =
      0;  ///< ranks that its last attempt but one had, which ended to have more; or 0
  bool cached = false;
  int64_t started_ms = 0, finished_ms = 0;  ///< 0: not yet; of its newest attempt
  std::vector<std::string> gpus;            ///< UUIDs of what its newest attempt was given
  std::string waits_for;                    ///< what a task that is not running waits for, in words
  std::string url;                          ///< of a service that is up; else ""
  std::vector<FailedAttempt> failed;        ///< its newest 16, where it has workers; oldest first
  double fraction = -1;                     ///< progress of a running one; -1 unknown
  Value metrics;
};

struct Counts {
  uint32_t succeeded = 0, cached = 0, failed = 0, skipped = 0, cancelled = 0, pending = 0,
           ready = 0, running = 0, waiting = 0;
};

struct RunInfo {
  std::string id, name, pipeline, status, directory, script;
  int64_t started_ms = 0, finished_ms = 0;
  Counts counts;
  Value result, params;         ///< result is nil before the end; a failed or skipped part is null
  std::vector<TaskInfo> tasks;  ///< empty in Engine::list()
  uint64_t retried = 0;         ///< attempts that followed a failed one, over all tasks
  std::string url;              ///< of the first service that is up; else ""
  std::string json() const;     ///< the object of docs/reference-cli.md
};

/// What a native task sees.
class TaskContext {
 public:
  virtual ~TaskContext() = default;
  virtual const std::string& run() const = 0;
  virtual const std::string& task() const = 0;
  virtual uint32_t attempt() const = 0;
  virtual uint64_t seed() const = 0;
  virtual bool stopping() const = 0;
  /// UUIDs of the GPUs that it may use; threads of one process all see the same ones.
  virtual const std::vector<std::string>& gpus() const = 0;
  virtual void log(const std::string& line) = 0;
  virtual void progress(double fraction) = 0;
};
/// Gets the list of positional arguments. A thrown std::exception fails the attempt with its
/// what().
using NativeTask = std::function<Value(TaskContext&, const Value&)>;

namespace detail {
struct RunHandle;
struct EngineImpl;
}  // namespace detail

/// A handle to a run. Cheap to copy; valid while its engine lives. Thread-safe.
class Run {
 public:
  const std::string& id() const;
  /// Blocks until the run is final (or interrupted: Failed with kind interrupted). Throws RunFailed
  /// with the failing task's error.
  Value wait();
  /// Blocking range over the events from the run's start in this process until its end.
  class Events;
  Events events();
  std::optional<Event> next_event();  ///< blocks; nullopt at the end
  RunInfo info() const;
  RunInfo summary() const;  ///< info() without its tasks: cheap for a run of a million
  Counts counts() const;    ///< cheap: what a display asks ten times a second
  void interrupt(
      bool kill = false);  ///< Ctrl-C: no new attempts, running ones end within the grace
  void cancel();
  void end_serving();

  explicit Run(std::shared_ptr<detail::RunHandle> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::RunHandle> state_;
};

class Run::Events {
 public:
  explicit Events(Run run) : run_(std::move(run)) {}
  class iterator {
   public:
    explicit iterator(Run* run) : run_(run) {
      if (run_) event_ = run_->next_event();
    }
    const Event& operator*() const { return *event_; }
    iterator& operator++() {
      event_ = run_->next_event();
      return *this;
    }
    bool operator!=(std::nullptr_t) const { return event_.has_value(); }

   private:
    Run* run_;
    std::optional<Event> event_;
  };
  iterator begin() { return iterator(&run_); }
  std::nullptr_t end() { return nullptr; }

 private:
  Run run_;
};

/// One node of `flow plan` or `flow graph`.
struct PlanNode {
  std::string name, task, kind;    ///< kind: task, map, when, shell, dynamic, service, native
  std::string verdict, reason;     ///< plan: cached, runs, unknown; and the cause in words
  std::vector<std::string> needs;  ///< names of nodes it takes data from
  std::vector<std::string> after;  ///< names of nodes it only comes after
};
struct PlanInfo {
  std::string pipeline;
  std::vector<PlanNode> nodes;
  std::vector<std::string> warnings;
  std::vector<std::string> printed;  ///< lines that the script printed while it was built
};

struct LogLine {
  std::string task;
  uint32_t attempt = 0;
  int stream = 0;
  int64_t at_ms = 0;
  std::string text;
  uint32_t rank = 0;  ///< of a gang, which of its ranks said it
};

/// Reads a state beside its writer; needs no lock.
class Reader {
 public:
  explicit Reader(const EngineOptions& options = {});
  ~Reader();
  const std::string& state_dir() const;
  std::vector<RunInfo> list(bool results = false) const;  ///< oldest first, no tasks
  /// `selector`: an id, a unique prefix, a name, "last" or "". Throws Failed (user) for an unknown
  /// one.
  RunInfo show(const std::string& selector) const;
  std::vector<LogLine> logs(const std::string& selector,
                            const std::string& task_at_attempt = "") const;
  std::string why(const std::string& selector, const std::string& task = "") const;
  std::string diff(const std::string& a, const std::string& b) const;
  PlanInfo graph(const std::string& selector) const;
  /// What would run and why; nothing runs and nothing is written. Of native tasks an engine alone
  /// knows: Engine::plan.
  PlanInfo plan(const std::string& script, const RunOptions& options = {}) const;
  /// Copies the result, or the part named by "model.weights[1]", into `directory`; returns the
  /// paths written.
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory) const;
  /// The result, or the part of it that `part` names. Throws Failed (user) for an unknown one.
  Value value(const std::string& selector, const std::string& part = "") const;
  uint64_t state_bytes() const;

 private:
  std::unique_ptr<struct ReaderImpl> impl_;
};

/// Pieces of content (results, inputs) and their bytes.
struct MovedContent {
  uint64_t pieces = 0, bytes = 0;
};

/// What is taken of a GPU, and by whom.
struct GpuUse {
  double used = 0;                 ///< of the one that it is
  int64_t memory_used_bytes = 0;   ///< of what tasks asked for with gpu_memory
  std::vector<std::string> tasks;  ///< as NodeInfo's
};

/// A machine of a cluster, as its head has it.

struct NodeInfo {
  std::string name;  ///< "" the head's own
  /// up, draining (it is to leave), away (it may be back), left (it drained), lost
  std::string status;
  std::string note;     ///< why it gets fewer tasks or none, or what it offers twice; "" if nothing
  std::string version;  ///< of its flow
  std::string address;  ///< where it came from; "" where it is not connected
  double cpus = 0, cpus_used = 0;
  int64_t memory_bytes = 0;
  std::vector<Gpu> gpus;
  std::vector<GpuUse> gpu_uses;  ///< of each of them; empty where nothing can run on it
  std::vector<std::pair<std::string, std::string>> labels;                ///< names and values
  std::vector<std::pair<std::string, double>> resources, resources_used;  ///< those by name
  std::vector<std::string> tasks;  ///< what runs on it: "RUN TASK"
  /// Content that it fetched from its head and from other workers, and that others fetched from it,
  /// since it began. None where it is not connected.
  MovedContent from_head, from_workers, to_workers;
  std::string json() const;
};

/// Runs pipelines over one state: as its writer, or, where another process is the writer, as that
/// one's client; or over that of a head elsewhere.
class Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();  ///< interrupts what still runs and ends every child
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void define(const std::string& name, const std::string& version, NativeTask task);
  /// The operations on tensors of a shared library (<flow/operation.h>) are what scripts get from
  /// flow.native_operations(name): tasks that take them run again when the library's content
  /// changes. It is loaded by executors, never by this process.
  void define_operations(const std::string& name, const std::string& library);
  Run run(const std::string& script, const std::vector<std::pair<std::string, Value>>& params = {},
          const RunOptions& options = {});
  Run resume(const std::string& selector, const RunOptions& options = {}, bool new_code = false);
  Run retry(const std::string& selector, const std::string& task = "",
            const RunOptions& options = {});
  void cancel(const std::string& selector);
  void signal(const std::string& selector, const std::string& name, const std::string& json = "");
  /// What would run and why; nothing runs.
  PlanInfo plan(const std::string& script, const RunOptions& options = {});
  /// As Reader::show and Reader::get, of the state that this engine writes or is a client of.
  RunInfo show(const std::string& selector);
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory);
  /// Keeps the newest `keep` finished runs; returns bytes freed.
  uint64_t gc(uint32_t keep);
  bool is_writer() const;
  /// Why this writer has stopped for good, its disk being full for example: what it says then it
  /// says of every run. "" while it goes on. End it, and open the state again.
  std::string stopped_by() const;
  uint64_t state_bytes() const;  ///< the state's size on disk
  /// Runs of other processes that this writer carries out for them.
  uint32_t client_runs() const;
  /// Blocks until client_runs() is 0.
  void wait_for_clients();
  /// Where workers join this head, or the head that writes this state; "" where it has none.
  std::string address() const;
  /// The machines of this head, its own first.
  std::vector<NodeInfo> nodes() const;

 private:
  std::unique_ptr<detail::EngineImpl> impl_;
};

/// The cluster whose head writes the state of `options`, or is at its `head`. Throws Failed
/// (environment) where nobody does. Becomes no writer itself.
struct ClusterInfo {
  std::string address;
  std::vector<NodeInfo> nodes;
};
ClusterInfo cluster_info(const EngineOptions& options = {});

struct WorkerNodeOptions {
  std::string head{};         ///< "HOST:PORT"
  std::string secret_file{};  ///< the cluster's
  /// Of scratch, content, and reports that the head has not taken; "" is
  /// /var/tmp/flow-worker-UID-NAME.
  std::string directory{};
  std::string name{};    ///< in the cluster, where no other has it; "" is this machine's
  int32_t jobs = 0;      ///< CPU slots; 0 is the affinity mask
  std::string memory{};  ///< that attempts may have, "64GiB"; "" is the machine's
  /// Of content that it may keep, "200GiB"; "" is no limit. What its head has too goes when room is
  /// needed.
  std::string content_max{};
  std::string executor{};  ///< as EngineOptions::executor
  std::vector<std::pair<std::string, std::string>> labels{};
  std::vector<std::pair<std::string, double>> resources{};  ///< as EngineOptions::resources
  std::function<void(const std::string&)> on_note{};  ///< what changed, in words; on any thread
};

/// A worker of a cluster. It joins its head, and joins it again whenever it has lost it; what runs
/// goes on meanwhile.
class WorkerNode {
 public:
  /// Throws Failed where the options are wrong or the directory can't be used, not where there is
  /// no head.
  explicit WorkerNode(WorkerNodeOptions options);
  ~WorkerNode();  ///< leaves the head, and ends what runs
  /// It is to leave: it takes nothing new and asks what runs to stop, which then goes on elsewhere.
  /// After `within_ms` nothing runs any more. `why` is for people.
  void drain(int64_t within_ms, const std::string& why);
  bool is_drained() const;          ///< nothing runs, and the head has all that came of it
  int64_t without_head_ms() const;  ///< for how long by now
  WorkerNode(const WorkerNode&) = delete;
  WorkerNode& operator=(const WorkerNode&) = delete;
  bool is_connected() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
/// What an engine of these options would ask of Slurm first. Throws Failed where it can't be asked.
SlurmRequest slurm_request(const EngineOptions& options);
/// What a worker of these options would tell its head that it has. Asks the driver of its GPUs.
NodeInfo describe_worker(const WorkerNodeOptions& options);

/// The graph of a script, from a child process as always; no state is opened. Verdicts are empty.
PlanInfo build_graph(const std::string& script, const EngineOptions& options = {},
                     const RunOptions& run = {});
/// "file:line: …" for each place where a script seems to use a handle as a plain value.
std::vector<std::string> lint(const std::string& file);
/// Where the state of `options` is, or would be made. Creates nothing.
std::string state_directory(const EngineOptions& options = {});
/// Throws Failed where Engine::get can't copy into `directory`: one in a state, or a path through a
/// file or a broken link. Creates nothing.
void check_target(const std::string& directory);
/// The flow-executor that an engine of `options` starts. Throws Failed (environment) if there is
/// none.
std::string executor_program(const EngineOptions& options = {});
/// The GPUs that an engine of `options` may give to tasks. Asks the driver each time, in a child.
MachineGpus machine_gpus(const EngineOptions& options = {});
/// What of NVIDIA's libraries a task on a GPU would use. Loads them into this process, which takes
/// some tenths of a second. Empty in a build without CUDA.
std::vector<GpuLibrary> gpu_libraries();
const char* version();  ///< "0.1.0"

}  // namespace flow
