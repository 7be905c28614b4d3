#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "transports/collective/rank_links.hpp"

namespace flow::collective {
namespace {

bool is_whole(const Transfer& transfer) { return transfer.bytes <= kWholeBytes; }

uint64_t chunks_of(size_t bytes) { return (bytes + kLinkChunkBytes - 1) / kLinkChunkBytes; }

Region chunk_of(const Transfer& transfer, uint64_t chunk) {
  size_t at = chunk * kLinkChunkBytes;
  return {transfer.data + at, std::min(kLinkChunkBytes, transfer.bytes - at), false};
}

Error cut(size_t received, size_t size) {
  return environment_error(fmt::format("it put {} bytes where {} belong", received, size));
}

void finish(Transfer& transfer) { transfer.is_done.store(true, std::memory_order_release); }

}  // namespace

LinkChannel::LinkChannel(CommunicatorState& state, RankLinks& rank_links, int peer,
                         ChannelKind kind)
    : RankChannel(state, peer), rank_links_(rank_links), kind_(kind) {}

void LinkChannel::send(Transfer& transfer) {
  out_.push_back({&transfer, next_out_++, 0, 0, false, std::make_shared<ChunkProgress>()});
}

void LinkChannel::receive(Transfer& transfer) {
  in_.push_back({&transfer, next_in_++, 0, 0, false, std::make_shared<ChunkProgress>()});
}

void LinkChannel::enqueue(const FrameHead& head, std::string_view body) {
  std::lock_guard lock(mutex_);
  received_.push_back({head, std::string(body)});
}

FrameHead LinkChannel::head_of(FrameKind kind, uint64_t sequence, uint64_t count) const {
  FrameHead head;
  head.kind = kind;
  head.channel = static_cast<uint8_t>(kind_);
  head.sequence = sequence;
  head.count = count;
  return head;
}

uint64_t LinkChannel::tag_of(uint64_t sequence, uint64_t chunk) const {
  constexpr int kChunkBits = 24, kSequenceBits = 39;
  uint64_t low = sequence & ((uint64_t{1} << kSequenceBits) - 1);
  return static_cast<uint64_t>(kind_) << 63 | low << kChunkBits | chunk;
}

void LinkChannel::step() {
  auto link = rank_links_.link_to(peer_);
  if (link) receive_chunks(*link);
  // A rank that has left may have sent frames before.
  read_frames();
  for (const IncomingMessage& incoming : in_) open_chunks(incoming);
  finish_chunks();
  if (!link) return;
  send_some(*link);
  if (read_ < kUnreadMax / 4) return;
  link->send(bytes_of(head_of(FrameKind::ack, 0, read_)));
  read_ = 0;
}

void LinkChannel::read_frames() {
  std::deque<ReceivedFrame> received;
  {
    std::lock_guard lock(mutex_);
    received.swap(received_);
  }
  for (ReceivedFrame& one : received) unmatched_.push_back(std::move(one));
  std::erase_if(unmatched_, [this](const ReceivedFrame& one) { return match(one); });
}

/// Whether the frame is consumed.
bool LinkChannel::match(const ReceivedFrame& frame) {
  if (frame.head.kind == FrameKind::ack) {
    unread_ -= std::min(unread_, frame.head.count);
    return true;
  }
  return frame.head.kind == FrameKind::ready ? match_ready(frame.head) : match_message(frame);
}

/// The awaited message differs from the announced one: no chunk is sent, because it could overtake
/// the frames that report the mismatch.
bool LinkChannel::match_ready(const FrameHead& ready) {
  auto found = std::find_if(out_.begin(), out_.end(), [&](const OutgoingMessage& outgoing) {
    return outgoing.sequence == ready.sequence;
  });
  if (found == out_.end()) return ready.sequence < next_out_;  // otherwise it is not sent yet
  const CallSignature& sent = found->transfer->signature;
  if (ready.signature != sent) {
    state_.fail(mismatch(state_.rank(), sent, peer_, ready.signature));
    return true;
  }
  found->ready_count = std::max(found->ready_count, ready.count);
  found->transfer->is_begun = true;
  return true;
}

bool LinkChannel::match_message(const ReceivedFrame& frame) {
  auto found = std::find_if(in_.begin(), in_.end(), [&](const IncomingMessage& incoming) {
    return incoming.sequence == frame.head.sequence;
  });
  if (found == in_.end()) return false;
  const CallSignature& expected = found->transfer->signature;
  if (frame.head.signature != expected) {
    state_.fail(mismatch(peer_, frame.head.signature, state_.rank(), expected));
    return true;
  }
  found->is_announced = found->transfer->is_begun = true;
  if (frame.head.kind == FrameKind::data && receive_whole(*found, frame)) in_.erase(found);
  return true;
}

bool LinkChannel::receive_whole(const IncomingMessage& incoming, const ReceivedFrame& frame) {
  Transfer& transfer = *incoming.transfer;
  if (frame.body.size() != transfer.bytes || !is_whole(transfer)) {
    state_.fail(environment_error(fmt::format("rank {} sent {} bytes of {} to rank {}, not {}",
                                              peer_, frame.body.size(), state_.call_text(),
                                              state_.rank(), transfer.bytes)));
    return false;
  }
  if (transfer.bytes > 0) std::memcpy(transfer.data, frame.body.data(), transfer.bytes);
  read_++;
  finish(transfer);
  return true;
}

void LinkChannel::receive_chunks(GangLink& link) {
  for (IncomingMessage& incoming : in_) {
    if (is_whole(*incoming.transfer)) continue;
    post_receives(link, incoming);
    if (incoming.advertised == incoming.expected) continue;
    incoming.advertised = incoming.expected;
    FrameHead head = head_of(FrameKind::ready, incoming.sequence, incoming.expected);
    head.signature = incoming.transfer->signature;
    link.send(bytes_of(head));
  }
}

void LinkChannel::post_receives(GangLink& link, IncomingMessage& incoming) {
  uint64_t most =
      std::min(chunks_of(incoming.transfer->bytes), incoming.progress->done.load() + kChunksAhead);
  for (; incoming.expected < most; incoming.expected++)
    post_receive(link, incoming, incoming.expected);
}

void LinkChannel::post_receive(GangLink& link, const IncomingMessage& incoming, uint64_t number) {
  Region to = chunk_of(*incoming.transfer, number);
  SealedChunk sealed{number, link.bulk_seal(), nullptr, to.size};
  if (sealed.seal) {
    sealed.size += kBulkSealBytes;
    sealed.data = std::make_shared_for_overwrite<char[]>(sealed.size);
    to = {sealed.data.get(), sealed.size, false};
  }
  link.post_receive(tag_of(incoming.sequence, number), to,
                    [this, sealed = std::move(sealed), progress = incoming.progress,
                     completed = rank_links_.track_in_flight()](Result<size_t> received) {
                      if (!received.ok()) {
                        rank_links_.on_down(peer_, received.error());
                      } else if (*received != sealed.size) {
                        rank_links_.on_down(peer_, cut(*received, sealed.size));
                      } else if (sealed.seal) {
                        std::lock_guard lock(progress->mutex);
                        progress->sealed.push_back(sealed);
                      } else {
                        progress->done++;
                      }
                      completed();
                    });
}

void LinkChannel::open_chunks(const IncomingMessage& incoming) {
  std::vector<SealedChunk> chunks;
  {
    std::lock_guard lock(incoming.progress->mutex);
    chunks.swap(incoming.progress->sealed);
  }
  for (const SealedChunk& chunk : chunks) {
    uint64_t tag = tag_of(incoming.sequence, chunk.number);
    if (!chunk.seal->open(tag, chunk.data.get(), chunk.size))
      return rank_links_.on_down(peer_, environment_error("its data was changed on the way"));
    Region to = chunk_of(*incoming.transfer, chunk.number);
    std::memcpy(to.data, chunk.data.get(), to.size);
    incoming.progress->done++;
  }
}

void LinkChannel::finish_chunks() {
  std::erase_if(in_, [](const IncomingMessage& incoming) {
    bool is_done = !is_whole(*incoming.transfer) && incoming.is_announced &&
                   incoming.progress->done.load() == chunks_of(incoming.transfer->bytes);
    if (is_done) finish(*incoming.transfer);
    return is_done;
  });
}

void LinkChannel::send_some(GangLink& link) {
  bool is_stopped = false;  // complete messages stay in order
  std::erase_if(out_, [&](OutgoingMessage& outgoing) {
    if (is_whole(*outgoing.transfer) && is_stopped) return false;
    bool is_done = send_one(link, outgoing);
    if (is_done) finish(*outgoing.transfer);
    is_stopped = is_stopped || (is_whole(*outgoing.transfer) && !is_done);
    return is_done;
  });
}

/// Whether it is finished.
bool LinkChannel::send_one(GangLink& link, OutgoingMessage& outgoing) {
  const Transfer& transfer = *outgoing.transfer;
  FrameHead head = head_of(FrameKind::announce, outgoing.sequence, 0);
  head.signature = transfer.signature;
  if (is_whole(transfer)) {
    if (unread_ == kUnreadMax) return false;
    unread_++;
    head.kind = FrameKind::data;
    head.count = transfer.bytes;
    link.send(bytes_of(head), {transfer.data, transfer.bytes});
    return true;
  }
  if (!outgoing.is_announced) link.send(bytes_of(head));
  outgoing.is_announced = true;
  put_more(link, outgoing);
  return outgoing.progress->done.load() == chunks_of(transfer.bytes);
}

void LinkChannel::put_more(GangLink& link, OutgoingMessage& outgoing) {
  uint64_t most = std::min(outgoing.ready_count, chunks_of(outgoing.transfer->bytes));
  for (; outgoing.put < most; outgoing.put++) put_chunk(link, outgoing, outgoing.put);
}

void LinkChannel::put_chunk(GangLink& link, const OutgoingMessage& outgoing, uint64_t number) {
  uint64_t tag = tag_of(outgoing.sequence, number);
  Region from = chunk_of(*outgoing.transfer, number);
  std::shared_ptr<char[]> sealed;
  if (auto seal = link.bulk_seal()) {
    sealed = std::make_shared_for_overwrite<char[]>(from.size + kBulkSealBytes);
    std::memcpy(sealed.get(), from.data, from.size);
    seal->seal(tag, sealed.get(), from.size);
    from = {sealed.get(), from.size + kBulkSealBytes, false};
  }
  link.put(tag, from,
           [this, sealed, progress = outgoing.progress,
            completed = rank_links_.track_in_flight()](Status there) {
             if (there.ok())
               progress->done++;
             else
               rank_links_.on_down(peer_, there.error());
             completed();
           });
}

}  // namespace flow::collective
