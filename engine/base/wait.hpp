// Waits for a descriptor until a deadline.
#pragma once
#include <chrono>

namespace flow {

using Deadline = std::chrono::steady_clock::time_point;

/// Returns true if poll() reports one of `events`, a hang-up or an error before the deadline; false
/// at the deadline or if poll() fails. Retries after EINTR. Polls at least once unless the deadline
/// has passed already.
bool wait_ready(int descriptor, short events, Deadline deadline);

}  // namespace flow
