// Frames arrive whole and in order, for any size and number.
#include <atomic>

#include "tests/transports/kinds.hpp"

using namespace flow;

namespace {

/// Reads frames that hold numbers and checks that each one is the next number.
class Counter {
 public:
  void take(std::string_view frame) {
    uint64_t number = std::stoull(std::string(frame));
    signal_.with([&] {
      wrong_ += number != next_ ? 1 : 0;
      next_ = number + 1;
    });
  }
  bool wait(uint64_t count) {
    return signal_.wait([&] { return next_ >= count; });
  }
  int wrong() {
    return signal_.with([&] { return wrong_; });
  }

 private:
  Signal signal_;
  uint64_t next_ = 0;
  int wrong_ = 0;
};

std::shared_ptr<Recorder> counting(Counter& counter) {
  auto handler = std::make_shared<Recorder>();
  handler->answer([&counter](std::string_view frame) { counter.take(frame); });
  return handler;
}

}  // namespace

TEMPLATE_TEST_CASE("100,000 frames arrive in order, in both directions at once", "",
                   FLOW_TRANSPORTS) {
  constexpr uint64_t kFrames = 100'000;
  Counter up, down;
  Two<TestType> two;
  two.make_handler = [&] { return counting(up); };
  auto client = two.connect(counting(down));
  std::thread back([server = two.link()] {
    for (uint64_t i = 0; i < kFrames; i++) server->send(std::to_string(i));
  });
  for (uint64_t i = 0; i < kFrames; i++) client->send(std::to_string(i));
  back.join();
  CHECK(up.wait(kFrames));
  CHECK(down.wait(kFrames));
  CHECK(up.wrong() == 0);
  CHECK(down.wrong() == 0);
}

TEMPLATE_TEST_CASE(
    "Frames of 0 bytes to 16 MiB arrive whole, also those sent before the link is up", "",
    FLOW_TRANSPORTS) {
  std::vector<std::string> sent;
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{4095}, size_t{4096}, size_t{8000},
                      size_t{63'999}, size_t{64'000}, size_t{64'001}, size_t{8192}, size_t{65'537},
                      size_t{1} << 20, kFrameBytesMax, size_t{0}})
    sent.push_back(pattern(size, size));
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  for (const std::string& frame : sent) client->send(frame);
  REQUIRE(two.handler()->wait_frames(sent.size()));
  CHECK(two.handler()->frames() == sent);
  CHECK(two.handler()->ups() == 1);
  for (const std::string& frame : sent) two.link()->send(frame);
  REQUIRE(handler->wait_frames(sent.size()));
  CHECK(handler->frames() == sent);
  CHECK(handler->ups() == 1);
}

TEMPLATE_TEST_CASE("A frame above the size limit takes the link down", "", FLOW_TRANSPORTS) {
  Two<TestType> two;
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  client->send(std::string(kFrameBytesMax + 1, 'x'));
  CHECK_THAT(handler->wait_down(), Catch::Contains("16777217 bytes"));
  CHECK(two.handler()->wait_down() != "");
  CHECK(two.handler()->frames().empty());
}

TEMPLATE_TEST_CASE("24 clients at once: each link receives its own frames", "", FLOW_TRANSPORTS) {
  constexpr size_t kClients = 24;
  constexpr uint64_t kFrames = 500;
  std::vector<Counter> ups(kClients), downs(kClients);
  std::atomic<size_t> arrived{0};
  Two<TestType> two;
  two.make_handler = [&] { return counting(ups[arrived++]); };
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::shared_ptr<Link>> links;
  for (size_t i = 0; i < kClients; i++) {
    transports.push_back(TestType::make({}));
    auto link = transports.back()->connect(two.listener->address(), counting(downs[i]));
    REQUIRE(link.ok());
    links.push_back(*link);
    for (uint64_t n = 0; n < kFrames; n++) links.back()->send(std::to_string(n));
  }
  for (size_t i = 0; i < kClients; i++) {
    auto server = two.link(i);
    for (uint64_t n = 0; n < kFrames; n++) server->send(std::to_string(n));
  }
  for (size_t i = 0; i < kClients; i++) {
    CHECK(ups[i].wait(kFrames));
    CHECK(downs[i].wait(kFrames));
    CHECK(ups[i].wrong() + downs[i].wrong() == 0);
  }
}

TEMPLATE_TEST_CASE("Several threads send on one link: the frames of each thread stay in order", "",
                   FLOW_TRANSPORTS) {
  constexpr size_t kThreads = 4;
  constexpr uint64_t kFrames = 2'000;
  std::vector<Counter> counters(kThreads);
  auto reading = std::make_shared<Recorder>();
  reading->answer([&](std::string_view frame) {
    counters[static_cast<size_t>(frame[0] - 'a')].take(frame.substr(1));
  });
  Two<TestType> two;
  two.make_handler = [&] { return reading; };
  auto client = two.connect(std::make_shared<Recorder>());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; t++) {
    threads.emplace_back([&client, t] {
      std::string name(1, static_cast<char>('a' + t));
      for (uint64_t i = 0; i < kFrames; i++) client->send(name + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Counter& counter : counters) {
    CHECK(counter.wait(kFrames));
    CHECK(counter.wrong() == 0);
  }
}

TEMPLATE_TEST_CASE("A frame is answered from on_frame, many times in a row", "", FLOW_TRANSPORTS) {
  constexpr int kRounds = 2'000;
  Two<TestType> two;
  std::atomic<Link*> server{nullptr};
  two.make_handler = [&] {
    auto echo = std::make_shared<Recorder>();
    echo->answer([&](std::string_view frame) { server.load()->send(std::string(frame)); });
    return echo;
  };
  std::atomic<Link*> own{nullptr};
  Signal signal;
  int rounds = 0;
  auto handler = std::make_shared<Recorder>();
  handler->answer([&](std::string_view frame) {
    bool goes_on = signal.with([&] { return ++rounds < kRounds; });
    if (goes_on) own.load()->send(std::string(frame));
  });
  auto client = two.connect(handler);
  own = client.get();
  REQUIRE(handler->wait_up());
  auto link = two.link();
  server = link.get();
  client->send("ping");
  CHECK(signal.wait([&] { return rounds == kRounds; }));
}

TEMPLATE_TEST_CASE("Frames that a slow reader has not read count as unsent, and arrive in the end",
                   "", FLOW_TRANSPORTS) {
  constexpr size_t kFrames = 64, kBytes = size_t{1} << 20;
  Signal gate;
  bool is_open = false;
  std::atomic<size_t> arrived{0};
  Two<TestType> two;
  two.make_handler = [&] {
    auto slow = std::make_shared<Recorder>();
    slow->answer([&](std::string_view) {
      arrived++;
      gate.wait([&] { return is_open; });
    });
    return slow;
  };
  auto handler = std::make_shared<Recorder>();
  auto client = two.connect(handler);
  REQUIRE(handler->wait_up());
  for (size_t i = 0; i < kFrames; i++) client->send(std::string(kBytes, 'x'));
  while (arrived == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  size_t unsent = client->unsent_bytes();
  gate.with([&] { is_open = true; });
  CHECK(unsent > (kFrames - 8) * kBytes);
  auto until = std::chrono::steady_clock::now() + kLong;
  while (client->unsent_bytes() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(client->unsent_bytes() == 0);
  CHECK(arrived == kFrames);
}
