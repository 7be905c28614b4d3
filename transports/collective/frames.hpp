// What two ranks of different nodes say to each other over their link.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "transports/collective/signature.hpp"

namespace flow::collective {

constexpr uint8_t kGangLinkVersion = 3;

enum class FrameKind : uint8_t {
  hello = 1,
  proof,
  sealed,     ///< one of those below, all of it
  with_bulk,  ///< one of those below, sealed, and data behind it that is not
  data,       ///< a message, whole
  announce,   ///< a message that goes as puts, once the other side expects them
  ready,      ///< so many pieces of a message are expected, and of which
  ack,        ///< so many messages were read
  wait_edge,  ///< for another rank, for long
  failed,     ///< the communicator has: why
  goodbye,    ///< nothing comes any more
  ended,      ///< it leaves, and no message of a user's comes any more
};

struct Hello {
  FrameKind kind = FrameKind::hello;
  uint8_t version = kGangLinkVersion;
  uint8_t encrypts = 0;
  uint8_t unused = 0;
  int32_t from = 0, to = 0;
  uint8_t gang[32] = {};
  uint8_t nonce[16] = {};
};

struct Proof {
  FrameKind kind = FrameKind::proof;
  uint8_t header[24] = {};  // what the sender's sealed frames begin with
  uint8_t digest[32] = {};
};

/// All others are sealed, and begin with this.
struct FrameHead {
  FrameKind kind = FrameKind::data;
  uint8_t channel = 0;
  uint8_t unused[6] = {};
  uint64_t sequence = 0;  // of the lane's messages
  uint64_t count = 0;  // data: bytes; ready: pieces; took: messages; waits: Waits; failed: the kind
  Signature signature;  // data, announce, ready: of the message
};

template <typename T>
std::string_view bytes_of(const T& head) {
  return {reinterpret_cast<const char*>(&head), sizeof head};
}

/// Nothing where the frame is too short; of which kind it is the caller looks. `rest` is what
/// follows.
template <typename T>
std::optional<T> read_head(std::string_view frame, std::string_view* rest = nullptr) {
  T head;
  if (frame.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, frame.data(), sizeof head);
  if (rest != nullptr) *rest = frame.substr(sizeof head);
  return head;
}

}  // namespace flow::collective
