// Prepares a submission from a script and parameters: builds the graph in a child process, checks
// it, reads files and binds native tasks.
#pragma once
#include <sys/stat.h>
#include <functional>
#include <memory>
#include <optional>

#include <string>
#include <vector>

#include "engine/store/store.hpp"
#include "engine/submission/submission.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// The state directory: --state, else $FLOW_STATE, else the nearest .flow/ upwards, else ./.flow.
/// Rejects one that belongs to another user.
Result<std::string> find_state(const EngineOptions& options);
/// Path of flow-executor: the option, else next to this library or the program, or in
/// ../libexec/flow.
Result<std::string> find_executor(const EngineOptions& options);
/// This process's environment.
std::shared_ptr<const EnvironmentVariables> current_environment();
/// The base of relative paths. If the working directory was removed: its former path.
std::string working_directory_of(const EngineOptions& options);
/// A submission from this process, with its working directory and environment. Reads the file that
/// options.config names. Error (user) if it cannot be read.
/// `options.by`, or the user and the host of this process.
std::string requester_of(const EngineOptions& options);
Result<Submission> make_submission(const EngineOptions& options, const RunOptions& run);
/// The CPU slots of `options`; by default the CPUs that this process may use.
int32_t jobs_of(const EngineOptions& options);
/// Whether an engine with these options is the head of a cluster.
bool leads_cluster(const EngineOptions& options);
/// Path of `flow`: the option, else next to the executor.
Result<std::string> find_program(const EngineOptions& options, const std::string& executor);

/// Validates a run's name, which is printed on one line and selects the run: no control characters,
/// not `last`, and not the form of an id.
Status check_name(const std::string& name);

struct BuiltGraph {
  Plan plan;  // already checked
  std::string plan_bytes;
  Bundle bundle;
  std::string bundle_bytes;
};

/// Loads the script in a child process; only the pipeline's name and parameters are filled in.
Result<Plan> describe(const Submission& submission, Builder& builder);
/// Builds the graph in a child process.
Result<BuiltGraph> build(const Submission& submission, Builder& builder);
/// Names of the bundle's sources that differ on disk; "" if none does.
std::string changed_sources(const Bundle& bundle);

/// The library of operations that the host program defined, or "".
using OperationsLibrary = std::function<std::string(const std::string& name)>;
enum class Purpose : uint8_t { run, preview };  // `preview` needs no machine that can run it

struct Capacity;
class RemoteInputs;

/// The parts of an engine that prepare() uses.
struct SubmissionContext {
  Purpose purpose = Purpose::run;
  Builder& builder;
  Store& store;
  Blobs& blobs;    // of the state: blobs that exist there are not copied
  Blobs& staging;  // stores the content of the script's files
  /// The version of a native task, if the host program defines it.
  std::function<std::optional<std::string>(const std::string& name)> native_version;
  OperationsLibrary operations_library;
  /// The capacity that the run may use.
  std::function<Result<Capacity>(const Plan&)> capacity;
  core::Time now;
  std::function<RunId()> new_run_id;
};
Result<Prepared> prepare(const SubmissionContext& context, const Submission& submission);

/// Reads a file of which only the origin is known.
using FileReader = std::function<Result<File>(const File&)>;
/// Replaces every file of the plan that has no digest yet by the result of `take`. Returns whether
/// there was any, in which case the plan changed.
Result<bool> replace_files(Plan& plan, const FileReader& take);
/// Returns the digest of the content at `path`; with `copy` also stores it.
using FileHasher =
    std::function<Result<Digest>(const std::string& path, const struct stat& info, bool copy)>;
/// Reads the file or folder at `file.origin`. Content up to `copy_max` bytes is copied, and the
/// origin is cleared. `warnings` names what was left out of a folder.
Result<File> read_input(File file, uint64_t copy_max, const FileHasher& digest_of,
                        std::vector<std::string>& warnings);
constexpr uint64_t kInputCopyMax = 64ull << 20;  // larger inputs are read in place
/// Reads every file of the plan that has no digest yet: up to kInputCopyMax into the state, larger
/// ones in place. Returns whether there was any. `read` receives each input with its path.
Result<bool> ingest_files(Plan& plan, Store& store, Blobs& blobs,
                          const OperationsLibrary& library_of, RemoteInputs& remote,
                          std::vector<File>& read);
/// The digest from the last read of the file, if the file has not changed since.
std::optional<Digest> remembered_digest(const Store& store, const std::string& path,
                                        const struct stat& info);

}  // namespace flow
