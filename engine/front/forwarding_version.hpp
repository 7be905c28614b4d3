// One version of a service whose replicas are HTTP servers of their own: requests are forwarded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/http_proxy.hpp"
#include "engine/serve/service_version.hpp"

namespace flow {

/// Only the loop's thread uses it.
class ForwardingVersion final : public ServiceVersion {
 public:
  /// Runs of a request whose servers die.
  static constexpr int kRunsMax = 3;

  /// As ServiceVersion; `loop` outlives it too.
  ForwardingVersion(std::string id, ServiceOptions options, EventLoop& loop,
                    std::function<void(const std::string&)> log, std::function<void()> changed);
  ~ForwardingVersion() override;

  /// Sends a request to the server with the fewest, and its response back. Without a server it
  /// waits for one.
  void forward(HttpRequest request, HttpReply reply);

  std::string full_text() const override;
  size_t queued() const override { return waiting_.size(); }
  size_t running() const override { return running_; }
  /// The server of the replica also listens with this socket now, as in its description.
  void add_socket(const FrontReplica& replica, uint64_t cookie);

  void hand_over(const std::function<std::shared_ptr<ServiceVersion>()>& next) override;
  /// Requests that servers have are left to them.
  size_t close() override;
  void set_leaving(FrontReplica& replica, bool is_replaced) override;
  bool has_staying() const override;

 private:
  struct Server;
  struct ServerSockets;
  struct Request {
    ProxiedRequest proxied;
    Clock::time_point arrived;
    uint64_t last_server = 0;  // that died while it had the request; 0: none did
    int runs = 0;              // that ended with the death of a server
    bool has_begun = false;    // a server had it
    std::shared_ptr<const bool> is_server_leaving{};  // of its last server; null: none had it
  };

  RequestWaits waits(Clock::time_point now) const override;
  ReplicaState state(const FrontReplica& replica) const override;
  void begin(FrontReplica& replica, const FrontReplica::Description& description) override;
  void end(FrontReplica& replica) override;
  bool is_overdue() const override;
  Clock::time_point next_request_event() const override;
  void run_requests_due(Clock::time_point now) override;

  Server& server_of(const FrontReplica& replica) const;
  size_t requests_max() const;
  Server* choose(const Request& request) const;
  void send_on(Request request);
  void start(Server& server, Request request);
  void finish(Request request, uint64_t number, const ProxyOutcome& outcome);
  void note_body(const Request& request, const ProxyOutcome& outcome);
  void run_again(Request request, uint64_t number, const ProxyOutcome& outcome);
  std::string why_not_repeated(const Request& request, const std::string& cause) const;
  void fail(Request& request, const std::string& message);
  /// Answers a request that is not accepted.
  void refuse(Request& request, int status, const std::string& message);
  /// Answers a request that was accepted.
  void reject(Request& request, int status, const std::string& message);
  static void answer(Request& request, int status, const std::string& message);

  EventLoop& loop_;
  std::vector<std::unique_ptr<Server>> servers_;  // of the replicas, which the front bounds
  std::function<std::shared_ptr<ServiceVersion>()> next_;  // that of the last hand_over()
  std::deque<Request> waiting_;  // for a server; with running_ up to requests_max()
  Clock::time_point next_deadline_ = Clock::time_point::max();  // of waiting_, or earlier
  size_t running_ = 0;
  uint64_t last_number_ = 0;  // of a server
  uint64_t starts_ = 0;       // of requests at servers
  bool is_closed_ = false;
};

}  // namespace flow
