// Requests to Slurm: command lines, and the script of a job that runs one worker per node.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/resource_quantities.hpp"
#include "flow/flow.hpp"
#include "flow/result.hpp"

namespace flow::slurm {

using CommandLine = std::vector<std::string>;

/// A worker without a head for this long ends, and its allocation with it.
constexpr int64_t kHeadTimeoutMs = 30'000;
/// The label of each worker whose value is the job's id.
constexpr const char* kJobLabel = "slurm_job";

/// How the workers of a job are started.
struct WorkerLaunch {
  std::string program;                    // path of flow, the same on all nodes
  std::string head;                       // address of the head
  std::string secret_file;                // a path that the nodes can read
  std::string folder;                     // folder of scripts and logs, which the nodes can write
  std::string name;                       // name of the state, unique per user
  ResourceQuantities custom_resources{};  // custom resources of each node
};
/// A short name that is unique to the state directory.
std::string name_of_state(const std::string& state_dir);
std::string script_path(const WorkerLaunch& launch);
std::string log_path(const std::string& folder, const std::string& job);

/// Converts "2h" to Slurm's format; returns Slurm's own formats unchanged.
Result<std::string> slurm_time(const std::string& text);
/// How long before its end a job is signaled: 2 minutes, or a quarter of a short job's time.
int64_t lead_seconds(const SlurmOptions& options);
/// Error if the options are invalid.
Status check(const SlurmOptions& options);

/// The job's script; it starts a worker on each node.
std::string job_script(const SlurmOptions& options, const WorkerLaunch& launch);
/// Requests one allocation of `nodes` nodes.
CommandLine sbatch_command(const SlurmOptions& options, const WorkerLaunch& launch, int32_t nodes);
/// Starts workers in an existing allocation; they end when srun's standard input is closed.
CommandLine srun_command(const WorkerLaunch& launch, const std::string& job,
                         const std::string& nodes);
/// Lists the state's jobs, one line per job.
CommandLine squeue_command(const WorkerLaunch& launch);
CommandLine scancel_command(const std::vector<uint64_t>& jobs);

/// The command as a user would type it.
std::string text_of(const CommandLine& command);

}  // namespace flow::slurm
