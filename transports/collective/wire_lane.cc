#include <fmt/format.h>

#include <algorithm>

#include "transports/collective/wire.hpp"

namespace flow::collective {
namespace {

bool is_whole(const Transfer& transfer) { return transfer.bytes <= kWholeBytes; }

uint64_t pieces_of(size_t bytes) { return (bytes + kWirePieceBytes - 1) / kWirePieceBytes; }

Region piece_of(const Transfer& transfer, uint64_t piece) {
  size_t at = piece * kWirePieceBytes;
  return {transfer.data + at, std::min(kWirePieceBytes, transfer.bytes - at), false};
}

void finish(Transfer& transfer) { transfer.is_done.store(true, std::memory_order_release); }

}  // namespace

WireLane::WireLane(Core& core, Wire& wire, int peer, LaneKind kind)
    : Lane(core, peer), wire_(wire), kind_(kind) {}

void WireLane::send(Transfer& transfer) {
  out_.push_back({&transfer, next_out_++, 0, 0, false, std::make_shared<Progress>()});
}

void WireLane::receive(Transfer& transfer) {
  in_.push_back({&transfer, next_in_++, 0, 0, false, std::make_shared<Progress>()});
}

void WireLane::take(const FrameHead& head, std::string_view body) {
  std::lock_guard lock(mutex_);
  came_.push_back({head, std::string(body)});
}

FrameHead WireLane::head_of(FrameKind kind, uint64_t sequence, uint64_t count) const {
  FrameHead head;
  head.kind = kind;
  head.lane = static_cast<uint8_t>(kind_);
  head.sequence = sequence;
  head.count = count;
  return head;
}

uint64_t WireLane::tag_of(uint64_t sequence, uint64_t piece) const {
  constexpr int kPieceBits = 24, kSequenceBits = 39;
  uint64_t low = sequence & ((uint64_t{1} << kSequenceBits) - 1);
  return static_cast<uint64_t>(kind_) << 63 | low << kPieceBits | piece;
}

void WireLane::step() {
  auto link = wire_.link_to(peer_);
  if (link) receive_pieces(*link);
  // Of a rank that has left too: what it sent before is here.
  read_frames();
  finish_pieces();
  if (!link) return;
  send_some(*link);
  if (read_ < kUnreadMax / 4) return;
  link->send(std::string(bytes_of(head_of(FrameKind::took, 0, read_))));
  read_ = 0;
}

void WireLane::read_frames() {
  std::deque<Came> came;
  {
    std::lock_guard lock(mutex_);
    came.swap(came_);
  }
  for (Came& one : came) unmatched_.push_back(std::move(one));
  std::erase_if(unmatched_, [this](const Came& one) { return match(one); });
}

/// Whether the frame is done with.
bool WireLane::match(const Came& came) {
  if (came.head.kind == FrameKind::took) {
    unread_ -= std::min(unread_, came.head.count);
    return true;
  }
  if (came.head.kind != FrameKind::ready) return match_message(came);
  for (Outgoing& outgoing : out_)
    if (outgoing.sequence == came.head.sequence) {
      outgoing.ready = std::max(outgoing.ready, came.head.count);
      outgoing.transfer->is_begun = true;
    }
  return came.head.sequence < next_out_;  // else it is yet to be sent
}

bool WireLane::match_message(const Came& came) {
  auto found = std::find_if(in_.begin(), in_.end(), [&](const Incoming& incoming) {
    return incoming.sequence == came.head.sequence;
  });
  if (found == in_.end()) return false;
  const Signature& expected = found->transfer->signature;
  if (came.head.signature != expected) {
    core_.fail(mismatch(peer_, came.head.signature, core_.rank(), expected));
    return true;
  }
  found->is_announced = found->transfer->is_begun = true;
  if (came.head.kind == FrameKind::data && take_whole(*found, came)) in_.erase(found);
  return true;
}

bool WireLane::take_whole(const Incoming& incoming, const Came& came) {
  Transfer& transfer = *incoming.transfer;
  if (came.body.size() != transfer.bytes) {
    core_.fail(environment_error(fmt::format("rank {} sent {} bytes of {} to rank {}, not {}",
                                             peer_, came.body.size(), core_.call_text(),
                                             core_.rank(), transfer.bytes)));
    return false;
  }
  if (transfer.bytes > 0) std::memcpy(transfer.data, came.body.data(), transfer.bytes);
  read_++;
  finish(transfer);
  return true;
}

void WireLane::receive_pieces(Link& link) {
  for (Incoming& incoming : in_) {
    if (is_whole(*incoming.transfer)) continue;
    expect_more(link, incoming);
    if (incoming.told == incoming.expected) continue;
    incoming.told = incoming.expected;
    link.send(
        std::string(bytes_of(head_of(FrameKind::ready, incoming.sequence, incoming.expected))));
  }
}

void WireLane::expect_more(Link& link, Incoming& incoming) {
  uint64_t most =
      std::min(pieces_of(incoming.transfer->bytes), incoming.progress->done.load() + kPiecesAhead);
  for (; incoming.expected < most; incoming.expected++) {
    Region to = piece_of(*incoming.transfer, incoming.expected);
    link.expect(tag_of(incoming.sequence, incoming.expected), to,
                [this, progress = incoming.progress, landed = wire_.fly()](Result<size_t> came) {
                  if (came.ok())
                    progress->done++;
                  else
                    wire_.on_down(peer_, came.error());
                  landed();
                });
  }
}

void WireLane::finish_pieces() {
  std::erase_if(in_, [](const Incoming& incoming) {
    bool is_done = !is_whole(*incoming.transfer) && incoming.is_announced &&
                   incoming.progress->done.load() == pieces_of(incoming.transfer->bytes);
    if (is_done) finish(*incoming.transfer);
    return is_done;
  });
}

void WireLane::send_some(Link& link) {
  bool is_stopped = false;  // whole messages stay in order
  std::erase_if(out_, [&](Outgoing& outgoing) {
    if (is_whole(*outgoing.transfer) && is_stopped) return false;
    bool is_done = send_one(link, outgoing);
    if (is_done) finish(*outgoing.transfer);
    is_stopped = is_stopped || (is_whole(*outgoing.transfer) && !is_done);
    return is_done;
  });
}

/// Whether it is done with.
bool WireLane::send_one(Link& link, Outgoing& outgoing) {
  const Transfer& transfer = *outgoing.transfer;
  FrameHead head = head_of(FrameKind::announce, outgoing.sequence, 0);
  head.signature = transfer.signature;
  if (is_whole(transfer)) {
    if (unread_ == kUnreadMax) return false;
    unread_++;
    head.kind = FrameKind::data;
    std::string frame(bytes_of(head));
    if (transfer.bytes > 0) frame.append(transfer.data, transfer.bytes);
    link.send(std::move(frame));
    return true;
  }
  if (!outgoing.is_announced) link.send(std::string(bytes_of(head)));
  outgoing.is_announced = true;
  put_more(link, outgoing);
  return outgoing.progress->done.load() == pieces_of(transfer.bytes);
}

void WireLane::put_more(Link& link, Outgoing& outgoing) {
  uint64_t most = std::min(outgoing.ready, pieces_of(outgoing.transfer->bytes));
  for (; outgoing.put < most; outgoing.put++)
    link.put(tag_of(outgoing.sequence, outgoing.put), piece_of(*outgoing.transfer, outgoing.put),
             [this, progress = outgoing.progress, landed = wire_.fly()](Status there) {
               if (there.ok())
                 progress->done++;
               else
                 wire_.on_down(peer_, there.error());
               landed();
             });
}

}  // namespace flow::collective
