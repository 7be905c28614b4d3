// Assigns GPUs of a worker to attempts and keeps account of the free ones.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// UUIDs of the free devices that an attempt with this request gets; empty if it does not fit. A
/// share of a GPU goes to the fitting device with the least free (best fit). Several whole GPUs
/// come from one NVLink island, the smallest that suffices; a single GPU comes from the smallest
/// island. Ties go to the devices with the least memory.
std::vector<std::string> choose_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                                     const GpuRequest& request);
/// Whether one NVLink island has the requested number of free GPUs.
bool has_island_for(const std::vector<Gpu>& gpus, const FreeResources& free,
                    const GpuRequest& request);
/// Whether the named devices match the request in type and number and have enough free.
bool may_allocate_gpus(const std::vector<Gpu>& gpus, const FreeResources& free,
                       const GpuRequest& request, const std::vector<std::string>& uuids);
void allocate_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
                   const std::vector<std::string>& uuids);
void release_gpus(const std::vector<Gpu>& gpus, FreeResources& free, const GpuRequest& request,
                  const std::vector<std::string>& uuids);

/// The free resources of devices that nothing uses.
std::vector<FreeGpu> free_gpus(const std::vector<Gpu>& gpus);
/// Index of the device with this UUID.
std::optional<size_t> find_gpu(const std::vector<Gpu>& gpus, const std::string& uuid);
/// The GPUs that no worker can give the task, as a clause; "" if none. Always "" if the head itself
/// runs no tasks, because a worker that has them may still join.
std::string gpu_unsatisfiable_reason(const State& state, const Resources& requested,
                                     bool is_head_only);
/// Whether these GPUs, if all were free, satisfy the request (which may be for none).
bool has_gpus(const std::vector<Gpu>& gpus, const Resources& requested);
/// Whether the list is valid: no duplicate or empty UUID, and no dead device without a fault.
bool are_sound(const std::vector<Gpu>& gpus);
/// GPUs that the unit's newest attempt holds or held.
const std::vector<std::string>& gpus_of(const Unit& unit);

}  // namespace flow::core
