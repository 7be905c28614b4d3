// GET /metrics: gives a process's metrics to Prometheus.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/serve/http/http_server.hpp"
#include "flow/flow.hpp"

namespace flow {

class MetricsServer {
 public:
  /// The text of the metrics. Called on the server's own thread, one call at a time; it may block.
  using Collect = std::function<std::string()>;

  /// Listens. The error says what to do, also if the address is beyond loopback and the options do
  /// not permit that.
  static Result<std::unique_ptr<MetricsServer>> open(const MetricsOptions& options,
                                                     Collect collect);
  /// Waits for a call of `collect`.
  ~MetricsServer();

  /// "127.0.0.1:9117".
  const std::string& address() const { return address_; }

  /// Requests that wait for one collection; more are answered with 503.
  static constexpr size_t kWaitingMax = 64;

 private:
  explicit MetricsServer(Collect collect);
  void handle(const HttpRequest& request, HttpReply reply);
  void answer_requests();

  const Collect collect_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpReply> waiting_;
  bool is_stopping_ = false;
  std::thread thread_;
  std::unique_ptr<HttpServer> http_;  // last: it calls handle()
};

}  // namespace flow
