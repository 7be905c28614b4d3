#include "engine/telemetry/metrics_server.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/serve/http/socket_address.hpp"
#include "engine/telemetry/metric_text.hpp"

namespace flow {

namespace {

constexpr size_t kConnectionsMax = 64;
constexpr const char* kPath = "/metrics";

std::string_view methods_of(std::string_view path) { return path == kPath ? "GET, HEAD" : ""; }

Result<Address> address_of(const MetricsOptions& options) {
  auto address = parse_address(options.listen);
  if (!address.ok())
    return user_error(fmt::format(
        "`--metrics {}` is not an address: {}. Give an address and a port, such as 127.0.0.1:9117",
        options.listen, address.error().message));
  if (address->host == "localhost") address->host = "127.0.0.1";
  if (!socket_address(address->host, address->port))
    return user_error(fmt::format(
        "`--metrics {}` needs a numeric address of this machine, such as 127.0.0.1 or 0.0.0.0, "
        "not the name `{}`",
        options.listen, address->host));
  if (!is_loopback(address->host) && !options.is_insecure)
    return user_error(fmt::format(
        "`--metrics {}` is beyond loopback, where everyone who reaches the port can read the "
        "metrics: they have neither TLS nor keys. Listen on 127.0.0.1, or permit it with "
        "--metrics-insecure",
        options.listen));
  return address;
}

}  // namespace

MetricsServer::MetricsServer(Collect collect) : collect_(std::move(collect)) {
  thread_ = engine_thread([this] { answer_requests(); });
}

MetricsServer::~MetricsServer() {
  http_.reset();
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::open(const MetricsOptions& options,
                                                           Collect collect) {
  auto address = address_of(options);
  FLOW_TRY(address);
  if (int code = listening_problem(*address); code != 0)
    return environment_error(fmt::format(
        "cannot serve metrics at `{}`: {}. Choose another address, or port 0 for a free one",
        address_text(*address), std::strerror(code)));
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(collect)));
  HttpOptions http;
  http.name = "metrics";
  http.address = address->host;
  http.port = address->port;
  http.rules.body_max = 0;
  http.rules.methods = methods_of;
  http.rules.hosts = {machine_name()};
  http.limits.connections_max = kConnectionsMax;
  auto opened =
      HttpServer::open(http, [&server = *server](const HttpRequest& request, HttpReply reply) {
        server.handle(request, std::move(reply));
      });
  FLOW_TRY(opened);
  server->http_ = std::move(*opened);
  address->port = server->http_->port();
  server->address_ = address_text(*address);
  return server;
}

void MetricsServer::handle(const HttpRequest& request, HttpReply reply) {
  if (request.path != kPath) return reply.send(error_response(404, "the metrics are at /metrics"));
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() < kWaitingMax) {
      waiting_.push_back(std::move(reply));
      changed_.notify_all();
      return;
    }
  }
  reply.send(busy_response(503, "too many requests wait for the metrics"));
}

// All requests that wait get the same text, so that many of them cost no more than one.
void MetricsServer::answer_requests() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    std::vector<HttpReply> replies = std::exchange(waiting_, {});
    lock.unlock();
    HttpResponse response;
    response.body = collect_();
    response.content_type = kMetricsContentType;
    for (HttpReply& reply : replies) reply.send(response);
    replies.clear();
    lock.lock();
  }
}

}  // namespace flow
