#include "tests/cluster/pair.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr const char* kDamaged =
    "damaged: the session with node `w1` at 10.0.0.2:41 (tcp) can no longer be trusted: the "
    "received frame is not the next one that it encrypted";

// Three messages of the worker are in transit.
struct Three : Pair {
  Three() {
    open();
    for (const char* text : {"one", "two", "three"}) REQUIRE(worker.send(text).ok());
    REQUIRE(worker.sent.size() == 3);
  }
  /// Delivers them: all before the first wrong one arrive, then the end, then nothing.
  void expect_damage_after(const Events& messages) {
    move(worker, head);
    Events events = head.events();
    REQUIRE(events.size() == messages.size() + 1);
    CHECK_THAT(events.back(), StartsWith(kDamaged));
    events.pop_back();
    CHECK(events == messages);
    CHECK(head.session->has_ended());
    CHECK_FALSE(head.send("x").ok());
    worker.end("done");
    deliver();
    live(20'000);
    CHECK(head.events().empty());
  }
};

TEST_CASE("a missing frame ends the session") {
  Three pair;
  pair.worker.sent.erase(pair.worker.sent.begin() + 1);
  pair.expect_damage_after({"message one"});
}

TEST_CASE("a duplicated frame ends the session") {
  Three pair;
  pair.worker.sent.insert(pair.worker.sent.begin(), pair.worker.sent.front());
  pair.expect_damage_after({"message one"});
}

TEST_CASE("reordered frames end the session") {
  Three pair;
  std::swap(pair.worker.sent[1], pair.worker.sent[2]);
  pair.expect_damage_after({"message one"});
}

TEST_CASE("a frame that is replayed later ends the session") {
  Three pair;
  std::string first = pair.worker.sent.front();
  pair.deliver();
  CHECK(pair.head.events() == Events{"message one", "message two", "message three"});
  pair.worker.sent.push_back(first);
  pair.expect_damage_after({});
}

TEST_CASE("a frame of another session ends this one") {
  Three other, pair;
  pair.worker.sent.front() = other.worker.sent.front();
  pair.expect_damage_after({});
}

TEST_CASE("a reflected frame ends the session") {
  Three pair;
  REQUIRE(pair.head.send("mine").ok());
  pair.worker.sent.push_front(pair.head.sent.back());
  pair.expect_damage_after({});
}

TEST_CASE("a frame with any changed bit ends the session") {
  for (size_t bit = 0;; bit++) {
    Three pair;
    std::string& frame = pair.worker.sent[1];
    if (bit == 8 * frame.size()) break;
    frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ 1 << (bit % 8));
    INFO("bit " << bit);
    pair.move(pair.worker, pair.head);
    Events events = pair.head.events();
    REQUIRE(events.size() == 2);
    CHECK(events[0] == "message one");
    CHECK_THAT(events[1], StartsWith(kDamaged));
  }
}

TEST_CASE("a truncated or extended frame ends the session, at every length") {
  for (size_t size = 0; size < 40; size++) {
    Three pair;
    if (size == pair.worker.sent[1].size()) continue;
    pair.worker.sent[1].resize(size);
    pair.expect_damage_after({"message one"});
  }
}

TEST_CASE("garbage and handshakes after the handshake end the session") {
  std::string hello = Pair().worker.sent.front();
  for (const std::string& bytes :
       {std::string(), hello, std::string(100'000, '\3'), std::string("\2")}) {
    Three pair;
    pair.worker.sent.push_front(bytes);
    pair.expect_damage_after({});
  }
}

TEST_CASE("messages cannot be read in transit") {
  Pair pair;
  pair.open();
  std::string text(200, 'k');
  REQUIRE(pair.worker.send(text).ok());
  REQUIRE(pair.worker.send(text).ok());
  std::string first = pair.worker.sent[0], second = pair.worker.sent[1];
  CHECK(first.size() == 1 + text.size() + kSealBytes);
  CHECK(first != second);
  CHECK(first.find("kkk") == std::string::npos);
}

TEST_CASE("a message may be as long as a frame allows, and no longer") {
  Pair pair;
  pair.open();
  std::string message(kMessageBytesMax, 'm');
  REQUIRE(pair.worker.send(message).ok());
  REQUIRE(pair.worker.sent.front().size() == kFrameBytesMax);
  pair.deliver();
  CHECK(pair.head.events() == Events{"message " + message});
  Status status = pair.worker.send(message + "m");
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Contains("longer than the limit of a frame"));
  CHECK(pair.worker.session->is_open());
}

TEST_CASE("nothing is sent before a session is open or after its end") {
  Pair pair;
  CHECK_THAT(pair.worker.send("x").error().message, Contains("is not open yet"));
  pair.open();
  pair.worker.end("enough");
  CHECK_THAT(pair.worker.send("x").error().message, Contains("has ended"));
}

TEST_CASE("a goodbye arrives with its reason, after all earlier messages") {
  Pair pair;
  pair.open();
  REQUIRE(pair.worker.send("last").ok());
  pair.worker.end("`flow worker` was told to stop\n\x1b[31m");
  CHECK(
      pair.worker.events() ==
      Events{"ended: the session with node `h1` at 10.0.0.1:77 (tcp) was ended: `flow worker` was "
             "told to stop  [31m"});
  pair.deliver();
  CHECK(pair.head.events() ==
        Events{"message last",
               "left: node `w1` at 10.0.0.2:41 (tcp) has left: `flow worker` was told "
               "to stop  [31m"});
  pair.worker.end("again");
  pair.head.link_down("closed");
  CHECK(pair.worker.events().empty());
  CHECK(pair.head.events().empty());
}

TEST_CASE("a link that breaks without a goodbye is reported as disconnected") {
  Pair pair;
  pair.open();
  pair.head.link_down("the peer closed the connection");
  CHECK(pair.head.events() ==
        Events{"cut: the link to node `w1` at 10.0.0.2:41 (tcp) broke without a "
               "goodbye: the peer closed the connection"});
}

TEST_CASE("an idle session is kept alive by heartbeats, which measure the round-trip time") {
  Pair pair;
  pair.open();
  pair.live(60'000);
  CHECK(pair.head.events().empty());
  CHECK(pair.worker.events().empty());
  CHECK(pair.head.session->counters().silent_us <= 1'000'000);
  // Each direction takes 20 ms of the interval between two ticks.
  auto slow = [&] {
    pair.now_us += 20'000;
    pair.move(pair.head, pair.worker);
    pair.now_us += 20'000;
    pair.move(pair.worker, pair.head);
  };
  pair.live(60'000, slow);
  CHECK(pair.head.session->counters().rtt_us.has_value());
  auto rtt_us = *pair.head.session->counters().rtt_us;
  CHECK(rtt_us > 55'000);  // 20 ms in one direction, 40 ms in the other
  CHECK(rtt_us < 65'000);
  CHECK(pair.head.events().empty());
}

TEST_CASE("a silent peer is stalled, recovers when it sends, and is lost if it does not") {
  Pair pair;
  pair.open();
  auto silence = [&] { pair.worker.sent.clear(), pair.head.sent.clear(); };
  pair.live(2'900, silence);
  CHECK(pair.head.events().empty());
  pair.live(200, silence);
  CHECK(pair.head.events() ==
        Events{"suspected: nothing was received from node `w1` at 10.0.0.2:41 (tcp) for 3.0 s"});
  pair.live(6'800, silence);
  CHECK(pair.head.events().empty());
  CHECK(pair.head.session->is_open());
  pair.live(100, silence);
  CHECK(pair.head.events() ==
        Events{"lost: nothing was received from node `w1` at 10.0.0.2:41 (tcp) "
               "for 10.0 s: its process is stopped, "
               "its machine is down, or the network between is cut"});
  CHECK(pair.head.session->has_ended());
}

TEST_CASE("a peer that sends again is no longer stalled") {
  Pair pair;
  pair.open();
  pair.live(5'000, [] {});  // all frames are delayed
  CHECK(pair.head.events().size() == 1);
  pair.deliver();
  CHECK(pair.head.events() == Events{"heard again"});
  pair.live(30'000);
  CHECK(pair.head.events().empty());
}

TEST_CASE(
    "a side that sends and receives nothing is lost too, as in a partition with data in transit") {
  Pair pair;
  pair.open();
  pair.live(10'100, [&] {
    (void)pair.head.send("into the void");
    pair.worker.sent.clear();
  });
  CHECK_THAT(pair.head.events().back(), StartsWith("lost: nothing was received from node `w1`"));
}

TEST_CASE("the head sets the silence timeout for both sides") {
  for (int64_t ms : {2'000, 60'000}) {
    SessionOptions head = options_of(Role::head);
    set_lost_after(head, ms);
    Pair pair(head, options_of(Role::worker));
    pair.deliver();
    CHECK(pair.head.events().size() == 1);
    CHECK(pair.worker.events() ==
          Events{"opened head h1 0.1.0 41 proven", "lost after " + std::to_string(ms) + " ms"});
    pair.live(120'000);
    CHECK(pair.head.events().empty());
    CHECK(pair.worker.events().empty());
    auto silence = [&] { pair.worker.sent.clear(), pair.head.sent.clear(); };
    pair.live(ms - 1'100, silence);
    CHECK(pair.head.session->is_open());
    CHECK(pair.worker.session->is_open());
    pair.live(1'200, silence);
    CHECK_THAT(pair.head.events().back(), StartsWith("lost: nothing was received from node `w1`"));
    CHECK_THAT(pair.worker.events().back(),
               StartsWith("lost: nothing was received from node `h1`"));
  }
}

TEST_CASE("a silence timeout that a worker sends is ignored") {
  SessionOptions worker = options_of(Role::worker);
  set_lost_after(worker, 2'000);
  Pair pair(options_of(Role::head), worker);
  pair.deliver();
  CHECK(pair.head.events() == Events{"opened worker w1 0.1.0 42 proven"});
  CHECK(pair.worker.events() == Events{"opened head h1 0.1.0 41 proven", "lost after 10000 ms"});
}

TEST_CASE("a silence timeout of zero from a head is ignored") {
  SessionOptions head = options_of(Role::head);
  head.heartbeat_ms = 1, head.suspect_after_ms = 2, head.lost_after_ms = 9;
  Pair pair(head, options_of(Role::worker));
  pair.move(pair.head, pair.worker);
  pair.move(pair.worker, pair.head);
  pair.move(pair.head, pair.worker);
  CHECK_THAT(pair.worker.events().back(), StartsWith("damaged: the session with node `h1`"));
}

TEST_CASE("unauthenticated frames do not count as received") {
  Pair pair;
  pair.open();
  pair.live(9'900, [&] { pair.worker.sent.clear(); });
  pair.head.events();
  pair.head.frame("noise", pair.now_us);
  CHECK_THAT(pair.head.events().at(0), StartsWith("damaged: "));
}

TEST_CASE("a process that was suspended itself does not declare its peers lost") {
  Pair pair;
  pair.open();
  pair.now_us += 3'600'000'000;
  pair.head.tick(pair.now_us);
  pair.worker.tick(pair.now_us);
  pair.deliver();
  pair.live(5'000);
  CHECK(pair.head.events().empty());
  CHECK(pair.worker.events().empty());
}

TEST_CASE("a clock that goes backwards or to its limits is harmless") {
  Pair pair;
  pair.open();
  for (int64_t now_us : {int64_t{-5}, INT64_MIN, INT64_MAX, INT64_MIN, int64_t{0}}) {
    pair.head.tick(now_us);
    pair.worker.tick(now_us);
    pair.deliver();
    CHECK(pair.head.session->is_open());
  }
  pair.now_us = 0;
  pair.live(5'000);
  CHECK(pair.head.events().empty());
  pair.live(10'100, [&] { pair.worker.sent.clear(), pair.head.sent.clear(); });
  CHECK_THAT(pair.head.events().back(), StartsWith("lost: "));
}

TEST_CASE("frames and bytes are counted") {
  Pair pair;
  pair.open();
  SessionCounters before = pair.head.session->counters(), there = pair.worker.session->counters();
  REQUIRE(pair.worker.send("12345").ok());
  pair.deliver();
  CHECK(pair.head.session->counters().frames_in == before.frames_in + 1);
  CHECK(pair.head.session->counters().bytes_in == before.bytes_in + 1 + 5 + kSealBytes);
  CHECK(pair.worker.session->counters().frames_out == there.frames_out + 1);
  CHECK(pair.worker.session->counters().bytes_out == there.bytes_out + 1 + 5 + kSealBytes);
}

TEST_CASE("a sealed put opens only for its tag, at the peer, and unchanged") {
  Pair pair;
  pair.open();
  BulkSeal here = pair.worker.session->bulk(), there = pair.head.session->bulk();
  std::string text = "rows and columns", sealed = text + std::string(kBulkSealBytes, '\0');
  here.seal(9, sealed.data(), text.size());
  CHECK(sealed.find("rows") == std::string::npos);
  auto opens = [&](const BulkSeal& seal, uint64_t tag, std::string bytes) {
    bool opened = seal.open(tag, bytes.data(), bytes.size());
    if (opened) CHECK(bytes.substr(0, text.size()) == text);
    return opened;
  };
  CHECK(opens(there, 9, sealed));
  CHECK_FALSE(opens(there, 8, sealed));
  CHECK_FALSE(opens(here, 9, sealed));
  CHECK_FALSE(opens(there, 9, sealed.substr(0, sealed.size() - 1)));
  CHECK_FALSE(opens(there, 9, sealed.substr(0, kBulkSealBytes - 1)));
  for (size_t i = 0; i < sealed.size(); i++) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    CHECK_FALSE(opens(there, 9, changed));
  }
  std::string again = text + std::string(kBulkSealBytes, '\0');
  here.seal(9, again.data(), text.size());
  CHECK(again != sealed);
  std::string empty(kBulkSealBytes, '\0');
  here.seal(1, empty.data(), 0);
  CHECK(there.open(1, empty.data(), empty.size()));
}

}  // namespace
}  // namespace flow::cluster
