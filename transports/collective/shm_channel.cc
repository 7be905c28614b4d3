#include "transports/collective/shm_channel.hpp"

#include <algorithm>
#include <cstring>

namespace flow::collective {
namespace {

/// Copies up to the end of the ring and continues at its beginning: copy(position in the ring,
/// position in the data, size) copies one run.
template <typename Copy>
void in_ring(size_t ring, uint64_t position, size_t bytes, Copy copy) {
  size_t at = position % ring, first = std::min(bytes, ring - at);
  copy(at, size_t{0}, first);
  if (bytes > first) copy(size_t{0}, first, bytes - first);
}

}  // namespace

ShmChannel::ShmChannel(CommunicatorState& state, const LocalRank& peer, ChannelKind kind)
    : RankChannel(state, peer.rank),
      their_control_(peer.segment.control()),
      there_(state.local_rank(state.rank())->segment.pipe(kind, peer.rank)),
      here_(peer.segment.pipe(kind, state.rank())),
      size_(peer.segment.pipe_bytes()) {}

void ShmChannel::step() {
  bool has_moved = false;
  while (!out_.empty() && push()) has_moved = true;
  while (!in_.empty() && pull()) has_moved = true;
  if (has_moved) CommunicatorState::ring_doorbell(their_control_);
}

void ShmChannel::finish(std::deque<ShmTransfer>& moving) {
  Transfer& transfer = *moving.front().transfer;
  moving.pop_front();
  transfer.is_done.store(true, std::memory_order_release);
}

bool ShmChannel::push() {
  ShmTransfer& moving = out_.front();
  const Transfer& transfer = *moving.transfer;
  uint64_t head = there_.head.load(std::memory_order_relaxed), before = head;
  size_t free_bytes =
      size_ - static_cast<size_t>(head - there_.tail.load(std::memory_order_seq_cst));
  auto write = [&](const char* data, size_t bytes) {
    in_ring(size_, head, bytes, [&](size_t at, size_t from, size_t size) {
      std::memcpy(there_.data + at, data + from, size);
    });
    head += bytes;
    free_bytes -= bytes;
  };
  if (!moving.is_begun && free_bytes >= sizeof(CallSignature)) {
    write(reinterpret_cast<const char*>(&transfer.signature), sizeof(CallSignature));
    moving.is_begun = true;
  }
  size_t bytes = moving.is_begun ? std::min(free_bytes, transfer.bytes - moving.moved) : 0;
  if (bytes > 0) write(transfer.data + moving.moved, bytes);
  moving.moved += bytes;
  there_.head.store(head, std::memory_order_seq_cst);
  if (moving.is_begun && moving.moved == transfer.bytes) finish(out_);
  return head != before;
}

bool ShmChannel::receive_signature(const Transfer& transfer) {
  CallSignature received;
  in_ring(size_, here_.tail.load(std::memory_order_relaxed), sizeof received,
          [&](size_t at, size_t to, size_t size) {
            std::memcpy(reinterpret_cast<char*>(&received) + to, here_.data + at, size);
          });
  if (received == transfer.signature) return true;
  state_.fail(mismatch(peer_, received, state_.rank(), transfer.signature));
  return false;
}

bool ShmChannel::pull() {
  ShmTransfer& moving = in_.front();
  const Transfer& transfer = *moving.transfer;
  uint64_t tail = here_.tail.load(std::memory_order_relaxed), before = tail;
  size_t there = static_cast<size_t>(here_.head.load(std::memory_order_seq_cst) - tail);
  if (!moving.is_begun) {
    if (there < sizeof(CallSignature) || !receive_signature(transfer)) return false;
    moving.is_begun = true;
    tail += sizeof(CallSignature);
    there -= sizeof(CallSignature);
  }
  size_t bytes = std::min(there, transfer.bytes - moving.moved);
  if (bytes > 0)
    in_ring(size_, tail, bytes, [&](size_t at, size_t to, size_t size) {
      std::memcpy(transfer.data + moving.moved + to, here_.data + at, size);
    });
  moving.moved += bytes;
  tail += bytes;
  here_.tail.store(tail, std::memory_order_seq_cst);
  if (moving.moved == transfer.bytes) finish(in_);
  return tail != before;
}

}  // namespace flow::collective
