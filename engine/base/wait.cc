#include "engine/base/wait.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace flow {

bool wait_ready(int descriptor, short events, Deadline deadline) {
  while (true) {
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wait{descriptor, events, 0};
    int ready = ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left.count(), INT_MAX)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace flow
