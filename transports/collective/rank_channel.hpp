// Messages between two ranks, in order; one channel for users' messages and one for collectives.
#pragma once
#include <atomic>
#include <cstddef>

#include "transports/collective/communicator_state.hpp"

namespace flow::collective {

/// One message, at one side. It and its memory stay valid until it is done or dropped.
struct Transfer {
  CallSignature signature;
  char* data = nullptr;
  size_t bytes = 0;
  bool is_begun = false;  // the peer has taken part in it
  std::atomic<bool> is_done{false};
};

/// Called by the thread that executes calls. Errors fail the communicator.
class RankChannel {
 public:
  RankChannel(CommunicatorState& state, int peer) : state_(state), peer_(peer) {}
  virtual ~RankChannel() = default;
  virtual void send(Transfer& transfer) = 0;
  virtual void receive(Transfer& transfer) = 0;
  /// Makes all progress that is possible now.
  virtual void step() = 0;
  virtual bool is_idle() const = 0;
  /// The communicator has failed and no peer writes any more: drops all transfers.
  virtual void drop() = 0;
  int peer() const { return peer_; }

 protected:
  CommunicatorState& state_;
  const int peer_;
};

}  // namespace flow::collective
