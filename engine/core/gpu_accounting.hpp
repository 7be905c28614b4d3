// Which of a host's GPUs an attempt takes, and what that leaves free.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// UUIDs of the devices that an attempt of these needs gets of what is free, or none where they do
/// not fit. A share goes to the device that has the least left of those that it fits on. Several
/// whole ones are such as NVLink joins, of the fewest free ones that will do; one is such as it
/// joins to the fewest; then those of the least memory.
std::vector<std::string> choose_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                                     const GpuRequest& request);
/// Whether NVLink joins as many as are asked for, of what is free.
bool has_island_for(const std::vector<Gpu>& gpus, const FreeResources& free,
                    const GpuRequest& request);
/// Whether these devices suit the needs, are as many as those ask for, and have that much free.
bool may_take_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                   const GpuRequest& request, const std::vector<std::string>& uuids);
void take_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
               const std::vector<std::string>& uuids);
void release_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
                  const std::vector<std::string>& uuids);

/// All of them free.
std::vector<FreeGpu> free_gpus(const std::vector<Gpu>& gpus);
/// By UUID.
std::optional<size_t> find_gpu(const std::vector<Gpu>& gpus, const std::string& uuid);
/// What no host can give a task that may run there, as a clause, or "". Where the engine's machine
/// runs nothing itself this is "": a worker that has it may be yet to join.
std::string gpu_unsatisfiable_reason(const State& state, const TaskDef& def);
/// Whether these, all free, would do for one that asks for so many, or for none.
bool has_gpus(const std::vector<Gpu>& gpus, const Resources& asked);
/// Two devices of one UUID, one that is none, or one that is dead of nothing are nonsense.
bool are_sound(const std::vector<Gpu>& gpus);
/// What the unit's attempt holds, or last held.
const std::vector<std::string>& gpus_of(const Unit& unit);

}  // namespace flow::core
