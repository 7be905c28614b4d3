// The lanes to all other ranks, over shared memory and links.
#pragma once
#include <memory>
#include <vector>

#include "transports/collective/rank_channel.hpp"
#include "transports/collective/wire.hpp"

namespace flow::collective {

/// By whoever runs a call.
class Messages {
 public:
  /// `wire` is null where all ranks are on this node.
  Messages(Core& core, Wire* wire);

  void send(int rank, LaneKind kind, Transfer& transfer);
  void receive(int rank, LaneKind kind, Transfer& transfer);
  void pump();
  /// The communicator has failed: when this returns, no transfer's memory is touched any more.
  void end();

 private:
  Lane& lane(int rank, LaneKind kind);
  Lane& busy(int rank, LaneKind kind);

  Core& core_;
  Wire* wire_;
  std::vector<std::unique_ptr<Lane>> pipes_;  // by lane and rank; null: not used yet
  std::vector<Lane*> busy_;
};

}  // namespace flow::collective
