// flow: durable GPU pipelines in Lua. This is the public C++ interface. The command line uses this
// interface and nothing else.
//
//   flow::Engine engine({.state = "state", .jobs = 4});
//   flow::Run run = engine.run("pipeline.lua", {{"epochs", 3}});
//   for (const flow::Event& event : run.events()) …
//   flow::Value result = run.wait();
//
// The library installs no signal handler, reaps no child of the host program and never calls exit.
// It aborts if one of its own invariants is violated. Every call may throw flow::Failed or its
// subclass RunFailed; the only other exception is std::bad_alloc.
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
#include "flow/log.hpp"
#include "flow/tags.hpp"
#include "flow/value.hpp"

namespace flow {

/// Any failure. `error.kind` says who must act: the user, the task's author or the operator.
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

/// Slurm nodes on which the head's workers run. `flow` must be installed under the same path on
/// each node, and the state directory must be on a file system that the nodes share.
struct SlurmOptions {
  int32_t nodes = 0;         ///< size of the allocation; 0: use the one this process runs in
  int32_t nodes_min = 0;     ///< with nodes_max > 0: never fewer nodes than this
  int32_t nodes_max = 0;     ///< if > 0: request nodes up to this number while tasks are ready
  int64_t idle_ms = 60'000;  ///< an idle node above nodes_min is released after this time
  int32_t gpus_per_node = 0;
  std::string time{};  ///< "2h", or Slurm's own format; "": the partition's limit
  std::string partition{}, account{}, qos{}, constraint{};
  std::vector<std::string> arguments{};  ///< extra arguments of sbatch
};
/// The request to Slurm: the command, and the script that each node runs.
struct SlurmRequest {
  std::string command, script;
};

/// Bounds of EngineOptions::lost_after_ms.
constexpr int64_t kLostAfterMsMin = 2'000, kLostAfterMsMax = 86'400'000;

/// The text of a flow.toml file (docs/reference-cli.md, Configuration).
struct ConfigFile {
  std::string path;  ///< names it in errors and origins
  std::string text;
  /// A file of prices that `include` of [prices] in another file names.
  bool is_prices = false;
};
/// Configuration of a run, as flow.toml files have it. Every text is checked when it is used: an
/// invalid one makes the call throw Failed (user).
struct ConfigOptions {
  std::vector<ConfigFile> files{};  ///< the first has precedence
  std::string profile{};            ///< whose tables outrank the others; "": none
};
/// An option with its value and its origin.
struct ConfigValue {
  std::string table;   ///< tasks, defaults, slurm, head, prices or notify
  std::string task;    ///< of `tasks`: the task's name
  std::string option;  ///< "cpus", "env.MODE", "gpu_hour.H200"
  Value value;         ///< nil: not set; `{ env = NAME }` of a secret
  std::string origin;  ///< "flow.toml:12 [tasks.\"align*\"]", "script pipeline.lua:7", "default"
  std::string file;    ///< path of the file that sets it, or ""
  bool has_effect = true;  ///< false: this version accepts and checks it only
};

/// Where a process serves its metrics at /metrics, in the text format of Prometheus. For their
/// names see "Metrics" in docs/operations.md.
struct MetricsOptions {
  std::string listen{};  ///< "HOST:PORT", numeric; port 0: any free port; "": no metrics
  /// Permits an address beyond loopback: the metrics have neither TLS nor keys.
  bool is_insecure = false;
};

struct EngineOptions {
  /// State directory; "": $FLOW_STATE, else the nearest .flow/ upwards, else ./.flow.
  std::string state{};
  int32_t jobs = 0;  ///< CPU slots; 0: as many as the CPU affinity allows
  /// Custom resources of this machine: name and amount. Tasks request them with `resources`. With
  /// `workers` the workers share each amount, in whole units where possible; with `slurm` each node
  /// has the full amount.
  std::vector<std::pair<std::string, double>> resources{};
  std::string executor{};  ///< path of flow-executor; "": next to the library or the program
  std::string working_directory{};  ///< base of relative paths; "": the process's

  /// "HOST:PORT" of a head on any machine. This engine is then a client of that head and has no
  /// state: it reads scripts and their files, and the head does everything else.
  std::string head{};

  // The engine is the head of a cluster if `listen`, `workers` or `slurm` is given. The head itself
  // offers `jobs` CPU slots; with 0 it runs only what must run there: native tasks and services.
  std::string listen{};  ///< "HOST:PORT" where workers join; port 0: any free port
  int32_t workers = 0;   ///< number of workers to start on this machine; they share its CPUs
  /// Number of workers that will join in all. A gang waits for them before its ranks get fewer CPUs
  /// than they request. The engine uses at least `workers` and the nodes of `slurm`.
  int32_t expected_workers = 0;
  /// Runs the workers on Slurm nodes. They connect to `listen`; "": this machine's address and a
  /// free port.
  std::optional<SlurmOptions> slurm{};
  /// File with the cluster's secret; "": STATE/secret. A head creates a missing file; a client of a
  /// head needs an existing one.
  std::string secret_file{};
  /// Encrypts blobs and collectives between machines. Without it they are authenticated only.
  bool encrypt = false;
  /// A peer counts as lost if nothing was received from it for this many ms. Set on the head, which
  /// sends the value to its workers and clients. A killed peer is detected within a second.
  int64_t lost_after_ms = 10'000;
  std::string program{};  ///< path of `flow`, for the workers; "": next to the executor
  /// How long workers of a previous engine that died may take to rejoin.
  int64_t adopt_ms = 30'000;
  LogOptions log{};          ///< the engine's own log; default: off
  MetricsOptions metrics{};  ///< of the writer of a state; a client has none
  /// Path of a flow.toml file whose task options and [notify] apply to the runs that have no
  /// `config` of their own, with the tables of `profile`. Its other tables have no effect here. "":
  /// none.
  std::string config{}, profile{};
  /// If this engine becomes the writer, it resumes the detached runs of earlier writers that no
  /// process executes: see RunOptions::detached. `resume_except` is the id of a run that the caller
  /// resumes itself.
  bool resume_detached = false;
  std::string resume_except{};
  /// The requester that the journal records with each cancel, stop, resume, retry, signal, serve
  /// and rollback of this engine and its run handles. One line of at most 256 bytes; the rest is
  /// cut. "": user and host of this process, as "ann@node1".
  std::string by{};
};

struct RunOptions {
  std::string name{};
  int32_t jobs = 0;           ///< CPU slots of this run; 0: all slots of the engine
  bool fresh = false;         ///< ignore cache entries of other runs and replace them
  bool fail_fast = false;     ///< start nothing more after the first failed task
  bool offline = false;       ///< use the state's copies of URLs, without asking their servers
  bool logs = false;          ///< emit an event of type `log` per line that a task writes
  int64_t grace_ms = 10'000;  ///< time that running attempts get when the run is interrupted
  int64_t serve_for_ms = -1;  ///< end a serving run after this time; -1: only on request
  /// How long services keep running after the process that writes the state was killed. A process
  /// that resumes the run within this time adopts them without a restart.
  int64_t front_lease_ms = 60'000;
  /// The run continues when its client ends or disconnects. When the process that executes it has
  /// died, the next writer with EngineOptions::resume_detached resumes it. For a process in the
  /// background that executes it see <flow/detached.hpp>.
  bool detached = false;
  /// As `--param k=v`; checked against the pipeline's parameters.
  std::vector<std::pair<std::string, std::string>> text_params{};
  std::string params_json{};  ///< content of `--params FILE.json`
  /// The script itself. The script's path then only names it, and its folder is where modules and
  /// relative paths start.
  std::string script_text{};
  std::string request{};  ///< idempotency key: a repeated request returns the existing run
  /// The run's budget, such as "50 USD": see "Budgets" in docs/operations.md. "": `budget` of
  /// `config`; a run that is continued keeps its budget.
  std::string budget{};
  /// Task options that outrank the script's, [notify], [prices] and `budget`; other tables are kept
  /// with the run and not applied.
  ConfigOptions config{};
  /// Notified when the run has ended: an http or https URL that gets a POST, or a command. See
  /// "Notifications" in docs/operations.md. It replaces `on_end` of [notify].
  std::string on_end{};
};

/// Number of tasks by status. `cached` is counted within `succeeded`, and `ignored` within
/// `failed`.
struct Counts {
  uint32_t succeeded = 0, cached = 0, failed = 0, skipped = 0, cancelled = 0, pending = 0,
           ready = 0, running = 0, waiting = 0, ignored = 0;
};

/// The counts of one task over all its calls and instances.
struct CountedTask {
  std::string name;  ///< as of without_numbers(): "qc/align"
  Counts counts;
};
/// Maximum number of tasks that are counted one by one; the last one then counts all others, and
/// its name is "".
constexpr size_t kCountedTasksMax = 1000;

/// Something that happened in a run. Events are in order; `--json` prints one per line.
struct Event {
  std::string type;  ///< run, task, progress, metric, log, serving, warning, print, plan
  std::string run, task;
  std::string tag;  ///< of the task; "" if it has none
  uint32_t attempt = 0;
  uint32_t rank = 0;   ///< of a log: which process of a gang wrote it
  std::string status;  ///< status of the run or task; of a plan: cached, runs, unknown; of a log
                       ///< its stream: log, stdout, stderr
  bool cached = false;
  bool ignored = false;  ///< of a failed task: the run continues without it
  double fraction = 0;   ///< progress, 0 to 1
  std::string text;      ///< printed line, URL, error, warning, or reason of a plan
  Value data;            ///< metrics
  int64_t at_ms = 0;     ///< since the Unix epoch
  // Not in json():
  std::string cause;      ///< of a failed task: user_error, exit_code, timeout, dependency, …; of
                          ///< serving: command, if the server is one of a command
  std::string evidence;   ///< of a failed task: traceback, last lines of stderr; may be empty
  std::string last_line;  ///< of a failed task: the last line that the attempt logged or wrote, cut
  std::vector<CountedTask> counts;  ///< of a run that has ended or was interrupted
  std::string json() const;         ///< one line
};

/// An attempt that failed, and the worker that ran it.
struct FailedAttempt {
  uint32_t attempt = 0;
  std::string worker, cause;
};

/// Resource usage of the newest attempt of a task. Below 0: unknown, or not measured.
struct TaskUsage {
  double queue_s = -1;       ///< from when all inputs are available until the attempt gets a slot
  double stage_s = -1;       ///< from then until its function or command begins
  double commit_s = -1;      ///< from the end of the function until the result is recorded
  double cpu_s = -1;         ///< user and system time of its processes
  double gpu_s = -1;         ///< GPUs that it held, times seconds
  int64_t peak_memory = -1;  ///< bytes
  int64_t read_bytes = -1, written_bytes = -1;  ///< by its read and write calls
  double gpu_used_s = -1;                       ///< utilisation of its GPUs times seconds
  double gpu_measured_s = -1;  ///< the part of gpu_s of which the utilisation is known
  double gpu_energy_j = -1;    ///< of its GPUs
};

struct TaskInfo {
  std::string name, key, status, worker, error;
  std::string tag;  ///< that the script gave it (`h:tag`); "" if there is none
  uint32_t attempts = 0, ranks = 1;
  /// Ranks of the previous attempt, if it was stopped to add ranks; else 0.
  uint32_t grew_from = 0;
  bool cached = false;
  bool ignored = false;  ///< it failed, and the run continues without it (`on_error = "ignore"`)
  int64_t started_ms = 0, finished_ms = 0;  ///< of the newest attempt; 0: not yet
  std::vector<std::string> gpus;            ///< UUIDs of the GPUs of the newest attempt
  std::string waits_for;                    ///< why the task does not run yet, in words
  std::string url;                          ///< of a running service; else ""
  uint32_t restarts = 0;                    ///< of a service: how often it died after it was ready
  std::vector<FailedAttempt> failed;        ///< the newest 16 on a cluster's workers, oldest first
  double fraction = -1;                     ///< progress of a running attempt; -1: unknown
  Value metrics;
  TaskUsage usage;
  std::string user;  ///< who submitted the run: a name of the operating system; "" if unknown
};

/// A process that answers requests of a service.
struct ReplicaInfo {
  std::string name;  ///< of its task instance: "digits[0]"
  /// waiting (for resources, or to start again), starting, ready, busy (with a batch), leaving
  std::string status;
  int32_t pid = 0;                ///< 0: unknown
  std::string worker;             ///< "local": the machine of the engine; "" while it waits
  std::vector<std::string> gpus;  ///< UUIDs
};
/// Answered requests whose duration is in one range.
struct LatencyBucket {
  int64_t up_to_us = 0;  ///< and longer than that of the bucket before; 0: the last, without bound
  uint64_t requests = 0;
};
/// What the front of a service counts for one version of it.
struct ServiceTraffic {
  bool is_ready = false;     ///< the service answers requests, by this version or another one
  bool is_draining = false;  ///< it takes no new requests
  uint32_t percent = 0;      ///< of the requests that this version gets
  /// Accepted ones since its first replica joined; errors: status 500 and up.
  uint64_t requests = 0, errors = 0;
  double requests_per_second = 0;    ///< of the last 10 s, as the next
  int64_t p50_us = 0, p99_us = 0;    ///< duration of requests
  uint64_t queued = 0, running = 0;  ///< requests, now
  int64_t queue_us = 0;              ///< mean time of a request before its batch, of the last 10 s
  uint64_t refused = 0;              ///< requests that got status 429 or 503 and were not accepted
  /// All answered requests of the version by their duration: the histogram of the front's /metrics.
  /// Empty if the front's build does not report it.
  std::vector<LatencyBucket> latency;
};
/// A service of an active run: one version of the services of the run's name.
struct ServiceInfo {
  std::string version;  ///< id of its run
  std::string name;     ///< of the run; "" if it has none
  std::string service;  ///< its task: "digits"
  std::string status;   ///< of the run
  std::string url;      ///< "" until a replica is ready
  std::vector<ReplicaInfo> replicas;
  uint32_t replicas_min = 1, replicas_max = 1;  ///< equal if their number is fixed
  uint32_t replicas_wanted = 1;                 ///< now
  std::string access_log;                       ///< absolute path of the file; "": there is none
  std::optional<ServiceTraffic> traffic;        ///< nothing: no front was asked, or none answered
  std::string not_resumed;                      ///< as RunInfo::not_resumed
  std::string json() const;                     ///< one line
};
/// The takeover of a name's traffic by a run: see "Services" in docs/reference-lua.md.
struct RolloverInfo {
  /// waiting, shifting, observing, measuring, gated (a task decides), reverting; at the end done,
  /// reverted, or stopped (it ended before it had the traffic); "": none.
  std::string phase;
  std::string previous;          ///< the run before; "": none
  std::string reason;            ///< why the traffic goes back
  uint32_t step = 0, steps = 0;  ///< from 1
  uint32_t percent = 0;          ///< of the traffic, in this step
};

/// The budget of a run, in units of its currency.
struct BudgetInfo {
  std::string currency;
  double limit = 0;
  double used = 0;           ///< by its attempts, those that run included
  bool is_spent = false;     ///< the run was stopped for it
  std::string text() const;  ///< "4.20 of 50.00 USD"
};

/// An action that a user requested for a run.
struct ActionInfo {
  std::string action;  ///< cancel, stop, resume, retry, signal, serve, rollback
  std::string by;      ///< who asked: "ann@node1"; "deploy@10.0.0.7 (page)" of a page
  std::string name;    ///< of the signal, or of the task that runs again; else ""
  int64_t at_ms = 0;
};

struct RunInfo {
  std::string id, name, pipeline, status, directory, script;
  int64_t started_ms = 0, finished_ms = 0;
  Counts counts;
  Value result, params;  ///< the result is nil until the end; failed or skipped parts are null
  std::vector<TaskInfo> tasks;        ///< empty in Engine::list()
  uint64_t retried = 0;               ///< number of retries over all tasks
  std::string url;                    ///< of the first running service; else ""
  std::vector<ServiceInfo> services;  ///< of an active run, without their traffic
  RolloverInfo rollover;              ///< of a run whose name another run served or serves
  /// Why a process that writes the state could not resume this detached run; "": it could, or has
  /// not tried.
  std::string not_resumed;
  std::optional<BudgetInfo> budget;
  std::vector<ActionInfo> actions;  ///< the newest 100, oldest first
  std::string json() const;         ///< the object described in docs/reference-cli.md
};

/// The interface that a native task gets. Valid until the task returns.
class TaskContext {
 public:
  virtual ~TaskContext() = default;
  virtual const std::string& run() const = 0;   ///< id
  virtual const std::string& task() const = 0;  ///< name of the task instance: "resize[3]"
  virtual uint32_t attempt() const = 0;         ///< from 1
  /// Derived from the cache key: equal in all attempts.
  virtual uint64_t seed() const = 0;
  /// Whether the task should return soon: it was stopped, or ran longer than its timeout.
  virtual bool stopping() const = 0;
  /// UUIDs of the GPUs that the task may use. All threads of a process see the same devices.
  virtual const std::vector<std::string>& gpus() const = 0;
  virtual void log(const std::string& line) = 0;
  virtual void progress(double fraction) = 0;  ///< 0 to 1
};
/// Takes the list of positional arguments. A thrown std::exception fails the attempt with its
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
  /// Blocks until the run ends and returns its result. Throws RunFailed with the failing task's
  /// error, or Failed of kind `interrupted`.
  Value wait();
  /// Blocking range over the events from the run's start in this process until its end.
  class Events;
  Events events();
  std::optional<Event> next_event();  ///< blocks; nullopt at the end
  RunInfo info() const;
  RunInfo summary() const;  ///< info() without tasks: cheap for a run of a million tasks
  Counts counts() const;    ///< cheap enough for a display that refreshes ten times per second
  /// The counts of each task, in the order of the tasks' first nodes. Goes over all tasks of the
  /// run: up to some 10 ms for a million. Empty if the run has ended.
  std::vector<CountedTask> counts_by_task() const;
  void interrupt(bool kill = false);  ///< as Ctrl-C: starts no attempts; running ones must end
                                      ///< within the grace period
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
  std::string tag;                 ///< "" if it has none
  std::string verdict, reason;     ///< plan: cached, runs, unknown; and the cause in words
  std::string cause;               ///< the reason without values, equal for tasks to be grouped
  std::vector<std::string> needs;  ///< names of the nodes whose results it takes
  std::vector<std::string> after;  ///< names of the nodes that it only waits for
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
  int stream = 0;  ///< 0: lines of `ctx:log`, 1: stdout, 2: stderr
  int64_t at_ms = 0;
  std::string text;
  uint32_t rank = 0;  ///< rank of the gang that wrote the line
  std::string tag;    ///< of the task; "" if it has none
};

/// A point that a task reported with `ctx:metric`.
struct MetricPoint {
  int64_t step = 0;
  double value = 0;   ///< may be NaN or infinite
  int64_t at_ms = 0;  ///< since the Unix epoch
};
/// The points of one metric of one task instance.
struct MetricSeries {
  std::string run;  ///< that computed them: of a cached task another run than the one asked for
  std::string task, metric;
  std::string tag;                  ///< of the task; "" if it has none
  std::vector<MetricPoint> points;  ///< in the order of reports; 1 to 100,000
  /// Of the points that are not NaN; NaN if there is none. The best is the lowest value of a metric
  /// whose name says that less is better, such as `loss` or `val_error`, else the highest.
  double min = 0, max = 0, best = 0;
};
/// One run of a comparison.
struct ComparedRun {
  RunInfo run;   ///< without tasks
  Value params;  ///< the parameters in which the runs differ
  std::vector<MetricSeries> series;
};

struct ExplainOptions {
  bool each_task = false;  ///< describes each task by itself, also those with the same cause
};

/// Reads a state, also while a writer uses it. Needs no lock.
class Reader {
 public:
  explicit Reader(const EngineOptions& options = {});
  ~Reader();
  const std::string& state_dir() const;
  std::vector<RunInfo> list(bool results = false) const;  ///< oldest first, without tasks
  /// Ids of the orphaned runs, oldest first: detached runs whose process has died. Empty while a
  /// process writes the state.
  std::vector<std::string> left_runs() const;
  /// `selector`: an id, a unique prefix, a name, "last" or "". Throws Failed (user) for an unknown
  /// one.
  RunInfo show(const std::string& selector) const;
  /// The lines of a run's tasks, by time. `task_at_attempt`: "train" or "train@2"; "": all tasks of
  /// the run, without the lines of cached tasks. Throws Failed (user) if it is unknown.
  std::vector<LogLine> logs(const std::string& selector,
                            const std::string& task_at_attempt = "") const;
  /// The series of a run, also of one that runs, in the order of its tasks and then by name.
  /// `task`: only of this task instance, or of all instances of this map. `metric`: only of this
  /// name. Throws Failed (user) if the run, the task or the metric is unknown.
  std::vector<MetricSeries> metrics(const std::string& selector, const std::string& task = "",
                                    const std::string& metric = "") const;
  /// Writes what metrics() returns as event files of TensorBoard and returns their paths: one file
  /// in a folder per task instance below `directory`, such as `directory`/train[2]. A file that an
  /// earlier call wrote for the same run is replaced. Values are rounded to 32 bits.
  std::vector<std::string> write_tensorboard(const std::string& directory,
                                             const std::string& selector,
                                             const std::string& task = "",
                                             const std::string& metric = "") const;
  /// The runs in the given order. Throws Failed as metrics(); a task or a metric is unknown if no
  /// run has it.
  std::vector<ComparedRun> compare(const std::vector<std::string>& selectors,
                                   const std::string& metric = "",
                                   const std::string& task = "") const;
  /// Explains in words why `task` waits, ran or failed; "": each task of the run.
  std::string why(const std::string& selector, const std::string& task = "",
                  const ExplainOptions& options = {}) const;
  /// Explains in words what differs between two runs, task by task.
  std::string diff(const std::string& a, const std::string& b,
                   const ExplainOptions& options = {}) const;
  /// The graph of the run's plan; verdicts are empty.
  PlanInfo graph(const std::string& selector) const;
  /// The services of all active runs, oldest run first. Asks the front of each: one that does not
  /// answer within 5 s leaves `traffic` empty.
  std::vector<ServiceInfo> services() const;
  /// What would run and why. Runs and writes nothing. Knows no native tasks: use Engine::plan for a
  /// pipeline that has some.
  PlanInfo plan(const std::string& script, const RunOptions& options = {}) const;
  /// The folder of each file of the result below the target of get(), in the order of lists and
  /// then fields: "align/s3" for what `align[s3]` returned; "" for the target itself.
  std::vector<std::string> get_folders(const std::string& selector) const;
  /// Copies the result, or the part named by "model.weights[1]", into `directory`, a folder or
  /// s3://BUCKET/PREFIX; returns the paths or URLs written. S3's settings are those of the
  /// process's environment.
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory) const;
  /// The result, or the part of it that `part` names. Throws Failed (user) for an unknown one.
  Value value(const std::string& selector, const std::string& part = "") const;
  uint64_t state_bytes() const;  ///< size of the state on disk
  /// The configuration with which the run was submitted, without its tasks and [head]: the plan has
  /// the options of tasks. `profile` receives the name of its profile, or "".
  std::vector<ConfigValue> config(const std::string& selector, std::string& profile) const;

 private:
  std::unique_ptr<struct ReaderImpl> impl_;
};

/// Number of transferred blobs (results, inputs) and their bytes.
struct BlobTraffic {
  uint64_t blobs = 0, bytes = 0;
};

/// How much of a GPU is in use, and by which tasks.
struct GpuUse {
  double used = 0;                 ///< share of the GPU, 0 to 1
  int64_t memory_used_bytes = 0;   ///< sum of the tasks' `gpu_memory`
  std::vector<std::string> tasks;  ///< "RUN TASK"
};

/// The newest measurements of a GPU by its driver (NVML). A missing value is not measured by this
/// GPU.
struct GpuReading {
  std::string uuid;
  std::optional<double> utilisation;  ///< 0 to 1
  std::optional<int64_t> memory_used_bytes;
  std::optional<int32_t> temperature_celsius;
  std::optional<double> power_watts;
  double age_s = 0;  ///< since it arrived
};

/// A worker of a cluster, as its head sees it.
struct NodeInfo {
  std::string name;  ///< "": the head itself
  /// up, draining (takes no new tasks), away (disconnected, may rejoin), left (after a drain), lost
  std::string status;
  std::string note;     ///< why it gets fewer tasks or none, or which GPU it shares; else ""
  std::string version;  ///< version of its flow
  std::string address;  ///< remote address of its connection; "" while it is disconnected
  double cpus = 0, cpus_used = 0;
  int64_t memory_bytes = 0;
  std::vector<Gpu> gpus;
  std::vector<GpuUse> gpu_uses;          ///< one per GPU; empty if nothing can run on this worker
  std::vector<GpuReading> gpu_readings;  ///< of whole GPUs, as far as they are measured
  /// That of this GPU; null: none.
  const GpuReading* reading_of(const Gpu& gpu) const;
  std::vector<std::pair<std::string, std::string>> labels;                ///< names and values
  std::vector<std::pair<std::string, double>> resources, resources_used;  ///< custom resources
  std::vector<std::string> tasks;  ///< tasks that run on it: "RUN TASK"
  /// Blobs that the worker downloaded from the head and from other workers, and that it uploaded to
  /// others, since it started. 0 while it is disconnected.
  BlobTraffic from_head, from_workers, to_workers;
  std::string json() const;
};

/// Runs pipelines over one state: as its writer, as a client of the process that is its writer, or
/// as a client of a head on any machine.
class Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();  ///< interrupts running tasks and ends every child process
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Defines a native task: scripts get it as flow.native(name). `version` is part of cache keys.
  void define(const std::string& name, const std::string& version, NativeTask task);
  /// Defines tensor operations of a shared library (<flow/operation.h>): scripts get them from
  /// flow.native_operations(name). Tasks that use them run again when the library's content
  /// changes. Executors load the library; this process never does.
  void define_operations(const std::string& name, const std::string& library);
  /// Starts a run of the script, an absolute path or one relative to working_directory. Returns
  /// when the run is in the journal. Throws Failed (user) if the script or a parameter is invalid.
  Run run(const std::string& script, const std::vector<std::pair<std::string, Value>>& params = {},
          const RunOptions& options = {});
  /// Continues an interrupted run; failed tasks get new attempts. With `new_code` the script and
  /// its input files are read again; without it a run that has succeeded is returned as it is.
  /// Throws Failed (user) if the run is unknown or was cancelled.
  Run resume(const std::string& selector, const RunOptions& options = {}, bool new_code = false);
  /// Runs the failed tasks of a run again, also those whose failure was ignored; with `task` that
  /// task, even if it succeeded, and then its dependents. Throws as resume().
  Run retry(const std::string& selector, const std::string& task = "",
            const RunOptions& options = {});
  /// Starts a new run with the plan, the code and the parameters of another one. Only its services
  /// run: all other tasks must be in the cache. Its name is `options.name`, or that of the other
  /// run. If another run serves that name, the new one takes over its traffic when it is ready.
  /// Of `options` also count jobs, logs, grace_ms, serve_for_ms, front_lease_ms, request and
  /// detached. Throws Failed (user) if the run has no service, or if a task is not in the cache;
  /// the message names the tasks and why they would run.
  Run serve(const std::string& selector, const RunOptions& options = {});
  /// serve() of the version that served before the one that serves `name` now: the newest earlier
  /// run of this name that has the same services, has served and has succeeded. It gets all
  /// traffic at once. Throws Failed (user) if there is none. While a newer version of the name is
  /// in its canary no run starts: the canary ends, its run fails with the reason, and the returned
  /// run, which has no events, is the version that serves.
  Run rollback(const std::string& name, const RunOptions& options = {});
  /// Cancels a run that has not ended; it cannot be resumed. Throws Failed (user) if it has ended.
  void cancel(const std::string& selector);
  /// Ends an active run as Ctrl-C does: its services answer the requests that they have accepted,
  /// and running tasks may finish, within the run's grace_ms. Blocks until then. What still runs
  /// after `within_ms` is killed; -1: no such limit. A name selects all its active runs. Returns
  /// the runs, the newest first and without tasks; the status is `succeeded` if only services were
  /// left, else `interrupted`. Throws Failed (user) if the run is not active.
  std::vector<RunInfo> stop(const std::string& selector, int64_t within_ms = -1);
  /// Sends a value, as JSON ("": true), to the run for `ctx:wait`. The first signal of a name
  /// counts; later ones have no effect. Throws Failed (user) if the run has ended.
  void signal(const std::string& selector, const std::string& name, const std::string& json = "");
  /// What would run and why; nothing runs.
  PlanInfo plan(const std::string& script, const RunOptions& options = {});
  /// As Reader::services, Reader::show and Reader::get, for the state of this engine.
  std::vector<ServiceInfo> services();
  RunInfo show(const std::string& selector);
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory);
  /// Deletes all finished runs but the newest `keep`; returns the bytes freed.
  uint64_t gc(uint32_t keep);
  bool is_writer() const;
  /// The error that stopped this writer for good, such as a full disk: every run ends with it. Then
  /// destroy the engine and open the state again. "" while the engine works.
  std::string stopped_by() const;
  uint64_t state_bytes() const;  ///< size of the state on disk
  /// Number of runs that this writer executes for other processes.
  uint32_t client_runs() const;
  /// Blocks until client_runs() is 0.
  void wait_for_clients();
  /// Address where workers join this head, or the head that writes this state; "" if there is none.
  std::string address() const;
  /// The workers of this head; the head itself is first.
  std::vector<NodeInfo> nodes() const;
  /// "HOST:PORT" where EngineOptions::metrics are; "" if there are none.
  std::string metrics_address() const;

 private:
  std::shared_ptr<void> log_;  // first: it outlives what logs
  std::unique_ptr<detail::EngineImpl> impl_;
};

struct ClusterInfo {
  std::string address;          ///< where workers join; "" if none can
  std::vector<NodeInfo> nodes;  ///< the head itself is first
};
/// The cluster whose head writes the state of `options`, or listens at its `head`. Never becomes
/// the writer. Throws Failed (environment) if no head is found.
ClusterInfo cluster_info(const EngineOptions& options = {});

struct WorkerNodeOptions {
  std::string head{};         ///< address of the head, "HOST:PORT"
  std::string secret_file{};  ///< file with the cluster's secret
  /// Folder for scratch, blobs and reports that the head has not acknowledged; "":
  /// /var/tmp/flow-worker-UID-NAME.
  std::string directory{};
  std::string name{};    ///< unique name in the cluster; "": this machine's host name
  int32_t jobs = 0;      ///< CPU slots; 0: as many as the CPU affinity allows
  std::string memory{};  ///< memory for attempts, such as "64GiB"; "": the machine's
  /// Maximum size of the blob cache, such as "200GiB"; "": no limit. Blobs that the head also has
  /// are evicted when space is needed.
  std::string content_max{};
  std::string executor{};  ///< as EngineOptions::executor
  std::vector<std::pair<std::string, std::string>> labels{};
  std::vector<std::pair<std::string, double>> resources{};  ///< as EngineOptions::resources
  std::function<void(const std::string&)> on_note{};  ///< what changed, in words; on any thread
  LogOptions log{};  ///< of the worker itself; default: nothing is logged
  MetricsOptions metrics{};
};

/// A worker of a cluster. It joins its head and rejoins after each disconnect; its attempts keep
/// running meanwhile.
class WorkerNode {
 public:
  /// Throws Failed if an option is invalid or the directory cannot be used; a missing head is not
  /// an error.
  explicit WorkerNode(WorkerNodeOptions options);
  ~WorkerNode();  ///< leaves the cluster and ends running attempts
  /// Drains the worker: it takes no new work and asks running attempts to stop; other workers
  /// continue them. Attempts that still run after `within_ms` are ended. `why` is shown to users.
  void drain(int64_t within_ms, const std::string& why);
  bool is_drained() const;          ///< nothing runs and the head has acknowledged all reports
  int64_t without_head_ms() const;  ///< time since the connection to the head was lost
  WorkerNode(const WorkerNode&) = delete;
  WorkerNode& operator=(const WorkerNode&) = delete;
  bool is_connected() const;
  /// "HOST:PORT" where WorkerNodeOptions::metrics are; "" if there are none.
  std::string metrics_address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
/// The first request that an engine with these options would send to Slurm. Throws Failed if the
/// request cannot be made.
SlurmRequest slurm_request(const EngineOptions& options);
/// The capacity that a worker with these options would report to its head. Queries the GPU driver.
NodeInfo describe_worker(const WorkerNodeOptions& options);

/// The graph of a script, built in a child process. Opens no state; verdicts are empty.
PlanInfo build_graph(const std::string& script, const EngineOptions& options = {},
                     const RunOptions& run = {});
/// A parameter of a pipeline.
struct ParameterInfo {
  std::string name;
  std::string type;           ///< "int", "list of string", "choice"
  std::string default_value;  ///< as `--param` takes it, "" if the parameter is required
  bool is_required = false;
  std::string help;
  std::string allowed;  ///< "1 to 10", "one of a, b", "matches ^x", or ""
};
/// The parameters of a script's pipeline, by name. Loads the script in a child process; the
/// pipeline's body does not run, and no state is opened. Throws Failed.
std::vector<ParameterInfo> pipeline_parameters(const std::string& script,
                                               const EngineOptions& options = {});
/// The flow.toml files for a script in `folder`: the one that FLOW_CONFIG names, else `flow.toml`
/// in the folder and `flow/flow.toml` in $XDG_CONFIG_HOME or ~/.config. Missing files are left out.
/// Throws Failed for files that cannot be read.
std::vector<ConfigFile> find_config(const std::string& folder);
/// The values of `config` outside of tasks; each option once, by its highest precedence. Throws
/// Failed (user) if a file is invalid.
std::vector<ConfigValue> config_values(const ConfigOptions& config);
/// The options of the script's tasks with `run.config`, each task and option once. Builds the graph
/// in a child process; opens no state. Throws Failed. `warnings` receives those of the build.
std::vector<ConfigValue> explain_config(const std::string& script, const EngineOptions& options,
                                        const RunOptions& run, std::vector<std::string>& warnings);
/// "file:line: …" for each place where a script seems to use a handle as if it were a value.
std::vector<std::string> lint(const std::string& file);
/// The state directory that `options` select; it may not exist yet. Creates nothing.
std::string state_directory(const EngineOptions& options = {});
/// Throws Failed if Engine::get cannot copy into `directory`: it lies in a state, its path leads
/// through a file or a broken link, or it is a URL other than s3://BUCKET/PREFIX. Creates nothing.
void check_target(const std::string& directory);
/// Path of the flow-executor that an engine with `options` starts. Throws Failed (environment) if
/// there is none.
std::string executor_program(const EngineOptions& options = {});
/// The GPUs that an engine with `options` may assign to tasks. Queries the driver in a child
/// process at each call.
MachineGpus machine_gpus(const EngineOptions& options = {});
/// The NVIDIA libraries that a GPU task would use. Loads them into this process, which takes some
/// tenths of a second. Empty in a build without CUDA.
std::vector<GpuLibrary> gpu_libraries();
const char* version();  ///< "0.1.0"

}  // namespace flow
