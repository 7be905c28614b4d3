#include "engine/cluster/session/reconnect_backoff.hpp"

#include <algorithm>

namespace flow::cluster {

// A session that the head ended early was a rejection, and an immediate retry would be rejected
// too. After a broken link the worker reconnects quickly, before the head considers it lost.
bool ReconnectBackoff::on_end(EndKind kind, bool was_accepted, int64_t lasted_us) {
  bool is_broken = kind == EndKind::cut || kind == EndKind::damaged;
  bool was_good = (was_accepted && is_broken) || lasted_us >= kRetryLastMs * 1000;
  if (was_good) tries_ = 0;
  return was_good;
}

int64_t ReconnectBackoff::pause_ms(uint64_t random) {
  constexpr int kDoublings = 10;
  int64_t longest = std::min(kRetryLastMs, kRetryFirstMs << std::min(tries_, kDoublings));
  tries_++;
  return longest / 2 + static_cast<int64_t>(random % static_cast<uint64_t>(longest / 2 + 1));
}

}  // namespace flow::cluster
