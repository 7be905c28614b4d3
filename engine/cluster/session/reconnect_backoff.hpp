// When a worker or a client tries its head again. Pure.
#pragma once
#include <cstdint>

#include "engine/cluster/session/session.hpp"

namespace flow::cluster {

/// Between two tries to reach the head: doubled from the first to the last, and a little random, so
/// that not all who miss a head that comes back come at once.
constexpr int64_t kRetryFirstMs = 50, kRetryLastMs = 2'000;

class ReconnectBackoff {
 public:
  /// Of a session that was open. Whether tries are counted anew: it was worth having.
  bool on_end(EndKind kind, bool was_accepted, int64_t lasted_us);
  /// Until the next try.
  int64_t pause_ms(uint64_t random);

 private:
  int tries_ = 0;
};

}  // namespace flow::cluster
