// The byte stream that a client and its head run over their session.
#include "engine/cluster/session/byte_stream.hpp"

#include <catch2/catch.hpp>
#include <thread>

#include "engine/cluster/session/session_channel.hpp"
#include "engine/cluster/session/sessions.hpp"
#include "tests/cluster/pair.hpp"
#include "transports/inproc/inproc.hpp"

namespace flow::cluster {
namespace {

std::string taken(ByteStream& stream, size_t size) {
  std::string bytes(size, '\0');
  bytes.resize(stream.read(bytes.data(), size));
  return bytes;
}

/// Sends until the window is full. Returns the number of bytes.
size_t fill(ByteStream& from, ByteStream& to) {
  size_t sent = 0;
  while (size_t window = from.window()) {
    REQUIRE(to.on_message(from.put(std::string(window, 'x'))));
    sent += window;
  }
  return sent;
}

TEST_CASE("bytes arrive in order, whatever the sizes of reads") {
  ByteStream a, b;
  REQUIRE(b.on_message(a.put("hello ")));
  REQUIRE(b.on_message(a.put("there")));
  CHECK(b.waiting() == 11);
  CHECK(taken(b, 3) == "hel");
  CHECK(taken(b, 100) == "lo there");
  CHECK(taken(b, 100).empty());
}

TEST_CASE("a sender stops at the window and continues when bytes were consumed") {
  ByteStream a, b;
  CHECK(fill(a, b) == kStreamWindow);
  CHECK(b.waiting() == kStreamWindow);
  taken(b, kStreamAckAfter - 1);
  CHECK(b.next_ack().empty());
  CHECK(taken(b, 1).size() == 1);
  REQUIRE(a.on_message(b.next_ack()));
  CHECK(b.next_ack().empty());
  CHECK(fill(a, b) == kStreamAckAfter);
}

TEST_CASE("data beyond the window, empty or oversized chunks and invalid messages are rejected") {
  ByteStream a, b, other;
  std::string more = other.put("y");
  fill(a, b);
  CHECK_FALSE(b.on_message(more));
  CHECK(b.waiting() == kStreamWindow);
  CHECK_FALSE(other.on_message(""));
  CHECK_FALSE(other.on_message("\x01"));
  CHECK_FALSE(other.on_message("\x01" + std::string(kStreamChunkMax + 1, 'x')));
  CHECK(other.on_message("\x01" + std::string(kStreamChunkMax, 'x')));
  CHECK_FALSE(other.on_message("\x03x"));
}

TEST_CASE("consumed bytes are acknowledged once, and never more than were sent") {
  auto told = [](uint64_t number) {
    std::string message(1, '\x02');
    for (int i = 0; i < 8; i++) message += static_cast<char>(number >> (8 * i));
    return message;
  };
  ByteStream a;
  a.put("12345678");
  CHECK_FALSE(a.on_message(told(9)));
  CHECK_FALSE(a.on_message(told(0)));
  CHECK(a.on_message(told(5)));
  CHECK_FALSE(a.on_message(told(5)));
  CHECK_FALSE(a.on_message(told(8) + "x"));
  CHECK_FALSE(a.on_message(told(8).substr(0, 8)));
  CHECK(a.on_message(told(8)));
}

TEST_CASE("a client has a session with a head and with no other role") {
  SessionOptions client = options_of(Role::client);
  Pair pair(options_of(Role::head), client);
  pair.deliver();
  CHECK(pair.head.events() == Events{"opened client w1 0.1.0 42 proven"});
  Pair others(options_of(Role::worker), client);
  others.deliver();
  CHECK(others.head.events() ==
        Events{"refused: no session with 10.0.0.2:41 (tcp): it is a client and this is a worker: "
               "workers and clients connect to a head, and peers to a worker"});
  Pair clients(client, client);
  clients.deliver();
  CHECK(clients.head.session->has_ended());
}

/// Both ends of a session over links within this process.
struct Channels {
  Channels() {
    auto listening = head.listen("127.0.0.1:0", [this](const SessionPeer&, auto link) {
      there->attach(link);
      return there;
    });
    REQUIRE(listening.ok());
    listener = std::move(*listening);
    auto session = client.connect(listener->address(), here);
    REQUIRE(session.ok());
    here->attach(*session);
    REQUIRE(here->wait_open().ok());
    REQUIRE(there->wait_open().ok());
  }
  ~Channels() { listener.reset(); }
  std::shared_ptr<SessionChannel> here = std::make_shared<SessionChannel>(),
                                  there = std::make_shared<SessionChannel>();
  std::unique_ptr<Transport> transport = make_inproc_transport();
  Sessions head{*transport, options_of(Role::head), [](std::string) {}};
  Sessions client{*transport, options_of(Role::client), [](std::string) {}};
  std::unique_ptr<Listener> listener;
};

TEST_CASE("many windows of data pass through a channel in both directions") {
  constexpr size_t kBytes = 5 * kStreamWindow + 7;
  Channels ends;
  auto pattern = [](size_t i, char of) { return static_cast<char>(of + i % 251); };
  auto write = [&](SessionChannel& to, char of) {
    std::string bytes(kBytes, '\0');
    for (size_t i = 0; i < kBytes; i++) bytes[i] = pattern(i, of);
    return to.write(bytes);
  };
  bool wrote[2] = {false, false};
  std::thread writers[2] = {std::thread([&] { wrote[0] = write(*ends.here, 1); }),
                            std::thread([&] { wrote[1] = write(*ends.there, 2); })};
  size_t wrong[2] = {0, 0};
  auto read = [&](SessionChannel& from, char of, size_t& wrong) {
    std::string bytes(kBytes, '\0');
    if (!from.read(bytes.data(), kBytes, std::nullopt)) wrong++;
    for (size_t i = 0; i < kBytes; i++) wrong += bytes[i] != pattern(i, of);
  };
  std::thread reader([&] { read(*ends.there, 1, wrong[0]); });
  read(*ends.here, 2, wrong[1]);
  reader.join();
  for (std::thread& writer : writers) writer.join();
  CHECK((wrote[0] && wrote[1]));
  CHECK((wrong[0] == 0 && wrong[1] == 0));
}

TEST_CASE("an end wakes the writer and the reader, and received data is still read") {
  Channels ends;
  REQUIRE(ends.here->write("last"));
  bool wrote = true;
  std::thread writer([&] {
    while (ends.there->write(std::string(kStreamWindow, 'x'))) {
    }
    wrote = false;
  });
  ends.here->close("enough");
  writer.join();
  CHECK_FALSE(wrote);
  char bytes[5] = {};
  REQUIRE(ends.there->read(bytes, 4, std::nullopt));
  CHECK(std::string(bytes) == "last");
  CHECK_FALSE(ends.there->read(bytes, 1, std::nullopt));
  REQUIRE(ends.there->end().has_value());
  CHECK(ends.there->end()->first == EndKind::left);
}

TEST_CASE("a read has a deadline") {
  Channels ends;
  char byte = 0;
  CHECK_FALSE(ends.here->read(&byte, 1, std::chrono::steady_clock::now()));
  CHECK_FALSE(ends.here->end().has_value());
}

}  // namespace
}  // namespace flow::cluster
