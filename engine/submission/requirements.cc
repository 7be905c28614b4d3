// Checks before a run that the requirements of its tasks can be met.
#include "engine/submission/requirements.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/errors.hpp"
#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/cluster/slurm/request.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/workers.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/plan/gpu_pattern.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/submission/command_environments.hpp"
#include "engine/submission/service_files.hpp"
#include "engine/submission/service_ports.hpp"

namespace flow {

int32_t Capacity::cpus_milli() const {
  int32_t most = 0;
  for (const core::WorkerInfo& worker : workers) most = std::max(most, worker.cpus_milli);
  return most;
}

std::string slurm_job_inside(const SlurmOptions& options) {
  bool has_nodes = options.nodes > 0 || options.nodes_max > 0;
  const char* job = std::getenv("SLURM_JOB_ID");
  return has_nodes || job == nullptr ? "" : job;
}

uint32_t announced_workers(const EngineOptions& options) {
  int32_t count = options.expected_workers;
  if (options.workers > 0) count = std::max(count, options.workers);
  if (!options.slurm) return static_cast<uint32_t>(std::max(0, count));
  count = std::max({count, options.slurm->nodes, options.slurm->nodes_max});
  const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
  bool is_inside = !slurm_job_inside(*options.slurm).empty() && nodes != nullptr;
  if (is_inside) count = std::max(count, static_cast<int32_t>(std::strtol(nodes, nullptr, 10)));
  return static_cast<uint32_t>(std::clamp<int64_t>(count, 0, core::kWorkersMax));
}

// Extra sbatch options, or an existing allocation, may add GPUs.
RequestedNodes requested_nodes_of(const SlurmOptions& options,
                                  const ResourceQuantities& custom_resources) {
  bool may_bring_some =
      !slurm_job_inside(options).empty() ||
      std::any_of(options.arguments.begin(), options.arguments.end(), [](const std::string& each) {
        return each.find("gpu") != std::string::npos || each.starts_with("--gres");
      });
  if (may_bring_some && options.gpus_per_node == 0) return {custom_resources, std::nullopt};
  return {custom_resources, options.gpus_per_node};
}

namespace {

void check_environment(const TaskDef& def, const std::string& where,
                       const EnvironmentVariables& environment, std::vector<Error>& errors,
                       std::vector<std::string>& warnings) {
  for (const EnvEntry& entry : def.env) {
    if (!entry.from_submitter) continue;
    auto variable = std::find_if(environment.begin(), environment.end(),
                                 [&](const auto& each) { return each.first == entry.value; });
    bool is_short = variable != environment.end() && !variable->second.empty() &&
                    variable->second.size() < kSecretMin;
    if (is_short)
      warnings.push_back(fmt::format(
          "{} reads the environment variable {}, whose value has fewer than {} bytes: it is not "
          "redacted in logs and errors",
          where, entry.value, kSecretMin));
    if (variable != environment.end()) continue;
    errors.push_back(user_error(fmt::format(
        "{} needs the environment variable {}, which is not set: export {}=… and start again",
        where, entry.value, entry.value)));
  }
}

void check_shell(const TaskDef& def, const std::string& where,
                 const EnvironmentVariables& environment, std::vector<Error>& errors) {
  if (def.shell.shell.empty()) return;  // it has no command
  for (const EnvEntry& entry : def.env) {
    // The task searches it itself, and reports what it does not find.
    if (entry.name == "PATH") return;
  }
  const std::string& shell = def.shell.shell.front();
  const std::string* path = nullptr;
  for (const auto& [name, value] : environment) {
    if (name == "PATH") path = &value;
  }
  bool is_path = shell.find('/') != std::string::npos;
  bool is_there = is_path ? shell.front() != '/' || ::access(shell.c_str(), X_OK) == 0
                          : !find_in_path(shell, path).empty();
  if (is_there) return;
  errors.push_back(user_error(fmt::format(
      "{} needs the shell `{}`, which {}: install it, or name another with "
      "`shell = {{ \"sh\", \"-eu\", \"-c\" }}`",
      where, shell, is_path ? "is not a program on this machine" : "was not found in PATH")));
}

/// Adds an error if no worker has the memory or the GPUs that a task requests. While no worker has
/// joined, nothing is rejected. The error names the worker with the most GPUs.
void check_resources(const Resources& resources, const std::string& where, const Capacity& capacity,
                     std::vector<Error>& errors) {
  int64_t memory = 0;
  std::string gpu_reason;
  bool has_gpus = false;
  const core::WorkerInfo* named = nullptr;
  for (const core::WorkerInfo& worker : capacity.workers) {
    memory = std::max(memory, worker.memory_bytes);
    std::string why_none =
        capacity.is_cluster ? "its driver reported none" : capacity.gpus.why_none;
    std::string reason = gpu_unsatisfiable_reason(resources, worker.gpus, why_none);
    has_gpus = has_gpus || reason.empty();
    if (capacity.is_cluster && !reason.empty())
      reason += worker.name.empty() ? " (the head's machine)"
                                    : fmt::format(" (the worker `{}`)", worker.name);
    bool is_first = named == nullptr || (named->name.empty() && named->gpus.empty());
    if (!is_first && worker.gpus.size() <= named->gpus.size()) continue;
    named = &worker;
    gpu_reason = std::move(reason);
  }
  if (capacity.workers.empty()) return;
  if (resources.memory_bytes > memory) {
    errors.push_back(user_error(fmt::format(
        "{} asks for {} of memory, and {} has {}: ask for less, or run it where there is more",
        where, format_bytes(static_cast<uint64_t>(resources.memory_bytes)),
        capacity.is_cluster ? "the largest of the workers" : "this machine",
        format_bytes(static_cast<uint64_t>(memory)))));
  }
  bool is_known = capacity.is_cluster ? capacity.is_closed : capacity.has_searched_gpus;
  if (!has_gpus && is_known) errors.push_back(user_error(where + " " + gpu_reason));
}

/// A core state with this machine, or the cluster's workers, and no workers that may join.
core::State state_of(const Capacity& capacity) {
  core::State state;
  // The head's machine, if it runs tasks, is one of many.
  size_t first = capacity.is_cluster ? 1 : 0;
  state.workers.resize(first + capacity.workers.size());
  state.announced = capacity.announced;
  for (size_t i = 0; i < capacity.workers.size(); i++)
    state.workers[first + i].info = capacity.workers[i];
  return state;
}

/// Checks `where`. Only workers have labels; in a cluster more workers may join.
void check_where(const TaskDef& def, const std::string& where, const Capacity& capacity,
                 std::vector<Error>& errors, std::vector<std::string>& warnings) {
  const std::string& requested = def.resources.where;
  if (requested.empty() || capacity.workers.empty()) return;
  if (capacity.is_closed) {
    std::string reason = core::selector_unsatisfiable_reason(state_of(capacity), def.resources);
    if (!reason.empty()) errors.push_back(user_error(where + " " + reason));
    return;
  }
  bool is_there = std::any_of(
      capacity.workers.begin(), capacity.workers.end(),
      [&](const core::WorkerInfo& worker) { return matches_selector(requested, worker.labels); });
  if (!is_there)
    warnings.push_back(
        fmt::format("{} runs where `{}`, and no worker has such labels yet: it waits for one",
                    where, requested));
}

/// The same for custom resources.
void check_custom_resources(const TaskDef& def, const std::string& where, const Capacity& capacity,
                            std::vector<Error>& errors, std::vector<std::string>& warnings) {
  const ResourceQuantities& requested = def.resources.custom_resources;
  if (requested.empty() || capacity.workers.empty()) return;
  if (capacity.is_closed) {
    std::string reason = core::custom_resource_unsatisfiable_reason(
        state_of(capacity), def.resources, core::is_head_only(def));
    if (!reason.empty()) errors.push_back(user_error(where + " " + reason));
    return;
  }
  bool is_there = std::any_of(
      capacity.workers.begin(), capacity.workers.end(),
      [&](const core::WorkerInfo& worker) { return fits(worker.custom_resources, requested); });
  if (!is_there)
    warnings.push_back(fmt::format("{} asks for {}, and no machine has that yet: it waits for one",
                                   where, words_of(requested)));
}

/// Rejects tasks that do not fit on a requested node, which would stay idle at the user's cost.
void check_requested_nodes(const TaskDef& def, const std::string& where,
                           const RequestedNodes& requested, std::vector<Error>& errors,
                           std::vector<std::string>& warnings) {
  if (core::is_head_only(def)) return;
  const Resources& needs = def.resources;
  if (!fits(requested.custom_resources, needs.custom_resources))
    errors.push_back(user_error(fmt::format(
        "{} asks for {}, and each node of Slurm has {}: `--resource NAME=N` says what one has",
        where, words_of(needs.custom_resources),
        requested.custom_resources.empty() ? "no such resource"
                                           : words_of(requested.custom_resources))));
  if (requested.gpus && needs.gpus_milli > int64_t{*requested.gpus} * 1000) {
    std::string text = fmt::format("{} asks for gpus = {}, and ", where, needs.gpus_milli / 1000.0);
    if (*requested.gpus > 0) {
      errors.push_back(user_error(
          fmt::format("{}each node of Slurm has --gpus-per-node {}: request more per node", text,
                      *requested.gpus)));
    } else {
      warnings.push_back(text +
                         "none were requested from Slurm: it waits if the nodes do not provide "
                         "them to every job. `--gpus-per-node N` requests them");
    }
  }
  bool is_of_a_job = needs.where.find(slurm::kJobLabel) != std::string::npos;
  if (!needs.where.empty() && !is_of_a_job && !matches_selector(needs.where, {}))
    warnings.push_back(
        fmt::format("{} runs where `{}`, and nodes of Slurm have no label but {}: it waits for a "
                    "worker that you start",
                    where, needs.where, slurm::kJobLabel));
}

/// Checks a gang. In a cluster its ranks wait for workers that may join; their CPUs may be reduced
/// instead.
void check_gang(const TaskDef& def, const std::string& where, const Capacity& capacity,
                std::vector<Error>& errors, std::vector<std::string>& warnings) {
  bool is_open = def.resources.gpus_milli > 0 && !capacity.has_searched_gpus;
  if (!def.resources.is_gang() || capacity.workers.empty() || is_open) return;
  core::State state = state_of(capacity);
  std::string reason = core::gang_unsatisfiable_reason(state, def.resources);
  if (!reason.empty()) {
    if (capacity.is_closed) {
      errors.push_back(user_error(where + " " + reason));
    } else {
      warnings.push_back(where + " " + reason + ". It waits for workers that have it");
    }
    return;
  }
  int32_t cpus_milli = core::gang_cpus_of(state, def.resources);
  if (cpus_milli >= def.resources.cpus_milli) return;
  if (capacity.is_cluster) {
    warnings.push_back(fmt::format(
        "{} asks for {} ranks of cpus = {}, and the workers have fewer CPUs: unless others join, "
        "each rank runs with cpus = {}",
        where, def.resources.ranks, def.resources.cpus_milli / 1000.0, cpus_milli / 1000.0));
    return;
  }
  warnings.push_back(fmt::format(
      "{} asks for {} ranks of cpus = {}, and there are {} CPU slots: the ranks share them", where,
      def.resources.ranks, def.resources.cpus_milli / 1000.0, capacity.cpus_milli() / 1000));
}

}  // namespace

std::vector<Error> check_requirements(const Plan& plan, const EnvironmentVariables& environment,
                                      const Capacity& capacity,
                                      std::vector<std::string>& warnings) {
  std::vector<Error> errors;
  for (const std::string& problem : capacity.gpus.problems) {
    if (!capacity.gpus.gpus.empty()) warnings.push_back(problem);
  }
  if (capacity.workers.empty() && !capacity.requested)
    warnings.push_back("this head has no worker now: tasks wait for one");
  std::vector<bool> is_called(plan.defs.size());
  for (const TaskNode& node : plan.nodes) {
    if (node.kind == NodeKind::when) continue;
    is_called[node.def] = true;
    const std::string& gate = plan.defs[node.def].service.canary.gate;
    auto task = std::ranges::find(plan.defs, gate, &TaskDef::name);
    if (!gate.empty() && task != plan.defs.end())
      is_called[static_cast<size_t>(task - plan.defs.begin())] = true;
  }
  int32_t cpus_milli = capacity.cpus_milli();
  // What a remote worker has is known only there.
  if (!capacity.is_cluster) check_environments(plan, is_called, environment, errors);
  check_service_ports(plan, errors);
  for (const TaskDef& def : plan.defs) {
    std::string where = fmt::format("{}:{}: the task `{}`", def.file, def.line, def.name);
    check_environment(def, where, environment, errors, warnings);
    check_shell(def, where, environment, errors);
    // A task that only dynamic tasks may call is checked when it is called.
    if (!is_called[static_cast<size_t>(&def - plan.defs.data())]) continue;
    if (def.kind == TaskKind::service)
      check_service_files(def.service, where, environment, errors, warnings);
    bool is_cut = def.resources.cpus_milli > cpus_milli && cpus_milli > 0;
    if (is_cut && !def.resources.is_gang()) {
      warnings.push_back(
          fmt::format("{} asks for cpus = {}, but there are {} CPU slots: it runs with {}", where,
                      def.resources.cpus_milli / 1000.0, cpus_milli / 1000, cpus_milli / 1000));
    }
    size_t known = errors.size();
    check_resources(def.resources, where, capacity, errors);
    check_where(def, where, capacity, errors, warnings);
    check_custom_resources(def, where, capacity, errors, warnings);
    if (capacity.requested)
      check_requested_nodes(def, where, *capacity.requested, errors, warnings);
    if (errors.size() == known) check_gang(def, where, capacity, errors, warnings);
  }
  return errors;
}

}  // namespace flow
