// What Slurm is asked for, as command lines and the script of a job: on each of its nodes a worker.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/resource_quantities.hpp"
#include "flow/flow.hpp"
#include "flow/result.hpp"

namespace flow::slurm {

using CommandLine = std::vector<std::string>;

/// A worker that finds no head for so long ends, and its allocation with it.
constexpr int64_t kHeadTimeoutMs = 30'000;
/// Of each worker; its value is the job's id.
constexpr const char* kJobLabel = "slurm_job";

/// Whom the workers of a job join, and with what.
struct WorkerLaunch {
  std::string program;                    // flow, by a path that is the same on the nodes
  std::string head;                       // address
  std::string secret_file;                // which the nodes can read
  std::string folder;                     // of scripts and logs, which the nodes can write
  std::string name;                       // of the state, among those of one user
  ResourceQuantities custom_resources{};  // that each node has
};
/// A short name that tells a state from others.
std::string name_of_state(const std::string& state_dir);
std::string script_path(const WorkerLaunch& launch);
std::string log_path(const std::string& folder, const std::string& job);

/// "2h" as Slurm writes it; what Slurm itself understands as it is.
Result<std::string> slurm_time(const std::string& text);
/// So long before its end a job is told: 2 minutes, of a short one a quarter.
int64_t lead_seconds(const SlurmOptions& options);
/// What can't be asked.
Status check(const SlurmOptions& options);

/// The job's script: a worker on each node.
std::string job_script(const SlurmOptions& options, const WorkerLaunch& launch);
/// One allocation of so many nodes.
CommandLine sbatch_command(const SlurmOptions& options, const WorkerLaunch& launch, int32_t nodes);
/// The workers of an allocation that is there, which end when its standard input does.
CommandLine srun_command(const WorkerLaunch& launch, const std::string& job,
                         const std::string& nodes);
/// All that is known of the state's jobs, a line each.
CommandLine squeue_command(const WorkerLaunch& launch);
CommandLine scancel_command(const std::vector<uint64_t>& jobs);

/// As somebody would type it.
std::string text_of(const CommandLine& command);

}  // namespace flow::slurm
