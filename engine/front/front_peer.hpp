// A peer of a front: a replica or an engine, by the first message that it sends.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/front/frame_socket.hpp"
#include "engine/front/front.hpp"
#include "engine/front/worker_gate.hpp"
#include "engine/protocol/front.pb.h"
#include "engine/serve/memory/replica_memory.hpp"

namespace flow {

/// What a peer may do beside what all may.
struct PeerAccess {
  /// Of a replica on another machine, which may be nothing else.
  std::optional<RemotePeer> remote{};
  std::function<Status(const front::Gate&)> open_gate{};  // for an engine
};

/// Only the loop's thread uses it.
class FrontPeer final : public FrontReplica {
 public:
  enum class Role : uint8_t { unknown, replica, engine };

  /// `ended` is called once, when the connection has ended; not by the constructor. `log` gets a
  /// line if that is a fault of the peer. All outlive it.
  FrontPeer(Front& front, EventLoop& loop, int socket, std::function<void(const std::string&)> log,
            std::function<void()> ended, PeerAccess access = {});
  ~FrontPeer() override;

  Role role() const { return role_; }
  /// Ends the connection. `why` is for the log; "" writes nothing.
  void disconnect(const std::string& why);

  void joined(const std::string& url) override;
  void start(uint64_t batch, const std::vector<const Tensors*>& parts,
             const std::vector<BatchedRequest>& requests) override;
  void release() override;
  void log(const std::string& line) override;

 private:
  void receive(const Bytes& frame);
  void receive_message(const front::ToFront& message);
  Result<Front::JoinRequest> join_request(const front::Join& join) const;
  void join(const front::Join& join);
  void open_gate(const front::Gate& gate);
  void set_traffic(const front::Traffic& traffic);
  void forget(const front::Forget& ended);
  void share_memory();
  void offer(const ReplicaMemory::Offer& offer);
  void release_inputs(const front::MemoryReleased& released);
  void send(const front::FromFront& message, int descriptor = -1);

  Front& front_;
  EventLoop& loop_;
  const std::function<void(const std::string&)> log_;
  const std::function<void()> ended_;
  const PeerAccess access_;
  const std::shared_ptr<FrameSocket> socket_;
  Role role_ = Role::unknown;
  bool is_released_ = false;
  std::string name_ = "a peer";  // for the log
  bool has_ended_ = false;
  std::unique_ptr<ReplicaMemory> memory_;  // null if the replica shares none
};

}  // namespace flow
