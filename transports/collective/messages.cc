#include "transports/collective/messages.hpp"

#include <algorithm>

#include "transports/collective/shm_channel.hpp"

namespace flow::collective {

Messages::Messages(Core& core, Wire* wire)
    : core_(core), wire_(wire), pipes_(static_cast<size_t>(kLanes * core.ranks())) {}

Lane& Messages::lane(int rank, LaneKind kind) {
  const Member* member = core_.member(rank);
  if (member == nullptr) return wire_->lane(rank, kind);
  auto& pipe = pipes_[static_cast<size_t>(static_cast<int>(kind) * core_.ranks() + rank)];
  if (!pipe) pipe = std::make_unique<PipeLane>(core_, *member, kind);
  return *pipe;
}

Lane& Messages::busy(int rank, LaneKind kind) {
  Lane& lane = this->lane(rank, kind);
  if (std::find(busy_.begin(), busy_.end(), &lane) == busy_.end()) busy_.push_back(&lane);
  return lane;
}

void Messages::send(int rank, LaneKind kind, Transfer& transfer) {
  busy(rank, kind).send(transfer);
}

void Messages::receive(int rank, LaneKind kind, Transfer& transfer) {
  busy(rank, kind).receive(transfer);
}

void Messages::pump() {
  for (Lane* lane : busy_) lane->step();
  std::erase_if(busy_, [](const Lane* lane) { return lane->is_idle(); });
}

void Messages::end() {
  if (wire_ != nullptr) wire_->quiet();
  for (Lane* lane : busy_) lane->drop();
  busy_.clear();
}

}  // namespace flow::collective
