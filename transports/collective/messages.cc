#include "transports/collective/messages.hpp"

#include <algorithm>

#include "transports/collective/shm_channel.hpp"

namespace flow::collective {

Messages::Messages(CommunicatorState& state, RankLinks* rank_links)
    : state_(state),
      rank_links_(rank_links),
      shm_channels_(static_cast<size_t>(kChannelKinds * state.ranks())) {}

RankChannel& Messages::channel(int rank, ChannelKind kind) {
  const LocalRank* local = state_.local_rank(rank);
  if (local == nullptr) return rank_links_->channel(rank, kind);
  auto& shm_channel =
      shm_channels_[static_cast<size_t>(static_cast<int>(kind) * state_.ranks() + rank)];
  if (!shm_channel) shm_channel = std::make_unique<ShmChannel>(state_, *local, kind);
  return *shm_channel;
}

RankChannel& Messages::busy(int rank, ChannelKind kind) {
  RankChannel& channel = this->channel(rank, kind);
  if (std::find(busy_.begin(), busy_.end(), &channel) == busy_.end()) busy_.push_back(&channel);
  return channel;
}

void Messages::send(int rank, ChannelKind kind, Transfer& transfer) {
  busy(rank, kind).send(transfer);
}

void Messages::receive(int rank, ChannelKind kind, Transfer& transfer) {
  busy(rank, kind).receive(transfer);
}

void Messages::progress() {
  for (RankChannel* channel : busy_) channel->step();
  std::erase_if(busy_, [](const RankChannel* channel) { return channel->is_idle(); });
}

void Messages::end() {
  if (rank_links_ != nullptr) rank_links_->quiesce();
  for (RankChannel* channel : busy_) channel->drop();
  busy_.clear();
}

}  // namespace flow::collective
