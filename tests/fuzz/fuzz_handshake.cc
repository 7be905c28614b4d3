// Two sides of an authentication handshake, whose bytes arrive in parts, changed, not at all, or
// invented. A side accepts a peer only if it received exactly what the peer sent.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tests/fuzz/input.hpp"
#include "transports/ucx/auth_handshake.hpp"

namespace {

using namespace flow::ucx;
using flow::fuzz::Input;

constexpr size_t kProofBytes = 4 + 32;  // after its size

/// One side: the peer's messages, those in transit, and the received ones.
struct Side {
  explicit Side(AuthHandshake&& own) : handshake(std::move(own)) {}
  void send(std::string_view bytes) {
    sent += bytes;
    in_flight += bytes;
  }

  AuthHandshake handshake;
  std::string sent, in_flight, received;
  bool has_failed = false;
};

void receive(Side& side, std::string_view bytes, Side& other) {
  if (side.has_failed) return;
  bool was_proven = side.handshake.is_proven();
  std::string reply;
  side.received += bytes;
  side.has_failed = !side.handshake.receive(bytes, reply).ok();
  other.send(reply);
  size_t proof_bytes =
      other.handshake.hello().size() + kProofBytes;  // number of bytes that authenticate a side
  bool is_deceived = side.received.substr(0, proof_bytes) != side.sent.substr(0, proof_bytes);
  if (is_deceived && !was_proven && side.handshake.is_proven()) __builtin_trap();
}

void step(Input& in, Side& side, Side& other) {
  uint8_t what = in.byte();
  size_t size = std::min<size_t>(in.byte() + size_t{1}, side.in_flight.size());
  switch (what % 8) {
    case 0:  // invented
      return receive(side, in.bytes(in.byte()), other);
    case 1:  // changed
      if (size > 0)
        side.in_flight[size - 1] = static_cast<char>(side.in_flight[size - 1] ^ in.byte());
      return;
    case 2:  // lost
      side.in_flight.erase(0, size);
      return;
    default:
      std::string bytes = side.in_flight.substr(0, size);
      side.in_flight.erase(0, size);
      return receive(side, bytes, other);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  uint8_t keys = in.byte();
  auto key = [](int which) {
    return which == 0 ? std::string() : std::string("key") + char(which);
  };
  std::string server_key = key(keys % 3), client_key = key(keys / 3 % 3);
  Side server(AuthHandshake(AuthHandshake::Side::server, server_key, {Ip{1}}));
  Side client(AuthHandshake(AuthHandshake::Side::client, client_key, {Ip{2}, Ip{3}}));
  server.send(client.handshake.hello());
  bool is_port_sent = false;
  while (!in.is_empty()) {
    bool is_server = in.byte() % 2 == 0;
    step(in, is_server ? server : client, is_server ? client : server);
    if (server.handshake.is_proven() && !is_port_sent) {
      is_port_sent = true;
      client.send(server.handshake.port_message(7700));
    }
    if (client.handshake.port() != 0 && client.handshake.port() != 7700) __builtin_trap();
  }
  bool is_one_key = server_key == client_key;
  if (!is_one_key && (server.handshake.is_proven() || client.handshake.is_proven()))
    __builtin_trap();
  return 0;
}
