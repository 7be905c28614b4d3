#include "transports/ucx/auth_handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/ids.hpp"
#include "engine/crypto/hmac.hpp"

namespace flow::ucx {

namespace {

constexpr uint64_t kMagic = 0x726f6f64776f6c66;  // "flowdoor"
constexpr size_t kNonceBytes = 32;

/// In the machine's own byte order: the version check detects another one.
struct HelloHead {
  uint64_t magic = kMagic;
  uint32_t version = kHandshakeVersion;
  uint8_t has_key = 0;
  uint8_t ips = 0;  // number of addresses that follow
  uint16_t unused = 0;
  uint64_t nonce[kNonceBytes / sizeof(uint64_t)] = {};
};
static_assert(sizeof(HelloHead) == 16 + kNonceBytes);

constexpr size_t kMessageMax = sizeof(HelloHead) + kAdvertisedIpsMax * sizeof(Ip);
constexpr size_t kDigestBytes = sizeof(Digest::bytes);

/// Each message follows its size.
std::string framed(std::string_view message) {
  auto size = static_cast<uint32_t>(message.size());
  std::string text(sizeof size, '\0');
  std::memcpy(text.data(), &size, sizeof size);
  return text.append(message);
}

std::string encode(bool has_key, const std::vector<Ip>& ips) {
  HelloHead head;
  head.has_key = has_key ? 1 : 0;
  head.ips = static_cast<uint8_t>(std::min(ips.size(), kAdvertisedIpsMax));
  for (uint64_t& word : head.nonce) word = random_u64();
  std::string message(reinterpret_cast<const char*>(&head), sizeof head);
  for (size_t i = 0; i < head.ips; i++)
    message.append(reinterpret_cast<const char*>(ips[i].data()), ips[i].size());
  return framed(message);
}

Error no_flow() {
  return user_error(
      "it did not send a flow handshake: is another program at that address, or an older flow?");
}

}  // namespace

AuthHandshake::AuthHandshake(Side side, std::string key, const std::vector<Ip>& own)
    : side_(side), key_(std::move(key)), own_hello_(encode(!key_.empty(), own)) {}

Digest AuthHandshake::mac(std::string_view what, std::string_view more) const {
  bool is_client = side_ == Side::client;
  return hmac_sha256(key_, fmt::format("flow door {} {}\n{}{}{}", kHandshakeVersion, what,
                                       is_client ? own_hello_ : peer_hello_,
                                       is_client ? peer_hello_ : own_hello_, more));
}

std::string AuthHandshake::proof(Side side) const {
  return std::string(mac(side == Side::client ? "client" : "server").view());
}

Status AuthHandshake::receive(std::string_view bytes, std::string& reply) {
  partial_ += bytes;
  uint32_t size = 0;
  while (partial_.size() >= sizeof size) {
    std::memcpy(&size, partial_.data(), sizeof size);
    if (size > kMessageMax) return no_flow();
    if (partial_.size() - sizeof size < size) break;
    std::string message = partial_.substr(sizeof size, size);
    partial_.erase(0, sizeof size + size);
    FLOW_TRY(receive_message(message, reply));
  }
  return {};
}

Status AuthHandshake::receive_message(std::string_view message, std::string& reply) {
  switch (step_) {
    case Step::hello:
      return receive_hello(message, reply);
    case Step::proof:
      return receive_proof(message);
    case Step::port:
      return receive_port(message);
    case Step::done:
      return user_error("it sent data beyond the handshake");
  }
  return no_flow();
}

Status AuthHandshake::receive_hello(std::string_view message, std::string& reply) {
  HelloHead head;
  constexpr size_t kAlways = sizeof head.magic + sizeof head.version;
  if (message.size() < kAlways) return no_flow();
  std::memcpy(static_cast<void*>(&head), message.data(), std::min(message.size(), sizeof head));
  if (head.magic != kMagic) return no_flow();
  if (side_ == Side::server) reply += own_hello_;
  if (head.version != kHandshakeVersion) {
    return user_error(
        fmt::format("it runs another version of flow: its handshake has version {}, this one has "
                    "version {}. Install the same flow on both",
                    head.version, kHandshakeVersion));
  }
  if (head.ips > kAdvertisedIpsMax || head.has_key > 1 ||
      message.size() != sizeof head + head.ips * sizeof(Ip))
    return no_flow();
  peer_hello_ = framed(message);
  if (peer_hello_ == own_hello_)
    return user_error("this process received its own handshake: it has connected to itself");
  bool has_key = !key_.empty();
  if ((head.has_key != 0) != has_key) {
    return user_error(
        fmt::format("it has {} secret and this has {}: give both the same file with --secret-file",
                    has_key ? "no" : "a", has_key ? "one" : "none"));
  }
  peer_ips_.resize(head.ips);
  if (head.ips > 0)
    std::memcpy(peer_ips_.data(), message.data() + sizeof head, head.ips * sizeof(Ip));
  reply += framed(proof(side_));
  step_ = Step::proof;
  return {};
}

Status AuthHandshake::receive_proof(std::string_view message) {
  Side theirs = side_ == Side::client ? Side::server : Side::client;
  if (!equal_constant_time(message, proof(theirs))) {
    return user_error(
        key_.empty() ? "its proof does not match its handshake: data was changed on the way"
                     : "it did not prove that it knows the cluster's secret: its --secret-file is "
                       "different, or data is changed on the way");
  }
  step_ = side_ == Side::client ? Step::port : Step::done;
  return {};
}

std::string AuthHandshake::port_message(uint16_t port) const {
  std::string message(reinterpret_cast<const char*>(&port), sizeof port);
  Digest proven = mac("place", message);
  return framed(message.append(proven.view()));
}

Status AuthHandshake::receive_port(std::string_view message) {
  if (message.size() != sizeof port_ + kDigestBytes) return no_flow();
  std::string_view port = message.substr(0, sizeof port_);
  if (!equal_constant_time(message.substr(sizeof port_), mac("place", port).view()))
    return user_error("the port of UCX was changed on the way");
  std::memcpy(&port_, port.data(), sizeof port_);
  if (port_ == 0) return no_flow();
  step_ = Step::done;
  return {};
}

}  // namespace flow::ucx
