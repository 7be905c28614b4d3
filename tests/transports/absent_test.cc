// The error of a build without UCX.
#include "tests/transports/kinds.hpp"

using namespace flow;

TEST_CASE("a build without UCX says what is missing and what to do") {
#if FLOW_TEST_UCX
  SUCCEED("this build has UCX");
#else
  auto made = make_ucx_transport({}, true);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(made.error().message, Catch::Contains("without UCX") && Catch::Contains("libucx-dev"));
  WARN("skipped over UCX: this build is without it");
#endif
}
