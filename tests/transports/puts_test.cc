// Puts write straight into posted memory, which is released when `done` is called.
#include "tests/transports/kinds.hpp"

using namespace flow;

TEMPLATE_TEST_CASE("Puts of 0 bytes to 4 MiB arrive where they were expected", "",
                   FLOW_TRANSPORTS_PUTTING) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  auto server = two.link();
  std::vector<size_t> sizes = {0, 1, 4095, 8192, 65'536, 1'000'001, kPutBytesMax};
  std::vector<std::string> from, to;
  for (size_t size : sizes) {
    from.push_back(pattern(size, size + 1));
    to.emplace_back(size + 16, '.');
  }
  for (bool up : {true, false}) {
    Link& sender = up ? *client : *server;
    Link& receiver = up ? *server : *client;
    for (size_t i = 0; i < sizes.size(); i++) {
      Arrivals arrivals;
      Departures departures;
      std::fill(to[i].begin(), to[i].end(), '.');
      receiver.post_receive(i, {to[i].data(), sizes[i], false}, arrivals.done());
      sender.put(i, region(from[i]), departures.done());
      REQUIRE(arrivals.wait(1));
      REQUIRE(departures.wait(1));
      REQUIRE(arrivals.all()[0].ok());
      CHECK(*arrivals.all()[0] == sizes[i]);
      CHECK(departures.all()[0].ok());
      CHECK(to[i] == from[i] + std::string(16, '.'));
    }
  }
  CHECK(client->unsent_bytes() == 0);
}

TEMPLATE_TEST_CASE("200 puts at once, between frames, in both directions", "",
                   FLOW_TRANSPORTS_PUTTING) {
  constexpr size_t kPuts = 200, kBytes = 300'000;
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  auto server = two.link();
  std::vector<std::string> from, up, down;
  for (size_t i = 0; i < kPuts; i++) {
    from.push_back(pattern(kBytes + i, i));
    up.emplace_back(kBytes + i, '.');
    down.emplace_back(kBytes + i, '.');
  }
  Arrivals arrivals;
  Departures departures;
  for (size_t i = 0; i < kPuts; i++) {
    server->post_receive(i, region(up[i]), arrivals.done());
    client->post_receive(i, region(down[i]), arrivals.done());
  }
  for (size_t i = 0; i < kPuts; i++) {
    client->put(i, region(from[i]), departures.done());
    server->put(i, region(from[i]), departures.done());
    client->send(std::to_string(i));
  }
  REQUIRE(arrivals.wait(2 * kPuts));
  REQUIRE(departures.wait(2 * kPuts));
  CHECK(up == from);
  CHECK(down == from);
  for (const auto& each : departures.all()) CHECK(each.ok());
  CHECK(two.handler()->wait_frames(kPuts));
}

TEMPLATE_TEST_CASE("A put longer than its receive is an error on both sides", "",
                   FLOW_TRANSPORTS_PUTTING) {
  for (size_t size : {size_t{11}, size_t{100'000}}) {
    Two<TestType> two;
    auto handler = std::make_shared<Recorder>();
    auto client = two.connect(handler);
    std::string from(size, 'x'), to(20, '.');
    Arrivals arrivals;
    Departures departures;
    two.link()->post_receive(7, {to.data(), 10, false}, arrivals.done());
    client->put(7, region(from), departures.done());
    REQUIRE(arrivals.wait(1));
    REQUIRE(departures.wait(1));
    REQUIRE(!arrivals.all()[0].ok());
    CHECK_THAT(arrivals.all()[0].error().message, Catch::Contains("where 10 fit"));
    CHECK_FALSE(departures.all()[0].ok());
    CHECK(to == std::string(20, '.'));
    client->send("still up");
    CHECK(two.handler()->wait_frames(1));
  }
}

TEMPLATE_TEST_CASE("A put shorter than its receive reports the number of bytes", "",
                   FLOW_TRANSPORTS_PUTTING) {
  Two<TestType> two;
  auto client = two.connect(std::make_shared<Recorder>());
  std::string from = pattern(50'000, 1), to(80'000, '.');
  Arrivals arrivals;
  Departures departures;
  two.link()->post_receive(7, region(to), arrivals.done());
  client->put(7, region(from), departures.done());
  REQUIRE(arrivals.wait(1));
  REQUIRE(arrivals.all()[0].ok());
  CHECK(*arrivals.all()[0] == from.size());
  CHECK(to == from + std::string(30'000, '.'));
  CHECK(departures.wait(1));
}

TEMPLATE_TEST_CASE("Puts without a receive are dropped, and the sender is notified", "",
                   FLOW_TRANSPORTS_PUTTING) {
  Two<TestType> two;
  auto client = two.connect(std::make_shared<Recorder>());
  std::string small(10, 'x'), large(1'000'000, 'x');
  Departures departures;
  for (int i = 0; i < 100; i++) {
    client->put(1, region(small), departures.done());
    client->put(2, region(large), departures.done());
  }
  REQUIRE(departures.wait(200));
  for (const auto& each : departures.all()) CHECK_FALSE(each.ok());
  client->send("still up");
  CHECK(two.handler()->wait_frames(1));
}

TEMPLATE_TEST_CASE("A tag has one receive at a time, until it is cancelled", "",
                   FLOW_TRANSPORTS_PUTTING) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  auto server = two.link();
  std::string first(100, '.'), second(100, '.'), from = pattern(100, 3);
  Arrivals of_first, of_second, of_third;
  server->post_receive(9, region(first), of_first.done());
  server->post_receive(9, region(second), of_second.done());
  REQUIRE(of_second.wait(1));
  CHECK_FALSE(of_second.all()[0].ok());
  server->cancel_receive(9);
  server->cancel_receive(9);
  server->cancel_receive(10);
  REQUIRE(of_first.wait(1));
  CHECK_FALSE(of_first.all()[0].ok());
  server->post_receive(9, region(second), of_third.done());
  Departures departures;
  client->put(9, region(from), departures.done());
  REQUIRE(of_third.wait(1));
  CHECK(of_third.all()[0].ok());
  CHECK(second == from);
  CHECK(first == std::string(100, '.'));
  REQUIRE(departures.wait(1));
  CHECK(of_first.all().size() == 1);
  CHECK(of_second.all().size() == 1);
}

TEMPLATE_TEST_CASE(
    "A put above the size limit is rejected, and so is one to GPU memory that is not accepted", "",
    FLOW_TRANSPORTS_PUTTING) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  std::string bytes(kPutBytesMax + 1, 'x');
  Departures departures;
  client->put(1, region(bytes), departures.done());
  REQUIRE(departures.wait(1));
  CHECK_FALSE(departures.all()[0].ok());
  if (two.client->takes_device_memory()) return;
  Arrivals arrivals;
  client->put(1, {bytes.data(), 100, true}, departures.done());
  client->post_receive(1, {bytes.data(), 100, true}, arrivals.done());
  REQUIRE(departures.wait(2));
  REQUIRE(arrivals.wait(1));
  CHECK_THAT(departures.all()[1].error().message, Catch::Contains("GPU"));
  CHECK_THAT(arrivals.all()[0].error().message, Catch::Contains("GPU"));
}
