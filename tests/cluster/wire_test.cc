// The first version of the protocol, encoded by hand: later versions must still support it.
#include "tests/cluster/pair.hpp"

namespace flow::cluster {
namespace {

std::string text(std::string_view bytes) {
  return static_cast<char>(bytes.size()) + std::string(bytes);
}

TEST_CASE("a worker that follows only the description gets a session") {
  End head(options_of(Role::head), "10.0.0.2:41 (tcp)");
  std::string head_hello = head.sent.front();
  CHECK(head_hello.substr(0, head_hello.size() - 64) ==
        std::string("\1flowlink\1\0\1\0\5"
                    "0.1.0\3\0\0\0\1\1\51\0\0\0\0\0\0\0\2h1",
                    36));

  KeyExchange exchange;
  std::string hello = std::string("\1flowlink\1\0\1\0", 13) + text("0.1.0");
  hello += std::string("\3\0\0\0\2\1\52\0\0\0\0\0\0\0", 14) + text("w1");
  hello += std::string(32, 'n') + std::string(exchange.offered());
  head.frame(hello, 0);

  Key shared;
  REQUIRE(exchange.agree(std::string_view(head_hello).substr(head_hello.size() - 32), shared));
  Key origin =
      keyed_hash(*secret_of(7), {"flow session keys, 1", head_hello, hello, shared.view()});
  std::string head_proof = head.sent.back();
  REQUIRE(head_proof.size() == 57);
  std::string head_header = head_proof.substr(1, 24);
  CHECK(head_proof ==
        "\2" + head_header + std::string(keyed_hash(subkey(origin, 1), {head_header}).view()));

  Sealer sealer(subkey(origin, 4));
  std::string header(sealer.header());
  head.frame("\2" + header + std::string(keyed_hash(subkey(origin, 2), {header}).view()), 0);
  CHECK(head.events() == Events{"opened worker w1 0.1.0 42 proven"});

  Opener opener(subkey(origin, 3), head_header);
  std::string opened;
  REQUIRE(opener.open(head.sent.back(), opened));
  CHECK(head.sent.back()[0] == 4);
  std::string heartbeat = std::string("\1\0\0\0\0\0\0\0", 8) + std::string(8, '\0') +
                          std::string("\1\0\0\0\0\0\0\0", 8);
  // End of the first version's fields.
  CHECK(opened == heartbeat + std::string("\x10\x27\0\0\0\0\0\0", 8));
  head.frame(sealer.seal(4, heartbeat), 0);
  head.frame(sealer.seal(3, "ready"), 0);
  head.frame(sealer.seal(5, "bye"), 0);
  CHECK(head.events() ==
        Events{"message ready", "left: node `w1` at 10.0.0.2:41 (tcp) has left: bye"});
}

TEST_CASE(
    "a head of the first version, which sends no silence timeout, is accepted with the default") {
  Handshake head({1, 1, "0.1.0", 3, Role::head, true, 1, "h", "", ""}, secret_of(7));
  End worker(options_of(Role::worker), "x:1");
  worker.frame(head.hello(), 0);
  REQUIRE(head.accept_hello(worker.sent.front()).ok());
  Sealer sealer(head.keys().seal_out);
  worker.frame(head.proof(sealer.header()), 0);
  worker.events();
  worker.frame(sealer.seal(4, std::string(24, '\1')), 0);
  CHECK(worker.events().empty());
  worker.frame(sealer.seal(4, std::string(24, '\1') + std::string("\x70\x17\0\0\0\0\0\0", 8)), 0);
  CHECK(worker.events() == Events{"lost after 6000 ms"});
}

TEST_CASE("an observer with all messages and the secret still lacks the keys of the session") {
  Pair pair;
  std::string head_hello = pair.head.sent.front(), hello = pair.worker.sent.front();
  pair.move(pair.worker, pair.head);
  std::string proof = pair.head.sent.back(), header = proof.substr(1, kSealHeaderBytes);
  auto fits = [&](std::string_view guess) {
    Key origin = keyed_hash(*secret_of(7), {"flow session keys, 1", head_hello, hello, guess});
    return proof.substr(1 + kSealHeaderBytes) == keyed_hash(subkey(origin, 1), {header}).view();
  };
  for (const std::string& offered :
       {head_hello.substr(head_hello.size() - 32), hello.substr(hello.size() - 32)})
    CHECK_FALSE(fits(offered));
  CHECK_FALSE(fits(std::string(32, '\0')));
  CHECK_FALSE(fits(""));
}

TEST_CASE("an unknown sealed frame type or a truncated heartbeat ends the session") {
  for (int type : {0, 1, 2, 4, 6, 255}) {
    Handshake head({1, 1, "0.1.0", 3, Role::head, true, 1, "h", "", ""}, secret_of(7));
    End worker(options_of(Role::worker), "x:1");
    worker.frame(head.hello(), 0);
    REQUIRE(head.accept_hello(worker.sent.front()).ok());
    Sealer sealer(head.keys().seal_out);
    worker.frame(head.proof(sealer.header()), 0);
    REQUIRE(worker.session->is_open());
    worker.events();
    worker.frame(sealer.seal(static_cast<uint8_t>(type), "12345678"), 0);
    Events events = worker.events();
    REQUIRE(events.size() == 1);
    CHECK_THAT(events[0],
               Catch::Matchers::Contains("it sent a frame of type " + std::to_string(type) +
                                         " and 8 bytes, which this version does not know"));
  }
}

}  // namespace
}  // namespace flow::cluster
