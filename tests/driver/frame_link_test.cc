// Frames over a socket of this process.
#include "engine/driver/frame_link.hpp"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>

using namespace flow;

TEST_CASE("who sends nothing in time is told from who is gone") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  SocketLink link(ends[0]);
  auto other = std::make_unique<SocketLink>(ends[1]);
  CHECK(link.receive(10).error().message == "the other side sent no whole message in time");
  uint32_t announced = 100;
  REQUIRE(::send(ends[1], &announced, sizeof announced, 0) == sizeof announced);
  CHECK(link.receive(10).error().message == "the other side sent no whole message in time");
  other.reset();
  CHECK(link.receive(60'000).error().message == "the other side is gone");
  CHECK(link.receive().error().message == "the other side is gone");
}
