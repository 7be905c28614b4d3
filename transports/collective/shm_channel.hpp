// A channel between two ranks of one node: bytes through a ring buffer in shared memory, each
// message behind its signature.
#pragma once
#include <cstddef>
#include <deque>

#include "transports/collective/rank_channel.hpp"

namespace flow::collective {

class ShmChannel final : public RankChannel {
 public:
  ShmChannel(CommunicatorState& state, const LocalRank& peer, ChannelKind kind);
  void send(Transfer& transfer) override { out_.push_back({&transfer}); }
  void receive(Transfer& transfer) override { in_.push_back({&transfer}); }
  void step() override;
  bool is_idle() const override { return out_.empty() && in_.empty(); }
  void drop() override { out_.clear(), in_.clear(); }

 private:
  struct ShmTransfer {
    Transfer* transfer = nullptr;
    bool is_begun = false;  // its signature has been transferred
    size_t moved = 0;
  };
  bool push();
  bool pull();
  bool receive_signature(const Transfer& transfer);
  static void finish(std::deque<ShmTransfer>& moving);

  std::deque<ShmTransfer> out_, in_;

  Control& their_control_;
  ShmPipe &there_, &here_;
  const size_t size_;
};

}  // namespace flow::collective
