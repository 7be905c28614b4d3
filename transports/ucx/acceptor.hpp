// Accepts and opens links: plain sockets on which both sides authenticate before UCX gets any data
// of the peer. On the UCX thread only.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/address.hpp"
#include "flow/transport.hpp"
#include "transports/ucx/auth_handshake.hpp"
#include "transports/ucx/listeners.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

class Channel;
class UcxThread;

using Accept = std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>;

struct ListenSocket {
  int socket = -1;
  std::string address;
  Accept accept;
  Listener::OnRejected on_rejected;
  bool is_full = false;  // no descriptors are left: accept again at the next check
  bool is_closed = false;
};

/// A connection to a listening socket of this process, or from this process to another's.
struct PendingConnection {
  PendingConnection(int socket, AuthHandshake handshake)
      : socket(socket), handshake(std::move(handshake)) {}
  ~PendingConnection();
  PendingConnection(const PendingConnection&) = delete;
  PendingConnection& operator=(const PendingConnection&) = delete;

  const int socket;
  AuthHandshake handshake;
  SocketAddress peer;
  std::string unsent;
  int64_t began_us = 0;
  std::shared_ptr<ListenSocket> listen_socket;  // of an incoming connection
  std::shared_ptr<Channel> channel;             // of an outgoing connection: the channel to open
  bool is_connected = false;                    // outgoing: the TCP connection is established
  bool has_ucx_port = false;                    // outgoing: the port of UCX is received
  bool has_sent_data = false, is_trusted = false;
  std::unique_ptr<PeerListener> peer_listener;  // of an authenticated incoming connection
};

class Acceptor {
 public:
  explicit Acceptor(UcxThread& ucx_thread) : ucx_thread_(ucx_thread), listeners_(ucx_thread) {}
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  Status open();
  Result<std::shared_ptr<ListenSocket>> listen(const Address& address, Accept accept);
  void close(std::shared_ptr<ListenSocket> listen_socket);
  /// Opens `channel` to that address; on failure the channel fails.
  void connect(const SocketAddress& address, std::shared_ptr<Channel> channel);

  int events() const { return events_; }  // readable when an event is pending
  bool is_idle() const { return listen_sockets_.empty() && pending_.empty(); }
  bool poll_events();
  /// Creates links for connection requests that UCX received.
  bool accept_requests();
  /// Ends connections that are late and destroys unused listeners of UCX. Call it periodically;
  /// true: call it again soon, because some listeners remain.
  bool check_deadlines(int64_t now_us);
  /// No connection begins any more.
  void end();

 private:
  Status watch(int socket, uint64_t id, uint32_t what);
  void begin(std::shared_ptr<PendingConnection> pending, uint32_t what);
  void accept_all(const std::shared_ptr<ListenSocket>& listen_socket);
  bool accept_one(const std::shared_ptr<ListenSocket>& listen_socket);
  void evict_oldest_unproven(const ListenSocket& listen_socket);
  void handle_events(uint64_t id, uint32_t what);
  Status handle_events(uint64_t id, PendingConnection& pending, uint32_t what);
  Status receive(PendingConnection& pending);
  Status send(uint64_t id, PendingConnection& pending);
  Status hand_to_ucx(uint64_t id, PendingConnection& pending);
  Status open_listener(PendingConnection& pending);
  Status trust(const PendingConnection& pending);
  void accept_request(uint64_t id);
  std::vector<Ip> advertised_ips() const;
  void finish(uint64_t id, const Status& why);

  UcxThread& ucx_thread_;
  Listeners listeners_;
  int events_ = -1;  // an epoll
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<ListenSocket>> listen_sockets_;
  std::unordered_map<uint64_t, std::shared_ptr<PendingConnection>> pending_;
};

}  // namespace flow::ucx
