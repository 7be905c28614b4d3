// Where links come in, and how they go out: plain sockets at which both sides prove themselves
// before UCX hears of either. On the net thread only.
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
  bool is_full = false;  // no descriptors are left: it waits for the next look
  bool is_closed = false;
};

/// One who came to a door, or this process at another's.
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
  std::shared_ptr<ListenSocket> listen_socket;  // of one who came
  std::shared_ptr<Channel> channel;             // of one who goes: it opens
  bool is_connected = false;                    // likewise: there is somebody
  bool has_ucx_port = false;                    // likewise: where UCX awaits it
  bool has_sent_data = false, is_trusted = false;
  std::unique_ptr<PeerListener> peer_listener;  // of one who came and is proven
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
  /// At that address the channel finds what it connects to; else it fails.
  void connect(const SocketAddress& address, std::shared_ptr<Channel> channel);

  int events() const { return events_; }  // readable when there is something to hear
  bool is_idle() const { return listen_sockets_.empty() && pending_.empty(); }
  bool poll_events();
  /// Makes links of what UCX was asked for.
  bool accept_requests();
  /// Ends visits that took too long, and what of UCX's listeners can be. Called now and then;
  /// whether it should be again soon, as some of these are still there.
  bool check_deadlines(int64_t now_us);
  /// Nobody comes or goes any more.
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
  int events_ = -1;  // an epoll's
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<ListenSocket>> listen_sockets_;
  std::unordered_map<uint64_t, std::shared_ptr<PendingConnection>> pending_;
};

}  // namespace flow::ucx
