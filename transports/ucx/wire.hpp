// The messages between two ends of a link, in the machine's own byte order: `ChannelHello` detects
// another one.
#pragma once
#include <cstdint>

namespace flow::ucx {

constexpr uint64_t kHelloMagic = 0x666c6f772d756378;  // "flow-ucx"
constexpr uint32_t kWireVersion = 2;

constexpr unsigned kEagerId = 1;  // active messages with a Head
constexpr unsigned kPutId = 2;    // rendezvous with a PutHead

enum class MessageKind : uint8_t {
  hello = 1,      // first, with a ChannelHello
  chunk = 2,      // of a frame of `value` bytes
  put_begin = 3,  // put `id`, with a PutBegin
  put_chunk = 4,  // of put `id`
  put_done = 5,   // put `id` ended as `outcome` says
  ack = 6,        // acknowledges received data, as every Head does
  goodbye = 7,    // no more messages follow
};

enum class PutOutcome : uint8_t { there = 0, unexpected = 1, too_long = 2 };

struct Head {
  MessageKind kind = MessageKind::ack;
  PutOutcome outcome = PutOutcome::there;
  uint16_t unused = 0;
  uint32_t sequence = 0;      // of messages with a Head: UCX 1.13 has lost and reordered messages
  uint64_t acked_bytes = 0;   // bytes of frames, since the link is up
  uint32_t acked_chunks = 0;  // the same in chunks, modulo 2^32
  uint32_t id = 0;
  uint64_t value = 0;
};
static_assert(sizeof(Head) == 32);

struct ChannelHello {
  uint64_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  uint32_t ucx[3] = {0, 0, 0};  // its version
  uint32_t takes_device = 0;    // puts may target GPU memory: none is sent as a message
  uint32_t unused = 0;
};
static_assert(sizeof(ChannelHello) == 32);

struct PutBegin {
  uint64_t tag = 0;
  uint64_t size = 0;
};
static_assert(sizeof(PutBegin) == 16);

struct PutHead {
  uint64_t tag = 0;
  uint32_t id = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(PutHead) == 16);

}  // namespace flow::ucx
