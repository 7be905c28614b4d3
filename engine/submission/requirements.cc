// Whether what tasks need is there, before anything runs.
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

namespace flow {

int32_t Machine::cpus_milli() const {
  int32_t most = 0;
  for (const core::WorkerInfo& worker : workers) most = std::max(most, worker.cpus_milli);
  return most;
}

std::string slurm_job_inside(const SlurmOptions& options) {
  bool asks = options.nodes > 0 || options.nodes_max > 0;
  const char* job = std::getenv("SLURM_JOB_ID");
  return asks || job == nullptr ? "" : job;
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

// Options that are Slurm's own, and an allocation that is there already, may bring some.
AskedNodes nodes_asked_for(const SlurmOptions& options,
                           const ResourceQuantities& custom_resources) {
  bool may_bring_some =
      !slurm_job_inside(options).empty() ||
      std::any_of(options.arguments.begin(), options.arguments.end(), [](const std::string& each) {
        return each.find("gpu") != std::string::npos || each.starts_with("--gres");
      });
  if (may_bring_some && options.gpus_per_node == 0) return {named, std::nullopt};
  return {named, options.gpus_per_node};
}

namespace {

void check_environment(const TaskDef& def, const std::string& where, const Environment& environment,
                       std::vector<Error>& errors, std::vector<std::string>& warnings) {
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

void check_shell(const TaskDef& def, const std::string& where, const Environment& environment,
                 std::vector<Error>& errors) {
  if (def.kind != TaskKind::shell || def.shell.shell.empty()) return;
  for (const EnvEntry& entry : def.env) {
    if (entry.name == "PATH") return;  // the task looks elsewhere, and says what it does not find
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

/// Adds an error if no machine has the memory or the GPUs that a task asks for. While no worker has
/// joined, nothing is refused. The error names the machine with the most GPUs.
void check_resources(const Resources& resources, const std::string& where, const Machine& machine,
                     std::vector<Error>& errors) {
  int64_t memory = 0;
  std::string gpu_lack;
  bool has_gpus = false;
  const core::WorkerInfo* named = nullptr;
  for (const core::WorkerInfo& worker : machine.workers) {
    memory = std::max(memory, worker.memory_bytes);
    std::string why_none = machine.is_cluster ? "its driver reported none" : machine.gpus.why_none;
    std::string reason = gpu_unsatisfiable_reason(resources, worker.gpus, why_none);
    has_gpus = has_gpus || reason.empty();
    if (machine.is_cluster && !reason.empty())
      reason += worker.name.empty() ? " (the head's machine)"
                                    : fmt::format(" (the worker `{}`)", worker.name);
    bool is_first = named == nullptr || (named->name.empty() && named->gpus.empty());
    if (!is_first && worker.gpus.size() <= named->gpus.size()) continue;
    named = &worker;
    gpu_lack = std::move(reason);
  }
  if (machine.workers.empty()) return;
  if (resources.memory_bytes > memory) {
    errors.push_back(user_error(fmt::format(
        "{} asks for {} of memory, and {} has {}: ask for less, or run it where there is more",
        where, format_bytes(static_cast<uint64_t>(resources.memory_bytes)),
        machine.is_cluster ? "the largest of the workers" : "this machine",
        format_bytes(static_cast<uint64_t>(memory)))));
  }
  bool is_known = machine.is_cluster ? machine.is_closed : machine.has_sought_gpus;
  if (!has_gpus && is_known) errors.push_back(user_error(where + " " + gpu_lack));
}

/// The machine, or those of the cluster, as the core sees them, with no others to join.
core::State state_of(const Machine& machine) {
  core::State state;
  size_t first = machine.is_cluster ? 1 : 0;  // the head's, if it runs tasks, is one of many
  state.workers.resize(first + machine.workers.size());
  state.announced = machine.announced;
  for (size_t i = 0; i < machine.workers.size(); i++)
    state.workers[first + i].info = machine.workers[i];
  return state;
}

/// Labels are a worker's; of a cluster others may come.
void check_where(const TaskDef& def, const std::string& where, const Machine& machine,
                 std::vector<Error>& errors, std::vector<std::string>& warnings) {
  const std::string& asked = def.resources.where;
  if (asked.empty() || machine.workers.empty()) return;
  if (machine.is_closed) {
    std::string reason = core::selector_unsatisfiable_reason(state_of(machine), def);
    if (!reason.empty()) errors.push_back(user_error(where + " " + reason));
    return;
  }
  bool is_there = std::any_of(
      machine.workers.begin(), machine.workers.end(),
      [&](const core::WorkerInfo& worker) { return matches_selector(asked, worker.labels); });
  if (!is_there)
    warnings.push_back(fmt::format(
        "{} runs where `{}`, and no worker has such labels yet: it waits for one", where, asked));
}

/// As labels are.
void check_named(const TaskDef& def, const std::string& where, const Machine& machine,
                 std::vector<Error>& errors, std::vector<std::string>& warnings) {
  const ResourceQuantities& asked = def.resources.custom_resources;
  if (asked.empty() || machine.workers.empty()) return;
  if (machine.is_closed) {
    std::string reason = core::custom_resource_unsatisfiable_reason(state_of(machine), def);
    if (!reason.empty()) errors.push_back(user_error(where + " " + reason));
    return;
  }
  bool is_there = std::any_of(
      machine.workers.begin(), machine.workers.end(),
      [&](const core::WorkerInfo& worker) { return fits(worker.custom_resources, asked); });
  if (!is_there)
    warnings.push_back(fmt::format("{} asks for {}, and no machine has that yet: it waits for one",
                                   where, words_of(asked)));
}

/// The nodes of a scheduler stay idle, and are paid for, where nothing of a run fits on one.
void check_asked(const TaskDef& def, const std::string& where, const AskedNodes& asked,
                 std::vector<Error>& errors, std::vector<std::string>& warnings) {
  if (core::is_head_only(def)) return;
  const Resources& needs = def.resources;
  if (!fits(asked.custom_resources, needs.custom_resources))
    errors.push_back(user_error(fmt::format(
        "{} asks for {}, and each node of Slurm has {}: `--resource NAME=N` says what one has",
        where, words_of(needs.custom_resources),
        asked.custom_resources.empty() ? "no such resource" : words_of(asked.custom_resources))));
  if (asked.gpus && needs.gpus_milli > int64_t{*asked.gpus} * 1000) {
    std::string text = fmt::format("{} asks for gpus = {}, and ", where, needs.gpus_milli / 1000.0);
    if (*asked.gpus > 0) {
      errors.push_back(user_error(
          fmt::format("{}each node of Slurm has --gpus-per-node {}: ask for more of a node", text,
                      *asked.gpus)));
    } else {
      warnings.push_back(text +
                         "Slurm was asked for none: it waits if the nodes have none that they "
                         "give to all. `--gpus-per-node N` asks for them");
    }
  }
  bool is_of_a_job = needs.where.find(slurm::kJobLabel) != std::string::npos;
  if (!needs.where.empty() && !is_of_a_job && !matches_selector(needs.where, {}))
    warnings.push_back(
        fmt::format("{} runs where `{}`, and nodes of Slurm have no label but {}: it waits for a "
                    "worker that joins by hand",
                    where, needs.where, slurm::kJobLabel));
}

/// Of a cluster others may come, for whom all its ranks wait, and the CPUs that they ask for do
/// not.
void check_gang(const TaskDef& def, const std::string& where, const Machine& machine,
                std::vector<Error>& errors, std::vector<std::string>& warnings) {
  bool is_open = def.resources.gpus_milli > 0 && !machine.has_sought_gpus;
  if (!def.resources.is_gang() || machine.workers.empty() || is_open) return;
  core::State state = state_of(machine);
  std::string reason = core::gang_unsatisfiable_reason(state, def);
  if (!reason.empty()) {
    if (machine.is_closed) {
      errors.push_back(user_error(where + " " + reason));
    } else {
      warnings.push_back(where + " " + reason + ". It waits for workers that have it");
    }
    return;
  }
  int32_t cpus_milli = core::gang_cpus_of(state, def);
  if (cpus_milli >= def.resources.cpus_milli) return;
  if (machine.is_cluster) {
    warnings.push_back(fmt::format(
        "{} asks for {} ranks of cpus = {}, and the workers have fewer CPUs: unless others join, "
        "each rank runs with cpus = {}",
        where, def.resources.ranks, def.resources.cpus_milli / 1000.0, cpus_milli / 1000.0));
    return;
  }
  warnings.push_back(fmt::format(
      "{} asks for {} ranks of cpus = {}, and there are {} CPU slots: they share them", where,
      def.resources.ranks, def.resources.cpus_milli / 1000.0, machine.cpus_milli() / 1000));
}

}  // namespace

std::vector<Error> check_needs(const Plan& plan, const Environment& environment,
                               const Machine& machine, std::vector<std::string>& warnings) {
  std::vector<Error> errors;
  for (const std::string& problem : machine.gpus.problems) {
    if (!machine.gpus.gpus.empty()) warnings.push_back(problem);
  }
  if (machine.workers.empty() && !machine.asked)
    warnings.push_back("this head has no worker now: tasks wait for one");
  std::vector<bool> is_called(plan.defs.size());
  for (const TaskNode& node : plan.nodes) {
    if (node.kind != NodeKind::when) is_called[node.def] = true;
  }
  int32_t cpus_milli = machine.cpus_milli();
  for (const TaskDef& def : plan.defs) {
    std::string where = fmt::format("{}:{}: the task `{}`", def.file, def.line, def.name);
    check_environment(def, where, environment, errors, warnings);
    check_shell(def, where, environment, errors);
    // One that a dynamic task may call is looked at when it is called.
    if (!is_called[static_cast<size_t>(&def - plan.defs.data())]) continue;
    bool is_cut = def.resources.cpus_milli > cpus_milli && cpus_milli > 0;
    if (is_cut && !def.resources.is_gang()) {
      warnings.push_back(
          fmt::format("{} asks for cpus = {}, but there are {} CPU slots: it runs with {}", where,
                      def.resources.cpus_milli / 1000.0, cpus_milli / 1000, cpus_milli / 1000));
    }
    size_t known = errors.size();
    check_resources(def.resources, where, machine, errors);
    check_where(def, where, machine, errors, warnings);
    check_named(def, where, machine, errors, warnings);
    if (machine.asked) check_asked(def, where, *machine.asked, errors, warnings);
    if (errors.size() == known) check_gang(def, where, machine, errors, warnings);
  }
  return errors;
}

}  // namespace flow
