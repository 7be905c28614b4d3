// One attempt in an executor: its order, its blobs, and its reports.
#pragma once
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log_bound.hpp"
#include "engine/core/types.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/executor/blob_files.hpp"
#include "engine/executor/checkpoints.hpp"
#include "engine/executor/processes.hpp"
#include "engine/executor/usage_meter.hpp"
#include "engine/executor/worker_link.hpp"
#include "flow/tags.hpp"
#include "lua/state/script.hpp"

namespace flow {

class Attempt final : public AttemptHost {
 public:
  /// The others outlive it.
  Attempt(WorkerLink& link, BlobFiles& blobs, Checkpoints& checkpoints, UsageMeter& meter,
          wire::Start& start, std::string state_dir);
  ~Attempt() override;
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  /// Starts the attempt's clock. Its function begins now, or later with begin_function.
  void begin();
  /// Its inputs and its environment are there. Returns the time by the monotonic clock.
  int64_t begin_function();
  /// Its function or its command has ended; what follows is the commit of its result. The report
  /// does this if nothing did. `program_peak` is the peak memory of the command, -1 if unknown; an
  /// attempt without a command has the peak of this process.
  void end_function(std::optional<int64_t> program_peak = std::nullopt);
  /// Continues as the attempt of this order, of the same task instance: its reports name that one
  /// from now on. The scratch folder stays.
  void adopt(const wire::Start& order);

  // AttemptHost
  void log(std::string_view text) override { log_stream(0, text); }
  void log_chunk(std::string& line) override;
  void progress(double fraction, const Value& metrics) override;
  void metric(const std::string& name, double value, std::optional<int64_t> step) override;
  Status save_step(const std::string& name, const Value& value) override;
  Status save_checkpoint(Value value) override;
  Status finish_checkpoints() override { return note_write_error(checkpoints_.finish()); }
  Result<std::optional<Value>> newest_checkpoint() override;
  bool stopping() const override { return link_.stopping(); }
  void service_ready(const std::string& url) override;
  /// Time spent here does not count as the attempt's.
  void wait_durable() override;
  void reach_outside() override;
  Status make_scratch() override;
  Result<Bytes> blob(const Digest& digest) override { return note_error(blobs_.read(digest)); }
  Result<std::string> file_path(const File& file) override;
  Result<File> store_file(const std::string& path) override;
  Status store_tensor(const Tensor& tensor) override;
  std::string env(const std::string& name, bool& found) override;
  std::string hidden(std::string text) const override;
  Result<std::shared_ptr<Communicator>> communicator() override { return communicator_; }

  /// Logs one or several lines of a stream (as in the protocol's Log). `ends_line` is false for the
  /// first part of a long line.
  void log_stream(uint32_t stream, std::string_view text, bool ends_line = true);
  void log_warnings();  // about what was just stored
  /// Logs a warning of flow itself about this attempt; `flow why` shows it too.
  void warn(const std::string& text) override;
  /// The command of a process of this attempt as one short line, redacted.
  std::string shown_command(const Descendant& process) const;
  /// Redacts these values too from now on, in all text that leaves the attempt.
  void hide(const std::vector<std::string>& secrets);
  /// Redacts the complete secrets in `text`, a stream that continues. Returns the part that is safe
  /// to emit and leaves the rest in `text`.
  std::string hide_begun(std::string& text) const { return secrets_.hide_begun(text); }
  BlobFiles& blobs() { return blobs_; }
  void set_serving() { serving_ = true; }
  void set_communicator(std::shared_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }
  /// Its function had ended, and it waited so long for those of the other ranks.
  void note_leave_wait(int64_t us) { leave_wait_us_ = us; }
  /// Whether this is rank 0 of its gang, whose results and checkpoints are kept.
  bool is_first() const { return start_.id().rank() == 0; }
  /// The environment of a program of this attempt.
  std::map<std::string, std::string> environment() const;
  const wire::Start& start() const { return start_; }
  /// The task's name with its tag, for texts.
  std::string shown_task() const { return tagged_name(start_.task(), start_.tag()); }
  /// "train #2", of a gang "train #2 rank 1": of its range in a profile.
  std::string profile_name() const;
  WorkerLink& link() { return link_; }
  const std::string& state_dir() const { return state_dir_; }
  /// Stages an input at inputs/N/NAME of the scratch folder: as a link, or as a copy if the task
  /// writes to it.
  Result<std::string> stage(const File& file, bool copy);
  /// Reads the state of the earlier checkpoint; all ranks restore this copy, because rank 0 may
  /// save the next checkpoint and remove the file before another rank has restored it.
  Status load_checkpoint();
  /// What links in the scratch folder lead to: the folder of blobs, and inputs read in place.
  std::vector<std::string> outside_inputs() const;
  /// Error if an input has changed since it was staged.
  Status check_inputs();
  /// How long to wait for processes that outlive the program that started them, from FLOW_LINGER in
  /// the attempt's environment. Error if that is not a duration.
  Result<int64_t> linger_ms() const;
  /// Logs a warning if something cannot be removed; `flow gc` tries again.
  void remove_scratch();

  /// Finishes pending checkpoints: a result makes them unnecessary, every other outcome waits for
  /// them. Returns false if the attempt failed because of them; the failure is reported.
  bool close_checkpoints(AttemptOutcome::Kind kind);
  void finish(const Value& result, const PlanFragment* fragment, bool waited);
  void fail(core::Cause cause, std::string message, std::string evidence, int code = 0,
            bool of_gang = false);
  void fail(const AttemptOutcome& outcome);  // as its script did
  /// Fails with the cause that ended all ranks; it names the responsible rank.
  void fail_with_gang(core::Cause cause, std::string message, std::string evidence) {
    fail(cause, std::move(message), std::move(evidence), 0, true);
  }
  void stopped(std::string evidence = "");
  void waiting(const std::string& signal, const std::string& name, int64_t timeout_ms);

 private:
  void begin_checkpoints();
  Checkpoints::Target checkpoint_target();
  /// Waits until no process of this attempt can write to `path`. Error if one still can at the end.
  Status wait_for_writers(const std::string& path);
  Status place_file(const std::string& source, const std::string& target, const Digest& digest,
                    bool is_blob, bool executable, bool copy);
  /// Keeps the kind of an error, because Lua only keeps its text.
  template <typename R>
  R note_error(R result) {
    if (!result.ok() && result.error().kind == ErrorKind::environment)
      environment_fault_ = result.error().message;
    return result;
  }
  /// A checkpoint that cannot be written is an environment error.
  Status note_write_error(Status written) {
    if (!written.ok() && written.error().kind == ErrorKind::task)
      environment_fault_ = written.error().message;
    return written;
  }
  /// The CUDA_VISIBLE_DEVICES with which the executor was started.
  std::string visible_gpus() const;
  /// Whether the task may set CUDA_VISIBLE_DEVICES itself: only if no GPUs were assigned to it.
  bool may_choose_gpus() const;
  /// A hint for an error about a GPU that the task does not see; else "".
  std::string hint_of_gpus(const std::string& message) const;
  /// Variables that identify the attempt to its programs.
  std::map<std::string, std::string> identity() const;
  /// The task's `env` and the variables of its GPUs.
  std::map<std::string, std::string> own_environment() const;
  void begin_environment() const;
  Value redacted(const Value& value) const;
  std::string too_large(const char* verb, size_t size) const;
  std::string nested_too_deep() const;
  wire::Finished& report(uint32_t outcome);
  void put_usage(int64_t now_us, wire::Finished& finished);
  void send_log(const LogBound::Entry& entry);

  /// The folder in which inputs are staged, at N/NAME.
  std::string inputs_folder() const;
  /// Identifies a file and its content: it changes with each write.
  struct FileStamp {
    uint64_t device = 0, inode = 0;
    int64_t size = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const FileStamp&) const = default;
  };
  static std::optional<FileStamp> stamp_of(const std::string& path);
  Status check_origin(const std::string& path, const Digest& digest);
  enum class Source : uint8_t {
    blob,    // the path leads into objects/, or to a blob that came with the order
    copy,    // a private copy of the attempt
    origin,  // the path leads to a large input that is read in place
  };
  struct Staged {
    std::string path;
    FileStamp stamp;  // of the path's target
    Digest digest;
    Source source;
  };
  static bool is_unchanged(const Staged& input);
  WorkerLink& link_;
  BlobFiles& blobs_;
  Checkpoints& checkpoints_;
  wire::Start& start_;
  std::string state_dir_;
  const std::shared_ptr<const std::map<std::string, std::string>> environment_;  // of its run
  wire::FromExecutor message_;
  UsageMeter& meter_;
  const int64_t ordered_us_;
  int64_t began_us_ = 0;
  int64_t waited_us_ = 0;  // for the commit that makes its start durable
  int64_t stage_us_ = -1;  // -1: it has not begun
  int64_t ended_us_ = 0;   // its function; 0: not yet
  int64_t leave_wait_us_ = -1;
  core::AttemptUsage usage_;
  std::mutex log_mutex_;  // of log_bound_: a service's calls are watched by a thread
  LogBound log_bound_;
  int64_t last_progress_us_ = 0;
  Secrets secrets_;
  bool serving_ = false;
  std::shared_ptr<Communicator> communicator_;
  // Of a gang: the state from which the attempt started and which all ranks restore.
  std::optional<std::optional<Value>> restored_;
  MetricSteps restored_metric_steps_;
  MetricSteps metric_steps_;  // at most kMetricNamesMax
  bool has_scratch_ = false;
  bool is_durable_ = false;  // whether its start is durable
  std::vector<Staged> staged_;
  Status changed_input_;  // found before it was staged
  std::string environment_fault_;
  std::map<std::string, std::string> staged_paths_;
  std::set<std::string> origins_;  // of staged inputs that are read in place
};

/// Runs the command of a shell task to its end and reports. Each rank of a gang runs one; `gang` is
/// null for an attempt with one rank.
void run_shell(Attempt& attempt, const SlotFile& slot, const Value& args, class Gang* gang);
/// Runs the server that a service's command starts until the attempt is asked to stop, and reports.
void run_wrapped_server(Attempt& attempt, const SlotFile& slot, const Value& args);
/// Serves until the attempt is asked to stop, and reports.
void run_service(Attempt& attempt, ScriptVm& vm, const AttemptRequest& request);

}  // namespace flow
