// The HTTP API of a service: routes, and the queue between the connection threads and the thread
// that predicts.
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/serve/batch.hpp"
#include "engine/serve/http_server.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kQueueMax = 1024;
constexpr size_t kFailuresMax =
    100;  // maximum number of failures between two batches that are logged individually
constexpr auto kHangUp = std::chrono::milliseconds(10);
constexpr int kAnswerRounds = 100;  // times kHangUp
constexpr auto kStopCheck = std::chrono::milliseconds(100);

/// The methods of each path, for the Allow header of a 405.
std::string_view methods_of(std::string_view path) {
  constexpr std::string_view kModels = "/v2/models/";
  const std::string_view gets = "GET, HEAD";
  if (path == "/v2" || path == "/v2/health/live" || path == "/v2/health/ready") return gets;
  if (!path.starts_with(kModels)) return {};
  path.remove_prefix(kModels.size());
  size_t slash = path.find('/');
  if (slash == 0 || path.empty()) return {};
  if (slash == std::string_view::npos || path.substr(slash) == "/ready") return gets;
  return path.substr(slash) == "/infer" ? "POST" : "";
}

Error listening_error(const std::string& name, int port, int code) {
  std::string what = fmt::format("the service `{}` cannot listen on port {} of 127.0.0.1: ", name,
                                 port == 0 ? "0 (any)" : std::to_string(port));
  if (code == EADDRINUSE && port != 0)
    return user_error(what +
                      "the port is in use. End the program that listens there, choose another "
                      "port, or write `port = 0` for a free one");
  if (code == EACCES)
    return user_error(what +
                      "this user may not listen on a port that low. Choose a port from 1024 on, or "
                      "write `port = 0` for a free one");
  if (code == EADDRNOTAVAIL)
    return environment_error(what +
                             "the machine does not have that address. Bring up its loopback "
                             "interface: `ip link set lo up`");
  return environment_error(what + std::strerror(code));
}

/// cpp-httplib does not report errno. Listens once more to find it.
int errno_of_listening(uint16_t port) {
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return errno;
  int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool listens = ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                 ::listen(listener, 1) == 0;
  int code = listens ? EADDRINUSE : errno;  // the port has become free since
  ::close(listener);
  return code;
}

struct PendingRequest {
  Tensors inputs;
  std::optional<Result<Tensors>> reply;
};

class ModelServerImpl final : public ModelServer {
 public:
  explicit ModelServerImpl(const ServiceOptions& options)
      : options_(options), server_(options.limits, kRequestBytesMax, methods_of) {}

  ~ModelServerImpl() override {
    close_queue();
    server_.stop();
    // Responses in progress are still written, for a limited time.
    for (int round = 0; thread_.joinable() && !ended_; round++) {
      server_.close(round >= kAnswerRounds);
      std::this_thread::sleep_for(kHangUp);
    }
    if (thread_.joinable()) thread_.join();
  }

  Status listen() {
    server_.set_payload_max_length(kRequestBytesMax);
    server_.set_keep_alive_max_count(10'000);
    // The library writes head and body of a response separately. Without this the body waits for
    // the client's delayed acknowledgement of the head, 40 ms per request.
    server_.set_tcp_nodelay(true);
    // Without SO_REUSEPORT, so that a port in use is an error instead of a second listener.
    server_.set_socket_options([](socket_t socket) {
      int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    });
    routes();
    bool is_any = options_.port == 0;
    port_ = is_any ? server_.bind_to_any_port("127.0.0.1") : int{options_.port};
    bool listens = is_any ? port_ > 0 : server_.bind_to_port("127.0.0.1", port_);
    if (!listens)
      return listening_error(options_.name, options_.port, errno_of_listening(options_.port));
    FLOW_TRY(server_.widen_backlog());
    FLOW_TRY(server_.start_threads());
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    return {};
  }

  std::string url() const override { return fmt::format("http://127.0.0.1:{}", port_); }

  void run(const Predict& predict, const std::function<bool()>& should_stop) override {
    {
      std::lock_guard lock(mutex_);
      ready_ = true;
    }
    while (!should_stop()) {
      std::vector<std::shared_ptr<PendingRequest>> batch = next_batch();
      if (!batch.empty()) answer(batch, predict);
      log_failures();
    }
    close_queue();
    log_failures();
  }

 private:
  static void send_error(httplib::Response& response, int status, const std::string& message) {
    response.status = status;
    response.set_content("{\"error\":" + to_json(Value(to_utf8(message))) + "}",
                         "application/json");
  }

  /// A failure of the service, not of its client; logged by the thread of `run`.
  void send_failure(httplib::Response& response, const std::string& id,
                    const std::string& message) {
    {
      std::lock_guard lock(mutex_);
      failed_++;
      if (failures_.size() < kFailuresMax)
        failures_.push_back(
            fmt::format("request{} failed: {}", id.empty() ? "" : " `" + id + "`", message));
    }
    send_error(response, 500, message);
  }

  void log_failures() {
    std::vector<std::string> failures;
    size_t failed = 0;
    {
      std::lock_guard lock(mutex_);
      failures.swap(failures_);
      failed = std::exchange(failed_, 0);
    }
    if (!options_.log) return;
    for (const std::string& failure : failures) options_.log(to_utf8(failure));
    if (failed > failures.size())
      options_.log(fmt::format("{} more requests failed", failed - failures.size()));
  }

  bool is_ready() {
    std::lock_guard lock(mutex_);
    return ready_ && !closed_;
  }

  void routes() {
    std::string model = "/v2/models/" + options_.name;
    auto json = [](httplib::Response& response, const std::string& text) {
      response.set_content(text, "application/json");
    };
    server_.Get("/v2", [json](const httplib::Request&, httplib::Response& response) {
      json(response, R"({"name":"flow","version":"1","extensions":[]})");
    });
    server_.Get("/v2/health/live", [json](const httplib::Request&, httplib::Response& response) {
      json(response, R"({"live":true})");
    });
    server_.Get("/v2/health/ready",
                [this, json](const httplib::Request&, httplib::Response& response) {
                  bool ready = is_ready();
                  response.status = ready ? 200 : 503;
                  json(response, fmt::format(R"({{"ready":{}}})", ready));
                });
    server_.Get("/v2/models/([^/]+)/ready",
                [this, json](const httplib::Request& request, httplib::Response& response) {
                  if (request.matches[1] != options_.name)
                    return unknown(response, request.matches[1]);
                  response.status = is_ready() ? 200 : 503;
                  json(response, fmt::format(R"({{"name":{},"ready":{}}})",
                                             to_json(Value(options_.name)), is_ready()));
                });
    server_.Get("/v2/models/([^/]+)", [this, json](const httplib::Request& request,
                                                   httplib::Response& response) {
      if (request.matches[1] != options_.name) return unknown(response, request.matches[1]);
      json(response,
           fmt::format(
               R"({{"name":{},"versions":["1"],"platform":"flow_lua","inputs":[],"outputs":[]}})",
               to_json(Value(options_.name))));
    });
    server_.Post("/v2/models/([^/]+)/infer",
                 [this](const httplib::Request& request, httplib::Response& response) {
                   if (request.matches[1] != options_.name)
                     return unknown(response, request.matches[1]);
                   infer(request, response);
                 });
    server_.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) send_error(response, response.status, "the request is not valid");
    });
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          send_error(response, 500, "the service failed to answer");
        });
  }

  void unknown(httplib::Response& response, const std::string& name) {
    send_error(response, 404,
               fmt::format("there is no model `{}` here, only `{}`", name, options_.name));
  }

  void infer(const httplib::Request& request, httplib::Response& response) {
    auto pending = std::make_shared<PendingRequest>();
    std::string id;
    auto inputs = parse_infer_request(request.body, id);
    if (!inputs.ok()) return send_error(response, 400, inputs.error().message);
    pending->inputs = std::move(*inputs);
    std::unique_lock lock(mutex_);
    if (closed_) return send_error(response, 503, "the service is stopping");
    if (queue_.size() >= kQueueMax)
      return send_error(response, 429, fmt::format("more than {} requests are queued", kQueueMax));
    queue_.push_back(pending);
    arrived_.notify_one();
    answered_.wait(lock, [&] { return pending->reply.has_value() || closed_; });
    if (!pending->reply) return send_error(response, 503, "the service is stopping");
    if (!pending->reply->ok()) {
      const Error& error = pending->reply->error();
      lock.unlock();
      if (error.kind == ErrorKind::user) return send_error(response, 400, error.message);
      return send_failure(response, id, error.message);
    }
    lock.unlock();
    auto text = print_infer_response(options_.name, id, **pending->reply);
    if (!text.ok()) return send_failure(response, id, text.error().message);
    response.set_content(*text, "application/json");
  }

  /// Selects requests for one batch: the same names, types and row shapes, up to batch_max rows,
  /// within the wait time of the first request.
  std::vector<std::shared_ptr<PendingRequest>> next_batch() {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, kStopCheck, [this] { return !queue_.empty(); });
    if (queue_.empty()) return {};
    auto full = [this] {
      int64_t rows = 0;
      for (const auto& pending : queue_) rows += rows_of(pending->inputs);
      return rows >= static_cast<int64_t>(options_.batch_max);
    };
    if (options_.batch_wait_us > 0)
      arrived_.wait_for(lock, std::chrono::microseconds(options_.batch_wait_us), full);
    std::vector<std::shared_ptr<PendingRequest>> batch;
    int64_t rows = 0;
    while (!queue_.empty()) {
      const Tensors& inputs = queue_.front()->inputs;
      int64_t more = rows_of(inputs);
      bool fits = batch.empty() || (can_join(batch.front()->inputs, inputs) &&
                                    rows + more <= static_cast<int64_t>(options_.batch_max));
      if (!fits) break;
      rows += more;
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    return batch;
  }

  void answer(std::vector<std::shared_ptr<PendingRequest>>& batch, const Predict& predict) {
    std::vector<const Tensors*> parts;
    std::vector<int64_t> rows;
    for (const auto& pending : batch) {
      parts.push_back(&pending->inputs);
      rows.push_back(rows_of(pending->inputs));
    }
    std::vector<Result<Tensors>> replies;
    if (batch.size() > 1) {
      auto outputs = guarded(predict, join_rows(parts));
      if (outputs.ok()) {
        auto split = split_rows(*outputs, rows);
        for (size_t i = 0; i < batch.size(); i++)
          replies.push_back(split.ok() ? Result<Tensors>(std::move((*split)[i]))
                                       : Result<Tensors>(split.error()));
      }
    }
    // Alone; also each request of a batch that failed, so that one bad request does not fail the
    // others.
    if (replies.empty()) {
      for (const Tensors* inputs : parts) replies.push_back(guarded(predict, *inputs));
    }
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < batch.size(); i++) batch[i]->reply = std::move(replies[i]);
    answered_.notify_all();
  }

  static Result<Tensors> guarded(const Predict& predict, const Tensors& inputs) {
    try {
      return predict(inputs);
    } catch (const std::exception& error) {
      return Error{ErrorKind::task, fmt::format("`predict` failed: {}", error.what())};
    }
  }

  void close_queue() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    answered_.notify_all();
  }

  ServiceOptions options_;
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable arrived_, answered_;
  std::deque<std::shared_ptr<PendingRequest>> queue_;  // up to kQueueMax
  bool ready_ = false, closed_ = false;
  std::vector<std::string> failures_;  // not logged yet
  size_t failed_ = 0;                  // including those beyond kFailuresMax
};

}  // namespace

Result<std::unique_ptr<ModelServer>> ModelServer::open(const ServiceOptions& options) {
  auto server = std::make_unique<ModelServerImpl>(options);
  FLOW_TRY(server->listen());
  return std::unique_ptr<ModelServer>(std::move(server));
}

}  // namespace flow
