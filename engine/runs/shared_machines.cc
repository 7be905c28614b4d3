#include "engine/runs/shared_machines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/gpu_faults.hpp"

namespace flow {

namespace {

std::string shown(const core::WorkerInfo& info) {
  return info.name.empty() ? "the head" : "`" + info.name + "`";
}

void append(std::string& list, const std::string& word) {
  list += (list.empty() ? "" : ", ") + word;
}

/// UUIDs of a device are the same in all processes.
const core::WorkerInfo* owner_of(const core::State& state, const std::string& uuid) {
  for (const core::WorkerState& worker : state.workers)
    if (!worker.is_lost() && core::find_gpu(worker.info.gpus, uuid)) return &worker.info;
  return nullptr;
}

}  // namespace

void SharedMachines::add(const core::State& state, core::WorkerInfo& info, Hardware machine) {
  workers_[info.name] = {info.gpus, std::move(machine)};
  std::erase_if(info.gpus, [&](const Gpu& gpu) {
    const core::WorkerInfo* owner = owner_of(state, gpu.uuid);
    return owner != nullptr && owner->name != info.name;
  });
}

void SharedMachines::gpu_failed(const std::string& name, const std::string& uuid,
                                const std::string& fault, bool is_dead) {
  auto found = workers_.find(name);
  if (found == workers_.end()) return;
  for (Gpu& gpu : found->second.gpus) {
    if (gpu.uuid != uuid || !core::is_new_fault(gpu, is_dead)) continue;
    gpu.fault = fault;
    gpu.is_dead = gpu.is_dead || is_dead;
  }
}

std::vector<core::GpusFound> SharedMachines::orphans(const core::State& state) const {
  std::vector<core::GpusFound> found;
  std::vector<Gpu> given;
  for (size_t at = 1; at < state.workers.size(); at++) {
    const core::WorkerState& worker = state.workers[at];
    auto offer = workers_.find(worker.info.name);
    if (!worker.takes_attempts() || offer == workers_.end()) continue;
    core::GpusFound event{{}, static_cast<core::WorkerId>(at)};
    for (const Gpu& gpu : offer->second.gpus) {
      if (owner_of(state, gpu.uuid) != nullptr || core::find_gpu(given, gpu.uuid)) continue;
      given.push_back(gpu);
      event.gpus.push_back(gpu);
    }
    if (!event.gpus.empty()) found.push_back(std::move(event));
  }
  return found;
}

std::string SharedMachines::note_of(const core::State& state, const std::string& name) const {
  for (const core::WorkerState& worker : state.workers) {
    if (worker.info.name != name || worker.is_lost()) continue;
    std::string note = gpu_note(state, worker.info);
    std::string excess = excess_note(state, worker.info);
    return note + (note.empty() || excess.empty() ? "" : "; ") + excess;
  }
  return "";
}

std::string SharedMachines::gpu_note(const core::State& state, const core::WorkerInfo& info) const {
  auto offer = workers_.find(info.name);
  if (offer == workers_.end()) return "";
  std::string gpus, owners;
  for (const Gpu& gpu : offer->second.gpus) {
    const core::WorkerInfo* owner = owner_of(state, gpu.uuid);
    if (owner == nullptr || owner->name == info.name) continue;
    append(gpus, gpu.uuid);
    if (owners.find(shown(*owner)) == std::string::npos) append(owners, shown(*owner));
  }
  if (gpus.empty()) return "";
  return fmt::format(
      "it also offers {}, which counts for {}: give each worker of a machine its own GPUs with "
      "CUDA_VISIBLE_DEVICES",
      gpus, owners);
}

const Hardware* SharedMachines::machine_of(const core::WorkerInfo& info) const {
  if (info.name.empty()) return &own_;
  auto found = workers_.find(info.name);
  return found == workers_.end() ? nullptr : &found->second.machine;
}

std::string SharedMachines::excess_note(const core::State& state,
                                        const core::WorkerInfo& info) const {
  const Hardware* machine = machine_of(info);
  if (machine == nullptr || machine->id.empty()) return "";
  int64_t cpus_milli = 0, memory_bytes = 0;
  std::string others;
  for (const core::WorkerState& worker : state.workers) {
    const Hardware* its = machine_of(worker.info);
    bool is_there = !worker.is_lost() && worker.info.cpus_milli > 0;
    if (!is_there || its == nullptr || its->id != machine->id) continue;
    cpus_milli += worker.info.cpus_milli;
    memory_bytes += worker.info.memory_bytes;
    if (worker.info.name != info.name) append(others, shown(worker.info));
  }
  if (others.empty()) return "";
  std::string what, options;
  if (cpus_milli > int64_t{machine->cpus} * 1000) {
    what = fmt::format("{} CPUs of {}", cpus_milli / 1000.0, machine->cpus);
    options = "--jobs";
  }
  if (memory_bytes > machine->memory_bytes) {
    what += fmt::format("{}{} of {} of memory", what.empty() ? "" : " and ",
                        format_bytes(static_cast<uint64_t>(memory_bytes)),
                        format_bytes(static_cast<uint64_t>(machine->memory_bytes)));
    options += options.empty() ? "--memory" : " and --memory";
  }
  if (what.empty()) return "";
  return fmt::format(
      "on its machine runs {} too, and together they offer {}: give each its share with {}", others,
      what, options);
}

}  // namespace flow
