// How links end, and that their memory is released then.
#include <atomic>
#include <ctime>

#include "tests/transports/kinds.hpp"

using namespace flow;

namespace {

/// Records whether its link has gone down, after which the link must not notify it.
class Strict final : public Recorder {
 public:
  void on_down(const Error& why) override {
    Recorder::on_down(why);
    is_down = true;
  }
  std::atomic<bool> is_down{false};
};

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

TEMPLATE_TEST_CASE("Close with a flush: earlier frames arrive, later ones do not", "",
                   FLOW_TRANSPORTS) {
  constexpr size_t kFrames = 1'000;
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  for (size_t i = 0; i < kFrames; i++) client->send(std::string(5'000, 'x'));
  client->close(60'000);
  client->send("too late");
  Departures departures;
  std::string bytes(10, 'x');
  client->put(1, region(bytes), departures.done());
  REQUIRE(departures.wait(1));
  CHECK_FALSE(departures.all()[0].ok());
  CHECK_THAT(handler->wait_down(), Catch::Contains("closed"));
  CHECK(two.handler()->wait_down() != "");
  CHECK(two.handler()->frames().size() == kFrames);
  CHECK(handler->downs() == 1);
}

TEMPLATE_TEST_CASE("Close without a flush: both sides are notified once", "", FLOW_TRANSPORTS) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  auto other = two.handler();
  client->close(0);
  client->close(0);
  client->close(1'000);
  CHECK_THAT(handler->wait_down(), Catch::Contains("closed"));
  CHECK(other->wait_down() != "");
  client.reset();
  two.drop_links();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(handler->downs() == 1);
  CHECK(other->downs() == 1);
}

TEMPLATE_TEST_CASE("A link is closed by its destructor, even in its own handler", "",
                   FLOW_TRANSPORTS) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  Signal signal;
  handler->answer([&](std::string_view) { signal.with([&] { client.reset(); }); });
  two.link()->send("go");
  CHECK_THAT(handler->wait_down(), Catch::Contains("closed"));
  CHECK(two.handler()->wait_down() != "");
}

TEMPLATE_TEST_CASE("A refused link goes down without having been up", "", FLOW_TRANSPORTS) {
  auto server = TestType::make({});
  auto client = TestType::make({});
  auto listener = server->listen("127.0.0.1:0", [](auto) { return nullptr; });
  REQUIRE(listener.ok());
  auto handler = std::make_shared<Recorder>();
  auto link = client->connect((*listener)->address(), handler);
  REQUIRE(link.ok());
  (*link)->send("never read");
  CHECK(handler->wait_down() != "");
  CHECK(handler->ups() == 0);
}

TEMPLATE_TEST_CASE("A link to an address without a listener goes down", "", FLOW_TRANSPORTS) {
  auto server = TestType::make({});
  auto client = TestType::make({});
  auto listener = server->listen("127.0.0.1:0", [](auto) { return nullptr; });
  REQUIRE(listener.ok());
  std::string address = (*listener)->address();
  listener->reset();
  auto handler = std::make_shared<Recorder>();
  auto link = client->connect(address, handler);
  REQUIRE(link.ok());
  CHECK_THAT(handler->wait_down(), Catch::Contains(address));
  CHECK(handler->ups() == 0);
  Departures departures;
  Arrivals arrivals;
  std::string bytes(10, 'x');
  (*link)->put(1, region(bytes), departures.done());
  (*link)->post_receive(1, region(bytes), arrivals.done());
  CHECK(departures.wait(1));
  CHECK(arrivals.wait(1));
}

TEMPLATE_TEST_CASE("An invalid address is reported at once", "", FLOW_TRANSPORTS) {
  auto transport = TestType::make({});
  for (const char* wrong : {"", "nowhere", "127.0.0.1", "127.0.0.1:", ":7700", "127.0.0.1:70000",
                            "127.0.0.1:7x", "::1:7700", "[::1:7700"}) {
    CAPTURE(wrong);
    auto link = transport->connect(wrong, std::make_shared<Recorder>());
    REQUIRE_FALSE(link.ok());
    CHECK_THAT(link.error().message, Catch::Contains("host and a port"));
    CHECK_FALSE(transport->listen(wrong, [](auto) { return nullptr; }).ok());
  }
}

TEMPLATE_TEST_CASE("A listener gets its address at once, and again after the address was released",
                   "", FLOW_TRANSPORTS) {
  auto transport = TestType::make({});
  auto accept = [](std::shared_ptr<Link>) { return nullptr; };
  auto first = transport->listen("127.0.0.1:0", accept);
  REQUIRE(first.ok());
  std::string address = (*first)->address();
  CHECK_FALSE(Catch::contains(address, ":0"));
  auto second = transport->listen(address, accept);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.error().message, Catch::Contains(address));
  first->reset();
  CHECK(transport->listen(address, accept).ok());
}

TEMPLATE_TEST_CASE(
    "The peer's transport ends during puts: every `done` is called, and the memory is released", "",
    FLOW_TRANSPORTS_PUTTING) {
  constexpr size_t kPuts = 40, kBytes = size_t{1} << 20;
  for (bool server_ends : {true, false}) {
    auto from = std::make_unique<std::string>(pattern(kBytes, 1));
    auto to = std::make_unique<std::vector<std::string>>(kPuts, std::string(kBytes, '.'));
    Arrivals arrivals;
    Departures departures;
    std::atomic<int> late{0};
    Two<TestType> two;
    auto handler = std::make_shared<Strict>();
    auto client = two.connect(handler);
    auto server = two.link();
    for (size_t i = 0; i < kPuts; i++) {
      server->post_receive(i, region((*to)[i]),
                           [&, done = arrivals.done()](auto size) { done(std::move(size)); });
    }
    for (size_t i = 0; i < 2 * kPuts; i++) {
      client->put(i % kPuts, region(*from), [&, done = departures.done()](Status status) {
        late += handler->is_down ? 1 : 0;
        done(std::move(status));
      });
    }
    arrivals.wait(2);
    std::unique_ptr<Transport>& ends = server_ends ? two.server : two.client;
    if (server_ends) two.listener.reset();
    ends.reset();
    CHECK((server_ends ? two.handler()->downs() : handler->downs()) == 1);
    REQUIRE(arrivals.wait(kPuts));
    REQUIRE(departures.wait(2 * kPuts));
    CHECK(late == 0);
    from.reset();
    to.reset();
    CHECK(handler->wait_down() != "");
    CHECK(two.handler()->wait_down() != "");
    CHECK(arrivals.all().size() == kPuts);
    CHECK(departures.all().size() == 2 * kPuts);
  }
}

TEMPLATE_TEST_CASE("A link whose peer reads nothing is down at its deadline", "", FLOW_TRANSPORTS) {
  Signal gate;
  bool is_open = false;
  TransportOptions options;
  options.deadline_ms = 1'000;
  std::string told = "1000 ms";
  SECTION("the transport's deadline") {}
  SECTION("the link's own deadline, which is later") { told = "3000 ms"; }
  Two<TestType> two(options);
  two.make_handler = [&] {
    auto stuck = std::make_shared<Recorder>();
    stuck->answer([&](std::string_view) { gate.wait([&] { return is_open; }); });
    return stuck;
  };
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  if (told == "3000 ms") client->set_timeout(3'000);
  for (int i = 0; i < 10; i++) client->send(std::string(500'000, 'x'));
  CHECK_THAT(handler->wait_down(), Catch::Contains(told));
  gate.with([&] { is_open = true; });
  CHECK(two.handler()->wait_down() != "");
}

TEMPLATE_TEST_CASE("An idle link stays up beyond its deadline and uses no CPU time", "",
                   FLOW_TRANSPORTS) {
  TransportOptions options;
  options.deadline_ms = 1'000;
  Two<TestType> two(options);
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  client->send("one");
  REQUIRE(two.handler()->wait_frames(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  double before = thread_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  double used = thread_seconds() - before;
  CAPTURE(used);
  CHECK(used < 0.1);
  CHECK(handler->downs() == 0);
  client->send("two");
  CHECK(two.handler()->wait_frames(2));
}

TEMPLATE_TEST_CASE("A link describes its peer's address and the network that it uses", "",
                   FLOW_TRANSPORTS) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  REQUIRE(two.handler()->wait_up());
  CHECK_THAT(client->description(), Catch::StartsWith(two.listener->address() + " ("));
  CHECK_THAT(two.link()->description(), Catch::EndsWith(")"));
  INFO(client->description());
  if (two.client->name() == "ucx") {
    // Not a queue that both sides write to: a peer that dies during a write would block the others.
    for (const auto& link : {client, two.link()}) {
      CHECK_THAT(link->description(), Catch::Contains(": tcp"));
      CHECK_THAT(link->description(), !Catch::Contains("posix") && !Catch::Contains("sysv"));
    }
    auto refused = std::make_shared<Recorder>();
    auto early = two.client->connect("127.0.0.1:1", refused);  // without a listener
    REQUIRE(early.ok());
    CHECK((*early)->description() == "127.0.0.1:1 (ucx: not connected)");
    CHECK(refused->wait_down() != "");
  }
}
