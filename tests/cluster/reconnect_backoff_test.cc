#include "engine/cluster/session/reconnect_backoff.hpp"

#include <catch2/catch.hpp>
#include <vector>

namespace flow::cluster {
namespace {

constexpr EndKind kKinds[] = {EndKind::rejected, EndKind::damaged, EndKind::lost,
                              EndKind::cut,      EndKind::left,    EndKind::ended};
constexpr int64_t kLongUs = kRetryLastMs * 1000;

/// A backoff after many failed attempts.
ReconnectBackoff tired() {
  ReconnectBackoff backoff;
  for (int i = 0; i < 20; i++) (void)backoff.pause_ms(0);
  return backoff;
}

TEST_CASE("delays between attempts grow up to a limit, with some randomness") {
  ReconnectBackoff backoff;
  std::vector<int64_t> pauses;
  for (int i = 0; i < 8; i++) pauses.push_back(backoff.pause_ms(0));
  CHECK(pauses == std::vector<int64_t>{25, 50, 100, 200, 400, 800, 1000, 1000});
  for (int i = 0; i < 100; i++) (void)backoff.pause_ms(0);
  CHECK(backoff.pause_ms(1000) == kRetryLastMs);
  CHECK(backoff.pause_ms(1001) == kRetryLastMs / 2);
}

TEST_CASE("a session that lasted resets the delay") {
  for (EndKind kind : kKinds) {
    ReconnectBackoff backoff = tired();
    CHECK(backoff.on_end(kind, false, kLongUs));
    CHECK(backoff.pause_ms(0) == kRetryFirstMs / 2);
  }
}

TEST_CASE("a connection that breaks after an accepted join is reconnected at once, however often") {
  for (EndKind kind : {EndKind::cut, EndKind::damaged}) {
    ReconnectBackoff backoff = tired();
    for (int i = 0; i < 20; i++) {
      CHECK(backoff.on_end(kind, true, 0));
      CHECK(backoff.pause_ms(0) == kRetryFirstMs / 2);
    }
  }
}

TEST_CASE("after an early rejection the next attempt is delayed") {
  for (EndKind kind : kKinds) {
    bool is_broken = kind == EndKind::cut || kind == EndKind::damaged;
    for (bool was_accepted : {false, true}) {
      if (is_broken && was_accepted) continue;
      ReconnectBackoff backoff = tired();
      CHECK_FALSE(backoff.on_end(kind, was_accepted, kLongUs - 1));
      CHECK(backoff.pause_ms(0) == kRetryLastMs / 2);
    }
  }
}

}  // namespace
}  // namespace flow::cluster
