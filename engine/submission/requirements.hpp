// Checks before a run that the requirements of its tasks can be met.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/submission/prepare.hpp"
#include "engine/worker/gpu_discovery.hpp"

namespace flow {

/// The capacity for a run: this machine, or the workers of a cluster.
struct Capacity {
  std::vector<core::WorkerInfo> workers;
  MachineGpus gpus;                         // this machine's
  bool has_searched_gpus = true;            // otherwise requests for GPUs are not checked
  bool is_cluster = false;                  // `hosts` are its workers; more may join
  bool is_closed = false;                   // no more workers will join
  std::optional<RequestedNodes> requested;  // such workers will join when there is work
  uint32_t announced = 0;                   // number of workers that will join in all
  int32_t cpus_milli() const;
};
/// The Slurm job whose nodes are used: the job of this process, unless `options` request other
/// nodes;
/// "" if there is none.
std::string slurm_job_inside(const SlurmOptions& options);
/// The nodes that `options` request, each with these custom resources.
RequestedNodes requested_nodes_of(const SlurmOptions& options,
                                  const ResourceQuantities& custom_resources);
/// Number of workers that an engine with these options expects.
uint32_t announced_workers(const EngineOptions& options);
/// Checks the plan against the capacity and the submitter's environment; also used by resume.
std::vector<Error> check_requirements(const Plan& plan, const EnvironmentVariables& environment,
                                      const Capacity& capacity, std::vector<std::string>& warnings);

}  // namespace flow
