// Where the ranks of a gang go, and what is kept free for one that has to wait.
#pragma once
#include <optional>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// A place for each rank, as many as find room from needs.ranks to needs.ranks_max, or none where
/// too few do. Whole GPUs are such as NVLink joins, on one host if one has them for all, or on few
/// hosts of one clique; else on one host if that has room for all; else on few hosts with one
/// `rack` label; else on few racks. Hosts without the label are one rack.
std::optional<std::vector<Placement>> place_gang(const State& state, std::vector<Room> rooms,
                                                 const ReadyClass& needs);

/// Whether an attempt that starts now is known to end by `at`. Of what has not ended yet nothing is
/// known.
bool ends_by(const State& state, const Run& run, UnitId unit, Time at);

/// When a gang that has to wait is expected to find room, and what else is free then.
struct Reservation {
  Time at = 0;
  std::vector<Room> rooms;  // by host, without what the gang takes
};
/// `rooms` is what is free beside the proposals. None where the gang would find no room if nothing
/// ran.
std::optional<Reservation> reserve(const State& state, std::vector<Room> rooms,
                                   const std::vector<Event>& proposals, const ReadyClass& needs);

/// The unit for which what is free is kept: the first gang that finds no room now, and will.
const ReadyHead* waiting_gang(const State& state);

}  // namespace flow::core
