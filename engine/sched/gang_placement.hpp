// Placement of a gang's ranks.
#pragma once
#include <optional>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// Placements for as many ranks as fit, from request.ranks to request.ranks_max; nothing if fewer
/// fit. Preference for whole GPUs: joined by NVLink on one worker, then on few workers of one
/// NVLink clique. Then one worker that fits all ranks, then few workers with one `rack` label, then
/// few racks. Workers without the label form one rack.
std::optional<std::vector<Placement>> place_gang(const State& state,
                                                 std::vector<FreeResources> free_by_worker,
                                                 const SchedulingClass& request);

/// Number of ranks, at most request.ranks_max, that fit into the free resources of a worker. For a
/// unit that is not a gang 1 or 0.
uint32_t placeable_ranks(const State& state, WorkerId at, const FreeResources& free,
                         const SchedulingClass& request);

}  // namespace flow::core
