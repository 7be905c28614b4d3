// The unix socket of a front, where replicas and engines connect. Replicas on other machines come
// through its gate.
#pragma once
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "engine/front/front_peer.hpp"
#include "flow/result.hpp"

namespace flow {

/// Only processes of the same user may connect. Only the loop's thread uses it, but for
/// construction, and destruction after the loop has stopped.
class FrontSocket {
 public:
  static constexpr size_t kPeersMax = 4096;
  static constexpr auto kFirstMessage = std::chrono::seconds(10);  // then a silent peer is dropped

  /// `front` and `loop` outlive it.
  /// `gate_file`: see WorkerGate.
  FrontSocket(Front& front, EventLoop& loop, std::function<void(const std::string&)> log,
              std::string gate_file = "");
  ~FrontSocket();

  /// Listens at `name` in the open folder, in place of what is there.
  Status listen(int folder, const std::string& name);
  size_t peers() const { return peers_.size(); }
  WorkerGate& gate() { return gate_; }

 private:
  void wait();
  void accept_some();
  void adopt(int socket);
  void add_peer(int socket, PeerAccess access);

  Front& front_;
  EventLoop& loop_;
  const std::function<void(const std::string&)> log_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  WorkerGate gate_;
  std::list<std::shared_ptr<FrontPeer>> peers_;  // up to kPeersMax
  boost::asio::steady_timer retry_;              // after file descriptors have run out
};

}  // namespace flow
