// The interface of the Lua surface to the executor program: load a script, build its plan, run an
// attempt. One thread calls a ScriptVm; it lives in a child process, never in the head.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/blobs/input_listing.hpp"
#include "engine/plan/plan.hpp"
#include "flow/collective.hpp"
#include "flow/gpu.hpp"

namespace flow {

/// Lists input files in the process that submits: absolute paths, sorted. See
/// engine/blobs/input_listing.hpp.
using InputLister = std::function<Result<std::vector<std::string>>(const InputPattern& wanted)>;
/// A map whose tag function is called for each item, after the build.
struct TagRequest {
  uint32_t node = 0;
  std::vector<Value> items;
};

/// A call whose resource functions are called, after the build.
struct ResourceCall {
  uint32_t def = 0;  // index in the plan's defs
  Value args;        // the list of arguments with results in place of refs
  bool named_args = false;
  uint32_t attempt = 1;
  uint8_t functions = kResourceFunctions;  // those that are called: bits of ResourceFunction
};
/// The options of the task's definition with the values of its functions, or an error.
struct CallResources {
  std::string error;  // "pipeline.lua:7: …"; "" if there is none
  Resources resources;
  int64_t timeout_ms = 0;
};

struct BuildRequest {
  std::string root;         // absolute folder of the script
  std::string main;         // the script, relative to root
  std::string main_text{};  // its text; "": of the file
  Value
      params;  // table of given parameters; values of the command line are strings in `text_params`
  std::vector<std::pair<std::string, std::string>> text_params;  // --param k=v: overrides `params`
  std::string working_directory;   // base of relative paths of the command line
  const Bundle* pinned = nullptr;  // build from this code and not from disk (resume, executors)
  InputLister list_inputs;
  bool describe = false;  // only the pipeline's name and parameters; its body does not run
  std::optional<TagRequest> tags{};
  std::vector<ResourceCall> resource_calls{};
};

struct BuildResult {
  Plan plan;
  Bundle bundle;
  std::vector<std::string> tags;         // of the TagRequest's items
  std::vector<CallResources> resources;  // of the resource calls, in their order
};

/// The services of a worker for a running attempt. Called on the attempt's thread.
class AttemptHost {
 public:
  virtual ~AttemptHost() = default;
  virtual void log(std::string_view text) = 0;  // one line, no newline
  /// Logs the beginning of a line that is too long to buffer, and removes it from `line`.
  virtual void log_chunk(std::string& line) {
    log(line);
    line.clear();
  }
  /// One line about the attempt from flow itself.
  virtual void warn(const std::string& text) { log("warning: " + text); }
  virtual void progress(double fraction, const Value& metrics) = 0;
  /// Without a step the point gets the one after the step of the series' last point, from 1 on.
  virtual void metric(const std::string& name, double value, std::optional<int64_t> step) = 0;
  /// Durable when it returns. An Error of kind environment means that the attempt was fenced; any
  /// other is the reason why the value cannot be stored.
  virtual Status save_step(const std::string& name, const Value& value) = 0;
  /// Queues a checkpoint, whose tensors have bytes but no digest; it is written while the attempt
  /// continues. The Error is of this checkpoint if it cannot be stored at all, or of an earlier one
  /// whose write failed.
  virtual Status save_checkpoint(Value value) = 0;
  /// Blocks until queued checkpoints are durable.
  virtual Status finish_checkpoints() = 0;
  /// The newest checkpoint: this attempt's, durable when it returns, or an earlier attempt's.
  virtual Result<std::optional<Value>> newest_checkpoint() = 0;
  virtual bool stopping() const = 0;
  virtual void service_ready(const std::string& url) = 0;
  /// Blocks until the attempt's start is durable: call it before every external effect. Computation
  /// before that is undone by a crash.
  virtual void wait_durable() = 0;
  /// Call it before the attempt first starts a program or opens a file, which may write to streams
  /// shared with other attempts.
  virtual void reach_outside() = 0;
  /// Creates the request's `dir` when it is first needed: most attempts never use it.
  virtual Status make_scratch() = 0;
  /// Content of a blob; an Error if it is lost. Large blobs are mapped.
  virtual Result<Bytes> blob(const Digest& digest) = 0;
  /// A readable absolute path of a file's or folder's content (no copy).
  virtual Result<std::string> file_path(const File& file) = 0;
  /// Stores a file or folder below ctx.dir as a blob.
  virtual Result<File> store_file(const std::string& path) = 0;
  /// Stores a tensor's bytes (in `tensor.data`) as a blob.
  virtual Status store_tensor(const Tensor& tensor) = 0;
  virtual std::string env(const std::string& name, bool& found) = 0;  // the submitter's environment
  /// The redacted text: values of flow.env in it become ***.
  virtual std::string hidden(std::string text) const = 0;
  /// The communicator of this rank's gang. Called at most once, when the script first uses
  /// ctx.comm; released before run() returns. Null: the task has one rank.
  virtual Result<std::shared_ptr<Communicator>> communicator() {
    return std::shared_ptr<Communicator>();
  }
};

struct WaitState {  // of one ctx:wait, by its name ("approved", "approved#2")
  int64_t deadline_ms = 0;
  bool expired = false;
};

struct AttemptRequest {
  uint32_t ordinal = 0;   // TaskDef::ordinal
  std::string run, task;  // ctx.run, ctx.task
  std::string tag;        // of the task instance, for errors
  uint32_t attempt = 1;
  uint32_t rank = 0, ranks = 1;
  std::string dir;  // scratch
  std::string state_dir;
  uint64_t seed = 0;
  uint32_t cpus = 1;                   // BLAS threads
  int64_t memory_bytes = 0;            // limit of the VM; 0: none
  uint32_t gpus = 0;                   // visible GPUs: "cuda:0" and so on
  bool shares_gpus = false;            // the task has a part of a GPU
  Value args;                          // list of positional arguments, refs resolved
  std::map<std::string, Value> steps;  // finished steps
  std::map<std::string, Value> signals;
  std::map<std::string, WaitState> waits;
};

struct AttemptOutcome {
  enum class Kind : uint8_t { succeeded, failed, waiting, stopped } kind = Kind::succeeded;
  Value result;
  std::optional<PlanFragment> fragment;  // dynamic tasks
  bool waited = false;           // ctx:wait was called: its answer is valid in this run only
  bool reached_outside = false;  // through io or os.execute: programs may still run
  bool lost_gpu = false;         // this process cannot use the GPU any more,
  bool gpu_failed = false;       // because the device failed, not a program on it
  bool lost_gang = false;  // failed after a collective had failed: the cause may be another rank
  // failed
  bool out_of_memory = false;
  bool bad_result = false;         // the result cannot cross an edge
  std::string message, traceback;  // "train.lua:12: …"
  // waiting
  std::string signal, wait_name;
  int64_t wait_timeout_ms = -1;  // -1: no timeout
};

/// A request whose rows are in a call of `predict`.
struct PredictedRequest {
  std::string id;
  int64_t rows = 0;
  std::string traceparent, trace_id;  // "" if the client sent none that is valid
  // Tables by name, the last two first by the name of the tensor; nil if there are none.
  Value parameters = {}, input_parameters = {}, output_parameters = {};
};

/// What a call of `predict` has returned.
struct PredictedValues {
  Value outputs;
  Value response;  // the second result; nil without one
};

class ScriptVm {
 public:
  virtual ~ScriptVm() = default;
  /// Loads the script and builds the plan. Every problem is an Error of kind user.
  virtual Result<BuildResult> build(const BuildRequest& request) = 0;
  /// Loads a bundle so that attempts of its tasks can run.
  virtual Status load(const Bundle& bundle) = 0;
  /// Runs one attempt from a fresh script state. Call load() first.
  virtual AttemptOutcome run(const AttemptRequest& request, AttemptHost& host) = 0;
  /// Runs a service's function from a fresh script state and keeps the table that it returned.
  virtual AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host) = 0;
  /// Calls its `predict`: a table of tensors by name in, and one out. The requests are in the order
  /// of their rows. The tensors of the result may be memory of the script: use them before the next
  /// call.
  virtual Result<PredictedValues> predict(const Value& inputs,
                                          const std::vector<PredictedRequest>& requests) = 0;
  /// Frees the tensors of a service that nothing refers to.
  virtual void collect() = 0;
  virtual void end_service() = 0;
};

std::unique_ptr<ScriptVm> make_script_vm();

/// For tensors and kernels on a GPU: see gpu_libraries().
std::vector<GpuLibrary> script_gpu_libraries();

/// Warnings about `if h`, `not h`, `and`/`or`, `h == 3` where the source shows a handle:
/// "file:line: …" each.
std::vector<std::string> lint_source(const std::string& path, const std::string& text);

/// A shell call's arguments by name, as fill_command takes them. `args` is the list of positional
/// ones; with `named` it has one table of them (a map's item is named if it is a table).
Result<Value> name_arguments(const ShellSpec& spec, const std::string& task, const Value& args,
                             bool named);
/// A declared output of one call.
struct OutputPath {
  std::string name;
  std::string text;  // the text for {outputs.NAME} in the command; without a glob, the file's path
  std::string glob;  // the pattern to match (engine/base/glob.hpp); "" for a plain path
  bool is_optional = false;  // without a file the result has no such field
};
/// Fills the placeholders in the outputs' paths. `named` is a table of the call's arguments; for a
/// file its name is filled in. Error if a path is empty or leads out of the scratch folder, or if
/// two outputs have one path.
Result<std::vector<OutputPath>> fill_outputs(const ShellSpec& spec, const Value& named,
                                             const std::map<std::string, std::string>& builtin);
/// Fills {name}, {outputs.x}, {cpus} … of a shell task's command. `named` is a table of the call's
/// arguments with paths instead of files; quoting as in docs/reference-lua.md.
Result<std::string> fill_command(const ShellSpec& spec, const Value& named,
                                 const std::map<std::string, std::string>& builtin);

}  // namespace flow
