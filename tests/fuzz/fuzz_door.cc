// Two sides of a talk at a door, whose bytes come in pieces, changed, not at all, or made up.
// Nobody is proven to a side that did not hear exactly what the other one said.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tests/fuzz/input.hpp"
#include "transports/ucx/auth_handshake.hpp"

namespace {

using namespace flow::ucx;
using flow::fuzz::Input;

constexpr size_t kProofBytes = 4 + 32;  // behind its size

/// One side, what the other has said to it, what of that is on its way, and what it heard.
struct Side {
  explicit Side(Talk&& own) : talk(std::move(own)) {}
  void say(std::string_view bytes) {
    said += bytes;
    to_hear += bytes;
  }

  Talk talk;
  std::string said, to_hear, heard;
  bool has_failed = false;
};

void hear(Side& side, std::string_view bytes, Side& other) {
  if (side.has_failed) return;
  bool was_proven = side.talk.is_proven();
  std::string reply;
  side.heard += bytes;
  side.has_failed = !side.talk.take(bytes, reply).ok();
  other.say(reply);
  size_t told = other.talk.hello().size() + kProofBytes;  // what it takes to prove something
  bool is_deceived = side.heard.substr(0, told) != side.said.substr(0, told);
  if (is_deceived && !was_proven && side.talk.is_proven()) __builtin_trap();
}

void step(Input& in, Side& side, Side& other) {
  uint8_t what = in.byte();
  size_t size = std::min<size_t>(in.byte() + size_t{1}, side.to_hear.size());
  switch (what % 8) {
    case 0:  // made up
      return hear(side, in.bytes(in.byte()), other);
    case 1:  // changed
      if (size > 0) side.to_hear[size - 1] = static_cast<char>(side.to_hear[size - 1] ^ in.byte());
      return;
    case 2:  // not at all
      side.to_hear.erase(0, size);
      return;
    default:
      std::string bytes = side.to_hear.substr(0, size);
      side.to_hear.erase(0, size);
      return hear(side, bytes, other);
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
  Side server(Talk(Talk::Side::server, server_key, {Ip{1}}));
  Side client(Talk(Talk::Side::client, client_key, {Ip{2}, Ip{3}}));
  server.say(client.talk.hello());
  bool is_placed = false;
  while (!in.is_empty()) {
    bool is_server = in.byte() % 2 == 0;
    step(in, is_server ? server : client, is_server ? client : server);
    if (server.talk.is_proven() && !is_placed) {
      is_placed = true;
      client.say(server.talk.place(7700));
    }
    if (client.talk.port() != 0 && client.talk.port() != 7700) __builtin_trap();
  }
  bool is_one_key = server_key == client_key;
  if (!is_one_key && (server.talk.is_proven() || client.talk.is_proven())) __builtin_trap();
  return 0;
}
