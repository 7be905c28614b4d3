// The channels to all other ranks, over shared memory and links.
#pragma once
#include <memory>
#include <vector>

#include "transports/collective/rank_channel.hpp"
#include "transports/collective/rank_links.hpp"

namespace flow::collective {

/// Called by the thread that executes calls.
class Messages {
 public:
  /// `rank_links` is null where all ranks are on this node.
  Messages(CommunicatorState& state, RankLinks* rank_links);

  void send(int rank, ChannelKind kind, Transfer& transfer);
  void receive(int rank, ChannelKind kind, Transfer& transfer);
  void progress();
  /// The communicator has failed: when this returns, no transfer's memory is accessed any more.
  void end();

 private:
  RankChannel& channel(int rank, ChannelKind kind);
  RankChannel& busy(int rank, ChannelKind kind);

  CommunicatorState& state_;
  RankLinks* rank_links_;
  std::vector<std::unique_ptr<RankChannel>> shm_channels_;  // by kind and rank; null: not used yet
  std::vector<RankChannel*> busy_;
};

}  // namespace flow::collective
