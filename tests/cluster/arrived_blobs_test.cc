// The bytes that were sent for each attempt.
#include "engine/cluster/transfer/arrived_blobs.hpp"

#include <catch2/catch.hpp>

namespace flow::cluster {

TEST_CASE("a blob that arrived counts once, and one that was there does not") {
  ArrivedBlobs arrived;
  BlobReference weights, data, other;
  weights.blob.digest = sha256("weights");
  data.blob.digest = sha256("data");
  other.blob.digest = sha256("other");
  arrived.add(weights.blob.digest, 1000);
  arrived.add(data.blob.digest, 24);
  CHECK(arrived.claim({}) == 0);
  CHECK(arrived.claim({other, weights}) == 1000);
  CHECK(arrived.claim({weights, data}) == 24);
  CHECK(arrived.claim({weights, data}) == 0);
  arrived.add(weights.blob.digest, 1000);  // it was evicted meanwhile
  CHECK(arrived.claim({weights}) == 1000);
}

}  // namespace flow::cluster
