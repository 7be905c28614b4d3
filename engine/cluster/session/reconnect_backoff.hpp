// The backoff with which a worker or a client reconnects to its head. Pure.
#pragma once
#include <cstdint>

#include "engine/cluster/session/session.hpp"

namespace flow::cluster {

/// Delay between two attempts: it doubles from the first value to the last, with jitter, so that
/// not all workers reconnect to a restarted head at the same time.
constexpr int64_t kRetryFirstMs = 50, kRetryLastMs = 2'000;

class ReconnectBackoff {
 public:
  /// Called when an open session ends. Returns whether the backoff was reset, because the session
  /// had lasted.
  bool on_end(EndKind kind, bool was_accepted, int64_t lasted_us);
  /// Delay before the next attempt in ms.
  int64_t pause_ms(uint64_t random);

 private:
  int tries_ = 0;
};

}  // namespace flow::cluster
