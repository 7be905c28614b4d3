// Where the ranks of a gang go.
#pragma once
#include <optional>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// A place for each rank, as many as find room from needs.ranks to needs.ranks_max, or none where
/// too few do. Whole GPUs are such as NVLink joins, on one host if one has them for all, or on few
/// hosts of one clique; else on one host if that has room for all; else on few hosts with one
/// `rack` label; else on few racks. Hosts without the label are one rack.
std::optional<std::vector<Placement>> place_gang(const State& state,
                                                 std::vector<FreeResources> free_by_worker,
                                                 const SchedulingClass& request);

/// How many ranks, up to needs.ranks_max, find room on a host of which that is free. Of a unit that
/// is no gang one, or none.
uint32_t placeable_ranks(const State& state, WorkerId at, const FreeResources& free,
                         const SchedulingClass& request);

}  // namespace flow::core
