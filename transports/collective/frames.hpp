// Frames between two ranks of different nodes, over their link.
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
  sealed,     ///< one of the kinds below, all of it sealed
  with_bulk,  ///< one of the kinds below, sealed, followed by data that is not
  data,       ///< a complete message
  announce,   ///< a message that is transferred as puts, once the peer has posted its receives
  ready,      ///< which chunks of a message have posted receives
  ack,        ///< number of messages that were read
  wait_edge,  ///< the sender has waited for another rank for long
  failed,     ///< the communicator has failed: the cause
  goodbye,    ///< no more frames follow
  ended,      ///< the sender leaves; no more user messages follow
};

struct RankHello {
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
  uint8_t header[24] = {};  // the header of the sender's sealed frames
  uint8_t digest[32] = {};
};

/// All other kinds are sealed and begin with this.
struct FrameHead {
  FrameKind kind = FrameKind::data;
  uint8_t channel = 0;
  uint8_t unused[6] = {};
  uint64_t sequence = 0;  // of the channel's messages
  uint64_t count =
      0;  // data: bytes; ready: chunks; ack: messages; wait_edge: WaitForEdge; failed: error kind
  CallSignature signature;  // data, announce, ready: of the message
};

template <typename T>
std::string_view bytes_of(const T& head) {
  return {reinterpret_cast<const char*>(&head), sizeof head};
}

/// Empty if the frame is too short. The caller checks the kind. `rest` is the data that follows.
template <typename T>
std::optional<T> read_head(std::string_view frame, std::string_view* rest = nullptr) {
  T head;
  if (frame.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, frame.data(), sizeof head);
  if (rest != nullptr) *rest = frame.substr(sizeof head);
  return head;
}

}  // namespace flow::collective
