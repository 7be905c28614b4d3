// Messages between two ranks, in order, one lane for users' and one for collectives'.
#pragma once
#include <atomic>
#include <cstddef>

#include "transports/collective/communicator_state.hpp"

namespace flow::collective {

/// One message, at one side. It and its memory stay until it is done or dropped.
struct Transfer {
  Signature signature;
  char* data = nullptr;
  size_t bytes = 0;
  bool is_begun = false;  // the other side has had a part in it
  std::atomic<bool> is_done{false};
};

/// By whoever runs a call. What goes wrong fails the core.
class RankChannel {
 public:
  RankChannel(CommunicatorState& state, int peer) : state_(state), peer_(peer) {}
  virtual ~RankChannel() = default;
  virtual void send(Transfer& transfer) = 0;
  virtual void receive(Transfer& transfer) = 0;
  /// Moves what can be moved now.
  virtual void step() = 0;
  virtual bool is_idle() const = 0;
  /// The communicator has failed, and nobody writes any more: forgets what is under way.
  virtual void drop() = 0;
  int peer() const { return peer_; }

 protected:
  CommunicatorState& state_;
  const int peer_;
};

}  // namespace flow::collective
