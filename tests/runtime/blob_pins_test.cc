// Blobs that garbage collection keeps for runs that do not exist yet.
#include "engine/runtime/blob_pins.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("a blob is pinned until the last of its pins ends") {
  BlobPins pins;
  const Digest a = sha256("a"), b = sha256("b");
  auto first = pins.pin({a, b});
  auto second = pins.pin({a});
  CHECK(pins.all().size() == 3);
  first.reset();
  CHECK(pins.all() == std::vector<Digest>{a});
  second.reset();
  CHECK(pins.empty());
}

TEST_CASE("a collection waits until nothing is held") {
  BlobPins pins;
  {
    auto first = pins.hold();
    auto second = pins.hold();  // several at once
    CHECK(second.owns_lock());
    std::shared_mutex& collecting = *first.mutex();
    CHECK_FALSE(collecting.try_lock());
  }
  auto alone = pins.lock_for_collection();
  std::shared_mutex& collecting = *alone.mutex();
  CHECK_FALSE(collecting.try_lock_shared());
}
