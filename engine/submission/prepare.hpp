// From a script and parameters to something that can be submitted: build in a child, check, read
// files, bind natives.
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

/// Where the state lies: --state, else $FLOW_STATE, else the nearest .flow/ upwards, else ./.flow.
/// Refuses another user's.
Result<std::string> find_state(const EngineOptions& options);
/// flow-executor: the option, else beside this library, beside the program, in ../libexec/flow.
Result<std::string> find_executor(const EngineOptions& options);
/// This process's environment.
std::shared_ptr<const Environment> process_environment();
/// Where relative paths start. Of a working directory that was removed: its former path.
std::string working_directory_of(const EngineOptions& options);
/// What is asked for in this process: its folder, its environment.
Submission make_submission(const EngineOptions& options, const RunOptions& run);
/// The CPU slots that `options` ask for, else the CPUs that this process may use.
int32_t jobs_of(const EngineOptions& options);
/// Whether an engine of these options is the head of a cluster.
bool leads_cluster(const EngineOptions& options);
/// `flow`: the option, else beside the executor.
Result<std::string> find_program(const EngineOptions& options, const std::string& executor);

/// A run's name is printed on a line and picks the run: no control characters, neither `last` nor
/// the form of an id.
Status check_name(const std::string& name);

struct BuiltGraph {
  Plan plan;  // checked
  std::string plan_bytes;
  Bundle bundle;
  std::string bundle_bytes;
};

/// Builds the graph in a child process.
Result<BuiltGraph> build(const Submission& submission, Builder& builder);
/// The sources of a bundle that differ on disk, by name; "" where none does.
std::string changed_sources(const Bundle& bundle);

/// The library of operations that the embedding program defined, or "".
using OperationsLibrary = std::function<std::string(const std::string& name)>;
enum class Purpose : uint8_t { run, preview };  // `preview` needs no machine that can run it

struct Capacity;

/// What prepare() uses of an engine.
struct SubmissionContext {
  Purpose purpose = Purpose::run;
  Builder& builder;
  Store& store;
  Blobs& blobs;    // of the state: what is there already is not copied
  Blobs& staging;  // takes the content of the script's files
  /// The version of a native task, if the embedding program defines it.
  std::function<std::optional<std::string>(const std::string& name)> native_version;
  OperationsLibrary operations_library;
  /// What the run may use.
  std::function<Result<Capacity>(const Plan&)> capacity;
  core::Time now;
  std::function<RunId()> new_run_id;
};
Result<Prepared> prepare(const SubmissionContext& context, const Submission& submission);

/// What a file is, for one whose origin alone is known.
using FileReader = std::function<Result<File>(const File&)>;
/// Puts that in the place of every file of the plan that has no digest yet. Says whether there was
/// any, which changes the plan.
Result<bool> replace_files(Plan& plan, const FileReader& take);
/// Of the content at `path`; with `copy` it is kept where that is done.
using FileHasher =
    std::function<Result<Digest>(const std::string& path, const struct stat& info, bool copy)>;
/// The file or folder at `file.origin`, which is forgotten where all of it is copied: up to so many
/// bytes. `warnings` says what was left out of a folder.
Result<File> read_input(File file, uint64_t copy_max, const FileHasher& digest_of,
                        std::vector<std::string>& warnings);
constexpr uint64_t kInputCopyMax = 64ull << 20;  // larger inputs are read in place
/// Reads every file of the plan that has no digest yet: up to kInputCopyMax into the state, larger
/// in place. Says whether there was any. `read` gets each input as it was, with its path.
Result<bool> ingest_files(Plan& plan, Store& store, Blobs& blobs,
                          const OperationsLibrary& library_of, std::vector<File>& read);
/// The digest that a file had when it was last read, where it has not changed since.
std::optional<Digest> remembered_digest(const Store& store, const std::string& path,
                                        const struct stat& info);

}  // namespace flow
