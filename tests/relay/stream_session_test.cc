// A sealed byte stream between two ends, whose connection is a pair of texts.
#include "engine/relay/stream_session.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "engine/relay/relay_notes.hpp"

using namespace flow;
using namespace flow::cluster;

namespace {

SessionOptions stream_options(Role role, uint8_t secret = 7) {
  SessionOptions options;
  options.role = role;
  options.name = role_name(role);
  options.version = "1";
  Secret bytes;
  bytes.bytes.fill(secret);
  options.secret = std::make_shared<const Secret>(bytes);
  return options;
}

/// A front's end and a worker's.
struct Ends {
  explicit Ends(uint8_t secret_of_worker = 7)
      : front(stream_options(Role::head), "worker:1", 0),
        worker(stream_options(Role::worker, secret_of_worker), "front:1", 0) {}

  /// Carries what both have sent, in pieces of this size, until neither sends any more.
  void carry(size_t piece = SIZE_MAX) {
    for (bool has_carried = true; has_carried;) {
      std::string there = front.take_output(), back = worker.take_output();
      has_carried = !there.empty() || !back.empty();
      give(worker, there, piece);
      give(front, back, piece);
    }
  }
  static void give(StreamSession& end, std::string_view bytes, size_t piece) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size())))
      end.receive(bytes.substr(0, piece), 0);
  }

  StreamSession front, worker;
};

std::string all_of(StreamSession& end) {
  std::string bytes(end.waiting(), '\0');
  REQUIRE(end.read(bytes.data(), bytes.size()) == bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE("a sealed stream carries bytes and notes both ways, however they arrive") {
  size_t piece = GENERATE(size_t{1}, size_t{7}, SIZE_MAX);
  Ends ends;
  CHECK(ends.front.window() == 0);
  ends.carry(piece);
  REQUIRE(ends.front.is_open());
  REQUIRE(ends.worker.is_open());
  CHECK(ends.front.peer().name == "worker");
  CHECK(ends.front.peer().is_proven);
  ends.front.write("batch");
  ends.worker.tell("note");
  ends.worker.write("outcome");
  ends.worker.write(" and more");
  std::string sent = ends.worker.take_output();
  CHECK(sent.find("outcome") == std::string::npos);
  Ends::give(ends.front, sent, piece);
  CHECK(ends.front.take_notes() == std::vector<std::string>{"note"});
  CHECK(all_of(ends.front) == "outcome and more");
  ends.carry(piece);
  CHECK(all_of(ends.worker) == "batch");
}

TEST_CASE("a sender of a sealed stream waits for its reader") {
  Ends ends;
  ends.carry();
  const std::string chunk(kStreamChunkMax, 'x');
  size_t sent = 0;
  while (ends.front.window() > 0) {
    ends.front.write(chunk.substr(0, ends.front.window()));
    sent += chunk.size();
    ends.carry();
    REQUIRE(sent <= kStreamWindow);
  }
  CHECK(sent == kStreamWindow);
  CHECK(all_of(ends.worker).size() == kStreamWindow);
  ends.carry();
  CHECK(ends.front.window() == kStreamChunkMax);
}

TEST_CASE("the end of a sealed stream tells why, and what came before it can be read") {
  Ends ends;
  ends.carry();
  ends.worker.write("last words");
  ends.worker.end("the replica has ended");
  CHECK(ends.worker.has_ended());
  CHECK(ends.worker.window() == 0);
  ends.carry();
  REQUIRE(ends.front.has_ended());
  CHECK(ends.front.how_ended().kind == EndKind::left);
  CHECK(ends.front.how_ended().why.message.find("the replica has ended") != std::string::npos);
  CHECK(all_of(ends.front) == "last words");
  ends.front.receive("more", 0);  // without effect
  ends.front.tick(1'000'000);
  ends.front.cut("late");
  CHECK(ends.front.how_ended().kind == EndKind::left);
}

TEST_CASE("a peer with another secret opens no sealed stream") {
  Ends ends(8);
  ends.carry();
  CHECK(ends.front.has_ended());
  CHECK(ends.worker.has_ended());
  CHECK(ends.front.how_ended().kind == EndKind::rejected);
  CHECK(ends.front.waiting() == 0);
}

TEST_CASE("before the handshake a sealed stream accepts no long frame") {
  StreamSession front(stream_options(Role::head), "stranger:1", 0);
  std::string greeting = front.take_output();
  SECTION("one that is announced") { front.receive(std::string("\xff\xff\xff\x7f", 4), 0); }
  SECTION("HTTP") { front.receive("GET / HTTP/1.1\r\n\r\n", 0); }
  SECTION("one that is no greeting") {
    front.receive(std::string("\x08\0\0\0flowlink", 12), 0);
    CHECK(front.how_ended().kind == EndKind::rejected);
  }
  SECTION("its own greeting, sent back") {
    front.receive(greeting, 0);
    CHECK(front.how_ended().kind == EndKind::rejected);
  }
  CHECK(front.has_ended());
  CHECK(front.take_output().empty());
}

TEST_CASE("a silent peer of a sealed stream is dropped") {
  StreamSession front(stream_options(Role::head), "stranger:1", 0);
  front.receive(std::string("\x08\0\0\0f", 5), 0);
  for (int64_t at_us = 0; at_us < 7'000'000 && !front.has_ended(); at_us += 200'000)
    front.tick(at_us);
  REQUIRE(front.has_ended());
  CHECK(front.how_ended().kind == EndKind::lost);
}

TEST_CASE("notes of a relay are read as they were written, and others are none") {
  using Kind = RelayNote::Kind;
  for (const RelayNote& note :
       {RelayNote{}, RelayNote{Kind::wanted, 77, 8080}, RelayNote{Kind::server, UINT64_MAX},
        RelayNote{Kind::refused, 77}}) {
    auto again = RelayNote::parse(note.encode());
    REQUIRE(again);
    CHECK(*again == note);
    CHECK(note.encode().size() <= kNoteBytesMax);
    CHECK_FALSE(RelayNote::parse(note.encode() + "x"));
  }
  CHECK_FALSE(RelayNote::parse(""));
  CHECK_FALSE(RelayNote::parse("x"));
  CHECK_FALSE(RelayNote::parse("s1234567"));
  CHECK_FALSE(RelayNote::parse(RelayNote{Kind::wanted, 1, 0}.encode()));
}
