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
class Net;

using Accept = std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>;

struct Door {
  int socket = -1;
  std::string address;
  Accept accept;
  Listener::OnRejected on_rejected;
  bool is_full = false;  // no descriptors are left: it waits for the next look
  bool is_closed = false;
};

/// One who came to a door, or this process at another's.
struct Visit {
  Visit(int socket, Talk talk) : socket(socket), talk(std::move(talk)) {}
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  const int socket;
  Talk talk;
  SocketAddress peer;
  std::string unsent;
  int64_t began_us = 0;
  std::shared_ptr<Door> door;        // of one who came
  std::shared_ptr<Channel> channel;  // of one who goes: it opens
  bool is_connected = false;         // likewise: there is somebody
  bool is_told = false;              // likewise: where UCX awaits it
  bool has_spoken = false, is_trusted = false;
  std::unique_ptr<Awaited> awaited;  // of one who came and is proven
};

class Doors {
 public:
  explicit Doors(Net& net) : net_(net), listeners_(net) {}
  ~Doors();
  Doors(const Doors&) = delete;
  Doors& operator=(const Doors&) = delete;

  Status open();
  Result<std::shared_ptr<Door>> listen(const Address& address, Accept accept);
  void close(std::shared_ptr<Door> door);
  /// At that address the channel finds what it connects to; else it fails.
  void visit(const SocketAddress& address, std::shared_ptr<Channel> channel);

  int events() const { return events_; }  // readable when there is something to hear
  bool is_idle() const { return doors_.empty() && visits_.empty(); }
  bool hear();
  /// Makes links of what UCX was asked for.
  bool let_in();
  /// Ends visits that took too long, and what of UCX's listeners can be. Called now and then;
  /// whether it should be again soon, as some of these are still there.
  bool look(int64_t now_us);
  /// Nobody comes or goes any more.
  void end();

 private:
  Status watch(int socket, uint64_t id, uint32_t what);
  void begin(std::shared_ptr<Visit> visit, uint32_t what);
  void answer(const std::shared_ptr<Door>& door);
  bool answer_one(const std::shared_ptr<Door>& door);
  void make_room(const Door& door);
  void go_on(uint64_t id, uint32_t what);
  Status go_on(uint64_t id, Visit& visit, uint32_t what);
  Status hear(Visit& visit);
  Status say(uint64_t id, Visit& visit);
  Status take_to_ucx(uint64_t id, Visit& visit);
  Status await(Visit& visit);
  Status trust(const Visit& visit);
  void let_in(uint64_t id);
  std::vector<Ip> own_ips_told() const;
  void over(uint64_t id, const Status& why);

  Net& net_;
  Listeners listeners_;
  int events_ = -1;  // an epoll's
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Door>> doors_;
  std::unordered_map<uint64_t, std::shared_ptr<Visit>> visits_;
};

}  // namespace flow::ucx
