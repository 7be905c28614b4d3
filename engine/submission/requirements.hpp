// Whether what tasks need is there, before anything runs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/worker/gpu_inventory.hpp"

namespace flow {

/// What a run may have: of this machine, or of the workers of a cluster.
struct Machine {
  std::vector<core::HostInfo> hosts;
  MachineGpus gpus;                 // this machine's
  bool has_sought_gpus = true;      // else nothing is said of those that are asked for
  bool is_cluster = false;          // hosts are its workers, of which others may come
  bool is_closed = false;           // hosts are all that there will be
  std::optional<AskedNodes> asked;  // there will be such hosts when there is work
  uint32_t announced = 0;           // workers that are to join in all
  int32_t cpus_milli() const;
};
/// Of the nodes that `options` ask for, each with the resources `named`.
AskedNodes nodes_asked_for(const SlurmOptions& options, const Amounts& named);
/// How many workers an engine of these options is to have.
uint32_t announced_workers(const EngineOptions& options);
/// Looks for GPUs only where the plan may ask for one.
Result<Machine> machine_for(const Plan& plan, Driver& driver, Purpose purpose = Purpose::run);
/// Checks of what this machine and this submitter have; also at resume.
std::vector<Error> check_needs(const Plan& plan, const Environment& environment,
                               const Machine& machine, std::vector<std::string>& warnings);

}  // namespace flow
