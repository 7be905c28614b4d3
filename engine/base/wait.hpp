// Waiting for a descriptor, to a deadline.
#pragma once
#include <chrono>

namespace flow {

using Deadline = std::chrono::steady_clock::time_point;

/// Whether poll found one of `events` (or an end, or an error) before the deadline; at least one
/// look is taken where that has not passed.
bool wait_ready(int descriptor, short events, Deadline deadline);

}  // namespace flow
