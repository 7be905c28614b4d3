#include "tests/cluster/pair.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

// Why a session failed, as one side sees it.
std::string refusal(End& end) {
  Events events = end.events();
  REQUIRE(events.size() == 1);
  CHECK_THAT(events[0], Catch::Matchers::StartsWith("refused: no session with 10.0.0."));
  CHECK(end.session->has_ended());
  return events[0];
}

TEST_CASE("a head and a worker with the same secret authenticate and exchange messages") {
  Pair pair;
  pair.deliver();
  CHECK(pair.head.events() == Events{"opened worker w1 0.1.0 42 proven"});
  CHECK(pair.worker.events() == Events{"opened head h1 0.1.0 41 proven"});
  REQUIRE(pair.worker.send("ready").ok());
  REQUIRE(pair.worker.send("").ok());
  REQUIRE(pair.head.send(std::string("\0binary", 7)).ok());
  pair.deliver();
  CHECK(pair.head.events() == Events{"message ready", "message "});
  CHECK(pair.worker.events() == Events{std::string("message \0binary", 15)});
}

TEST_CASE(
    "without a secret on both sides sessions open and report that the peer is not authenticated") {
  Pair pair(options_of(Role::head, nullptr), options_of(Role::worker, nullptr));
  pair.deliver();
  CHECK(pair.head.events() == Events{"opened worker w1 0.1.0 42 unproven"});
  CHECK(pair.worker.events() == Events{"opened head h1 0.1.0 41 unproven"});
  REQUIRE(pair.worker.send("hello").ok());
  pair.deliver();
  CHECK(pair.head.events() == Events{"message hello"});
}

TEST_CASE("a different secret is reported on both sides, and nothing is accepted") {
  Pair pair(options_of(Role::head, secret_of(1)), options_of(Role::worker, secret_of(2)));
  pair.deliver();
  CHECK_THAT(refusal(pair.head), Contains("did not prove that it knows the cluster's secret"));
  CHECK_THAT(refusal(pair.worker), Contains("did not prove that it knows the cluster's secret"));
  CHECK_FALSE(pair.worker.send("x").ok());
}

TEST_CASE("a secret on one side only is reported on both sides, and the other side is rejected") {
  Pair pair(options_of(Role::head), options_of(Role::worker, nullptr));
  pair.deliver();
  CHECK_THAT(
      refusal(pair.head),
      Contains("it has no secret and this has one: give both the same file with --secret-file"));
  CHECK_THAT(refusal(pair.worker), Contains("it has a secret and this has none"));
}

TEST_CASE("a different message schema is reported with both numbers and both versions") {
  SessionOptions newer = options_of(Role::worker);
  newer.schema = 4;
  newer.version = "0.2.0";
  Pair pair(options_of(Role::head), newer);
  pair.deliver();
  CHECK_THAT(
      refusal(pair.head),
      Contains("it is flow 0.2.0 with messages of schema 4; this is flow 0.1.0 with schema 3"));
  CHECK_THAT(
      refusal(pair.worker),
      Contains("it is flow 0.1.0 with messages of schema 3; this is flow 0.2.0 with schema 4"));
}

TEST_CASE("two processes of the same role cannot have a session") {
  Pair pair(options_of(Role::head), options_of(Role::head));
  pair.deliver();
  CHECK_THAT(refusal(pair.head),
             Contains("it is a head and this is a head too: a worker joins a head"));
  CHECK_THAT(refusal(pair.worker), Contains("it is a head and this is a head too"));
  Pair workers(options_of(Role::worker), options_of(Role::worker));
  workers.deliver();
  CHECK_THAT(refusal(workers.head), Contains("it is a worker and this is a worker too"));
}

TEST_CASE("a worker that connects to another worker is its peer, and not that of a head") {
  Pair workers(options_of(Role::worker), options_of(Role::peer));
  workers.deliver();
  CHECK(workers.head.events() == Events{"opened peer w1 0.1.0 42 proven"});
  CHECK(workers.worker.events() == Events{"opened worker w1 0.1.0 42 proven"});
  REQUIRE(workers.worker.send("want").ok());
  REQUIRE(workers.head.send("have").ok());
  workers.deliver();
  CHECK(workers.head.events() == Events{"message want"});
  CHECK(workers.worker.events() == Events{"message have"});

  Pair astray(options_of(Role::head), options_of(Role::peer));
  astray.deliver();
  CHECK_THAT(refusal(astray.head), Contains("it is a peer and this is a head"));
  CHECK_THAT(refusal(astray.worker), Contains("it is a head and this is a peer"));
}

TEST_CASE("a reflected handshake does not authenticate a peer") {
  Pair pair;
  std::string hello = pair.head.sent.front();
  pair.head.frame(hello, 0);
  CHECK_THAT(refusal(pair.head), Contains("this process received its own greeting"));
}

// A greeting with another version range; all else is as in the given session.
struct VersionRangeSession {
  explicit VersionRangeSession(uint16_t min, uint16_t max, const std::string& version,
                               Role role = Role::worker) {
    SessionHello greeting;
    greeting.protocol_min = min;
    greeting.protocol_max = max;
    greeting.version = version;
    greeting.schema = 3;
    greeting.role = role;
    greeting.epoch = 42;
    greeting.name = "w1";
    handshake = std::make_unique<Handshake>(greeting, secret_of(7));
  }
  std::unique_ptr<Handshake> handshake;
};

TEST_CASE(
    "a peer with another protocol version is reported with both versions and which is older") {
  Pair pair;
  VersionRangeSession later(2, 5, "0.9.0");
  pair.head.frame(later.handshake->hello(), 0);
  CHECK_THAT(refusal(pair.head),
             Contains("it is flow 0.9.0 with version 2 to 5 of the protocol; this is flow 0.1.0 "
                      "with version 1. Install the same flow on both; 0.1.0 is the older"));
  auto seen = later.handshake->accept_hello(pair.head.sent.front());
  REQUIRE_FALSE(seen.ok());
  CHECK_THAT(seen.error().message, Contains("it is flow 0.1.0 with version 1 of the protocol; "
                                            "this is flow 0.9.0 with version 2 to 5"));
}

TEST_CASE("both sides use the greatest version that both support") {
  VersionRangeSession later(1, 5, "0.9.0"), early(1, 3, "0.9.0", Role::head);
  REQUIRE(later.handshake->accept_hello(early.handshake->hello()).ok());
  REQUIRE(early.handshake->accept_hello(later.handshake->hello()).ok());
  CHECK(later.handshake->protocol() == 3);
  CHECK(early.handshake->protocol() == 3);
  std::string header(kSealHeaderBytes, 'h');
  auto taken = later.handshake->accept_proof(early.handshake->proof(header));
  REQUIRE(taken.ok());
  CHECK(*taken == header);
}

TEST_CASE("a worker of another version of flow is rejected with both versions in the message") {
  VersionRangeSession worker(1, 1, "0.9.0"), head(1, 1, "0.8.0", Role::head);
  auto refused = head.handshake->accept_hello(worker.handshake->hello());
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(
      refused.error().message,
      Contains("this head is flow 0.8.0 and the worker there is flow 0.9.0: install the same "
               "version on both"));
  CHECK_FALSE(worker.handshake->accept_hello(head.handshake->hello()).ok());
}

TEST_CASE("unknown fields of a greeting are accepted, and the proof covers them") {
  // Fields of later versions are covered by the proof: fields added in transit are detected.
  Pair pair;
  pair.worker.sent.front() += "of a later version";
  pair.deliver();
  CHECK_THAT(refusal(pair.head), Contains("or the traffic is changed on the way"));
  CHECK_THAT(refusal(pair.worker), Contains("or the traffic is changed on the way"));
}

TEST_CASE("changing any bit of a greeting or a proof is detected") {
  size_t hello_bytes = Pair().head.sent.front().size();
  size_t proof_bytes = 1 + kSealHeaderBytes + kKeyBytes;
  for (bool is_proof : {false, true}) {
    for (size_t bit = 0; bit < 8 * (is_proof ? proof_bytes : hello_bytes); bit++) {
      Pair pair;
      if (is_proof) {
        pair.move(pair.head, pair.worker);
        pair.move(pair.worker, pair.head);
      }
      std::string& frame = pair.head.sent.front();
      frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ 1 << (bit % 8));
      pair.deliver();
      INFO("proof " << is_proof << " bit " << bit);
      REQUIRE(pair.worker.session->has_ended());
      refusal(pair.worker);
    }
  }
}

TEST_CASE("a greeting or proof of any wrong length is rejected") {
  size_t hello_bytes = Pair().head.sent.front().size();
  for (size_t size = 0; size < hello_bytes; size++) {
    Pair pair;
    pair.head.sent.front().resize(size);
    pair.deliver();
    refusal(pair.worker);
  }
  for (size_t size : {0, 1, 56, 58, 500}) {
    Pair pair;
    pair.move(pair.head, pair.worker);
    pair.move(pair.worker, pair.head);
    pair.head.sent.front().resize(size);
    pair.deliver();
    CHECK_THAT(refusal(pair.worker), Contains("is not a greeting of flow"));
  }
}

TEST_CASE("a recorded session cannot be replayed") {
  Pair recorded;
  std::vector<std::string> said = {recorded.worker.sent.front()};
  recorded.move(recorded.head, recorded.worker);
  said.push_back(recorded.worker.sent.back());
  Pair pair;
  pair.head.frame(said[0], 0);
  CHECK(pair.head.events().empty());
  pair.head.frame(said[1], 0);
  CHECK_THAT(refusal(pair.head), Contains("did not prove"));
}

TEST_CASE("a side's own proof is not accepted by it") {
  Pair pair;
  pair.move(pair.worker, pair.head);
  std::string proof = pair.head.sent.back();
  pair.head.frame(proof, 0);
  CHECK_THAT(refusal(pair.head), Contains("did not prove"));
}

TEST_CASE("an intermediary without the secret cannot replace the session's keys") {
  Pair pair;
  KeyExchange own;
  std::string& hello = pair.worker.sent.front();
  hello.replace(hello.size() - kKeyBytes, kKeyBytes, own.offered());
  pair.deliver();
  CHECK_THAT(refusal(pair.head), Contains("did not prove"));
  CHECK_THAT(refusal(pair.worker), Contains("did not prove"));
  CHECK_FALSE(pair.worker.send("x").ok());
}

TEST_CASE("degenerate key exchanges are rejected") {
  Pair pair;
  std::string& hello = pair.worker.sent.front();
  hello.replace(hello.size() - kKeyBytes, kKeyBytes, std::string(kKeyBytes, '\0'));
  pair.deliver();
  CHECK_THAT(refusal(pair.head),
             Contains("the key that it offers for this session is not a valid key"));
}

TEST_CASE("before the handshake no other frame is accepted") {
  Pair other;
  other.open();
  REQUIRE(other.worker.send("sneak").ok());
  std::vector<std::string> strange = {"",
                                      "x",
                                      "GET / HTTP/1.1\r\n\r\n",
                                      std::string(1, '\1'),
                                      std::string("\1flowlink", 9),
                                      std::string(300, '\xff'),
                                      other.worker.sent.front()};
  for (const std::string& bytes : strange) {
    Pair pair;
    pair.head.frame(bytes, 0);
    CHECK_THAT(refusal(pair.head), Contains("is another program at that address"));
    Pair after;
    after.move(after.worker, after.head);
    after.head.frame(bytes, 0);
    CHECK_THAT(refusal(after.head), Contains("is not a greeting of flow"));
  }
}

TEST_CASE("a first frame of invalid length is rejected before it is read") {
  Pair pair;
  pair.worker.sent.front().resize(kHandshakeBytesMax + 1);
  pair.deliver();
  CHECK_THAT(refusal(pair.head), Contains("it began with 1025 bytes"));
}

TEST_CASE("a peer that exceeds the handshake timeout is rejected") {
  for (bool with_hello : {false, true}) {
    Pair pair;
    if (with_hello) pair.move(pair.worker, pair.head);
    pair.live(5000 - kStepMs, [] {});
    CHECK(pair.head.events().empty());
    pair.live(kStepMs, [] {});
    CHECK(pair.head.events() ==
          Events{"lost: no session with 10.0.0.2:41 (tcp): it did not prove that "
                 "it holds the secret within 5.0 s"});
    CHECK(pair.head.session->has_ended());
    pair.deliver();
    CHECK_FALSE(pair.head.session->is_open());
  }
}

TEST_CASE("names with characters that could be confused with other text are rejected") {
  for (const char* name : {"", "a b", "a\nb", "w`1", "\xc3\xa9"}) {
    SessionOptions options = options_of(Role::worker);
    options.name = name;
    CHECK_FALSE(check(options).ok());
  }
  SessionOptions options = options_of(Role::worker);
  options.name = std::string(kProcessNameBytesMax, 'n');
  CHECK(check(options).ok());
  Pair pair(options_of(Role::head), options);
  pair.deliver();
  CHECK(pair.head.session->is_open());
  options.name += 'n';
  CHECK_FALSE(check(options).ok());
}

TEST_CASE("contradictory timeouts are a user error") {
  auto with = [](int64_t heartbeat, int64_t suspect, int64_t lost) {
    SessionOptions options = options_of(Role::head);
    options.heartbeat_ms = heartbeat;
    options.suspect_after_ms = suspect;
    options.lost_after_ms = lost;
    return check(options);
  };
  CHECK(with(1, 2, 2).ok());
  CHECK_FALSE(with(0, 2, 2).ok());
  CHECK_FALSE(with(2, 2, 2).ok());
  CHECK_FALSE(with(1, 3, 2).ok());
  CHECK_FALSE(with(1, 3, 86'400'001).ok());
  CHECK_THAT(with(1000, 500, 400).error().message,
             Contains("suspect after 500 ms and lost after 400 ms"));
}

}  // namespace
}  // namespace flow::cluster
