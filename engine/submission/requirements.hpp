// Whether what tasks need is there, before anything runs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/submission/prepare.hpp"
#include "engine/worker/gpu_inventory.hpp"

namespace flow {

/// What a run may have: of this machine, or of the workers of a cluster.
struct Capacity {
  std::vector<core::WorkerInfo> workers;
  MachineGpus gpus;                         // this machine's
  bool has_searched_gpus = true;            // else nothing is said of those that are asked for
  bool is_cluster = false;                  // hosts are its workers, of which others may come
  bool is_closed = false;                   // hosts are all that there will be
  std::optional<RequestedNodes> requested;  // there will be such hosts when there is work
  uint32_t announced = 0;                   // workers that are to join in all
  int32_t cpus_milli() const;
};
/// The job whose nodes are to be used: the one that this process is in, unless others are asked
/// for; "" if there is none.
std::string slurm_job_inside(const SlurmOptions& options);
/// Of the nodes that `options` ask for, each with these custom resources.
RequestedNodes requested_nodes_of(const SlurmOptions& options,
                                  const ResourceQuantities& custom_resources);
/// How many workers an engine of these options is to have.
uint32_t announced_workers(const EngineOptions& options);
/// Checks of what this machine and this submitter have; also at resume.
std::vector<Error> check_requirements(const Plan& plan, const Environment& environment,
                                      const Capacity& capacity, std::vector<std::string>& warnings);

}  // namespace flow
