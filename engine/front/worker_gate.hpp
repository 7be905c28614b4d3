// The TCP listener of a front for the workers of other machines. A worker's relay connects to it
// for each replica that runs there; a connection that does not prove that it holds the cluster's
// secret is dropped, and nothing that it sends gets beyond the handshake.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/cluster/session/rejections.hpp"
#include "engine/protocol/front.pb.h"
#include "engine/relay/relay_notes.hpp"
#include "engine/relay/sealed_pipe.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/http_proxy.hpp"
#include "flow/result.hpp"

namespace flow {

/// A replica on another machine.
struct RemotePeer {
  std::string worker;  // that it runs on
  /// Makes a connection to this port of the worker's 127.0.0.1, for as long as the replica is
  /// connected. Nothing listens for it on this machine, where others could use it.
  std::function<void(uint16_t port, HttpProxy::Connected done)> connect{};
};

/// Only the loop's thread uses it, but for construction, and destruction after the loop has
/// stopped.
class WorkerGate {
 public:
  static constexpr size_t kPipesMax = 4096;
  static constexpr size_t kHandshakesMax = 256;  // of them; further connections are dropped

  /// `adopt` gets one end of a new local connection to the replica, and owns it.
  using Adopt = std::function<void(int socket, RemotePeer peer)>;

  /// `port_file`: where open() writes "PORT PID"; a later front with this file takes the same port
  /// if it is free.
  WorkerGate(EventLoop& loop, std::string port_file, Adopt adopt,
             std::function<void(const std::string&)> log);
  ~WorkerGate();

  /// Listens as an engine asks. Of a repeated call only what has changed counts.
  Status open(const front::Gate& gate);
  /// 0 before open().
  uint16_t port() const { return port_; }

 private:
  struct Entry {
    std::shared_ptr<SealedPipe> pipe;
    bool is_open = false;
  };
  struct Wanted {
    HttpProxy::Connected done;
    std::weak_ptr<SealedPipe> asked;  // the pipe of the replica
  };
  using Entries = std::list<Entry>;

  Status listen(const std::string& host);
  void wait();
  void accept(boost::asio::ip::tcp::socket socket);
  void note(Entries::iterator entry, const std::string& text);
  void add_replica(Entries::iterator entry);
  void add_server(Entries::iterator entry, uint64_t number);
  void refuse_server(uint64_t number, const std::string& why);
  void connect(const std::shared_ptr<SealedPipe>& pipe, uint16_t port, HttpProxy::Connected done);
  void end(Entries::iterator entry, const std::string& why);
  void reject(const std::string& address, const std::string& why);
  size_t handshakes() const;

  EventLoop& loop_;
  const std::string port_file_;
  const Adopt adopt_;
  const std::function<void(const std::string&)> log_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;  // after file descriptors have run out
  std::string host_;
  uint16_t port_ = 0;
  cluster::SessionOptions options_;
  cluster::RejectionLog rejections_;
  Entries entries_;  // up to kPipesMax
  uint64_t last_number_ = 0;
  // Connections for which a worker was asked, by number; entries leave after kServerTime.
  std::map<uint64_t, Wanted> wanted_;
};

}  // namespace flow
