// The folder of a served name.
#include "engine/runs/front_folder.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("a served name has one folder, which depends on the run's name and the service's") {
  // The first digits of the SHA-256 of "prod\ndigits".
  CHECK(front_folder("/s/.flow", "prod", "digits") == "/s/.flow/fronts/5423d285e15cb440");
  CHECK(front_folder("/s", "prod", "digits") != front_folder("/s", "prod", "words"));
  CHECK(front_folder("/s", "prod", "digits") != front_folder("/s", "test", "digits"));
}
