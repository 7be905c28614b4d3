#include "engine/serve/http_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "engine/base/wait.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kQueueMax = 256;  // maximum number of connections that wait for a thread
constexpr auto kWriteTime = std::chrono::seconds(60);
constexpr auto kLingerTime = std::chrono::seconds(1);
constexpr auto kEvictionCheck = std::chrono::milliseconds(100);
constexpr size_t kReadBytes = 64 * 1024;

thread_local bool is_accepting_thread =
    false;  // run on the accepting thread, for a connection that is not accepted

const char* reason_of(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "HTTP Version Not Supported";
  }
}

std::string error_response(const HttpError& error, bool without_body) {
  std::string body = "{\"error\":" + to_json(Value(to_utf8(error.message))) + "}";
  std::string allow = error.allow.empty() ? "" : "Allow: " + error.allow + "\r\n";
  return fmt::format(
      "HTTP/1.1 {} {}\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      error.status, reason_of(error.status), allow, body.size(), without_body ? "" : body);
}

bool send_all(int socket, std::string_view text, Clock::time_point deadline) {
  while (!text.empty()) {
    ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && errno == EINTR) {
      continue;
    } else if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK) ||
               !wait_ready(socket, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

/// Passes a complete request to the library.
class WholeRequest final : public httplib::Stream {
 public:
  WholeRequest(int socket, std::string text)
      : socket_(socket), text_(std::move(text)), deadline_(Clock::time_point::max()) {}

  bool is_readable() const override { return at_ < text_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    size_t taken = text_.copy(to, size, at_);
    at_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* from, size_t size) override {
    if (deadline_ == Clock::time_point::max()) deadline_ = Clock::now() + kWriteTime;
    return send_all(socket_, {from, size}, deadline_) ? static_cast<ssize_t>(size) : -1;
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  int socket_;
  std::string text_;
  size_t at_ = 0;
  Clock::time_point deadline_;  // counted from the first byte of the response
};

}  // namespace

/// Connections that wait for a thread. If all threads are taken, idle connections make room.
class HttpServer::ConnectionQueue final : public httplib::TaskQueue {
 public:
  explicit ConnectionQueue(HttpServer& server) : server_(server) {}

  void enqueue(std::function<void()> serve) override {
    bool is_posted = server_.threads_->try_post(serve);
    evict_for_waiting();
    if (is_posted) return;
    is_accepting_thread = true;
    serve();
    is_accepting_thread = false;
  }

  void on_idle() override { evict_for_waiting(); }

  void shutdown() override { server_.threads_.reset(); }

 private:
  void evict_for_waiting() {
    size_t excess = server_.threads_->excess_jobs();
    if (excess > 0) server_.evict_idle(excess);
  }

  HttpServer& server_;
};

/// Handles the requests of one connection, on its own thread.
class HttpServer::HttpConnection {
 public:
  HttpConnection(HttpServer& server, ServedConnection& served) : server_(server), served_(served) {}

  /// Whether another request may follow.
  bool serve() {
    if (!enter_phase(ServedConnection::Phase::idle)) return false;
    auto text = read_head_text();
    if (!text) return false;
    auto verdict = read_head(*text, server_.body_max_, server_.methods_);
    if (auto* error = std::get_if<HttpError>(&verdict))
      return reject(*error, text->starts_with("HEAD "));
    const RequestHead& head = std::get<RequestHead>(verdict);
    if (head.expects_continue && buffer_.empty() &&
        !send_all(served_.socket, "HTTP/1.1 100 Continue\r\n\r\n", Clock::now() + kWriteTime))
      return false;
    auto body = read_body(head);
    if (!body || !enter_phase(ServedConnection::Phase::answered)) return false;
    std::string whole = fmt::format("{} {} HTTP/1.1\r\n", head.method, head.target);
    if (!head.accept_encoding.empty())
      whole += fmt::format("Accept-Encoding: {}\r\n", head.accept_encoding);
    if (head.method == "POST") whole += fmt::format("Content-Length: {}\r\n", body->size());
    whole += "\r\n";
    whole += *body;
    WholeRequest stream(served_.socket, std::move(whole));
    bool closed = false;
    return server_.process_request(stream, head.close, closed, nullptr) && !closed && !head.close &&
           !stream.is_readable();
  }

 private:
  enum class Got { bytes, end, late };

  bool enter_phase(ServedConnection::Phase phase) {
    std::lock_guard lock(server_.mutex_);
    served_.phase = phase;
    served_.since = Clock::now();
    bool stays = phase == ServedConnection::Phase::answered || !server_.closed_;
    return stays && !served_.is_evicted;
  }

  Got fill(Clock::time_point deadline) {
    if (!wait_ready(served_.socket, POLLIN, deadline)) return Got::late;
    size_t before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    ssize_t got = ::recv(served_.socket, buffer_.data() + before, kReadBytes, MSG_DONTWAIT);
    bool again = got < 0 && (errno == EAGAIN || errno == EINTR);
    buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return got > 0 || again ? Got::bytes : Got::end;
  }

  /// Nothing if the connection ended or the request was rejected.
  std::optional<std::string> read_head_text() {
    auto deadline = Clock::now() + std::chrono::milliseconds(server_.limits_.idle_ms);
    bool asking = false;
    for (;;) {
      while (buffer_.starts_with("\r\n")) buffer_.erase(0, 2);
      size_t end = end_of_head(buffer_);
      if (end > kHeadBytesMax || (end == 0 && buffer_.size() > kHeadBytesMax)) {
        reject({431, fmt::format("the head is larger than {} bytes", kHeadBytesMax)});
        return {};
      }
      if (end > 0) {
        std::string text = buffer_.substr(0, end);
        buffer_.erase(0, end);
        return text;
      }
      if (!asking && !buffer_.empty()) {
        asking = true;
        deadline = Clock::now() + std::chrono::milliseconds(server_.limits_.head_ms);
        if (!enter_phase(ServedConnection::Phase::asking)) return {};
      }
      Got got = fill(deadline);
      if (got == Got::bytes) continue;
      if (asking && got == Got::late) reject({408, "the head of the request arrived too slowly"});
      if (asking && got == Got::end) reject({400, "the request ends within its head"});
      return {};
    }
  }

  std::optional<std::string> read_body(const RequestHead& head) {
    if (!enter_phase(ServedConnection::Phase::asking)) return {};
    auto deadline = Clock::now() + std::chrono::milliseconds(server_.limits_.body_ms);
    std::string body;
    ChunkedDecoder chunks(server_.body_max_);
    for (;;) {
      if (head.chunked) {
        ChunkedDecoder::State state = chunks.decode(buffer_, body);
        if (state == ChunkedDecoder::State::whole) return body;
        if (state == ChunkedDecoder::State::too_large) {
          reject({413, fmt::format("the body is larger than {} bytes", server_.body_max_)});
          return {};
        }
        if (state == ChunkedDecoder::State::broken) {
          reject({400, "the chunks of the body are broken"});
          return {};
        }
      } else if (buffer_.size() >= head.length) {
        std::string rest = buffer_.substr(head.length);
        buffer_.resize(head.length);
        return std::exchange(buffer_, rest);
      }
      Got got = fill(deadline);
      if (got == Got::bytes) continue;
      if (got == Got::late) reject({408, "the body of the request arrived too slowly"});
      if (got == Got::end) reject({400, "the request ends within its body"});
      return {};
    }
  }

  /// Sends the error and reads for a moment: closing a socket with unread bytes would discard the
  /// response.
  bool reject(const HttpError& error, bool without_body = false) {
    if (!enter_phase(ServedConnection::Phase::asking)) return false;
    auto deadline = Clock::now() + kLingerTime;
    if (!send_all(served_.socket, error_response(error, without_body), deadline)) return false;
    ::shutdown(served_.socket, SHUT_WR);
    do buffer_.clear();
    while (fill(deadline) == Got::bytes);
    return false;
  }

  HttpServer& server_;
  ServedConnection& served_;
  std::string buffer_;
};

HttpServer::HttpServer(const ServiceLimits& limits, uint64_t body_max, Methods methods)
    : limits_(limits), body_max_(body_max), methods_(methods) {
  new_task_queue = [this] { return new ConnectionQueue(*this); };
  set_idle_interval(kEvictionCheck);
  set_keep_alive_timeout(limits.idle_ms / 1000);  // announced in responses
}

Status HttpServer::start_threads() {
  auto started = ThreadPool::start(
      {.name = "flow-http", .threads_max = limits_.connections_max, .queue_max = kQueueMax});
  FLOW_TRY(started);
  threads_ = std::move(*started);
  return {};
}

Status HttpServer::widen_backlog() {
  if (::listen(svr_sock_, SOMAXCONN) == 0) return {};
  return environment_error(fmt::format("listen: {}", std::strerror(errno)));
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  if (is_accepting_thread) {
    reject_overload(socket);
    return true;
  }
  ServedConnections::iterator served;
  bool is_open = false;
  {
    std::lock_guard lock(mutex_);
    served = connections_.insert(connections_.end(),
                                 {socket, ServedConnection::Phase::idle, Clock::now()});
    is_open = !closed_;
  }
  HttpConnection connection(*this, *served);
  while (is_open && connection.serve()) {
  }
  std::lock_guard lock(mutex_);
  connections_.erase(served);
  ::close(socket);
  return true;
}

/// Evicts connections: first those that have been silent longest, then those with the oldest
/// incomplete request.
void HttpServer::evict_idle(size_t wanted) {
  std::lock_guard lock(mutex_);
  auto latest = Clock::now() - std::chrono::milliseconds(limits_.evict_after_ms);
  std::vector<ServedConnection*> evictable;
  for (ServedConnection& served : connections_) {
    if (served.is_evicted && wanted-- == 1) return;
    bool busy = served.phase == ServedConnection::Phase::answered;
    if (!served.is_evicted && !busy && served.since <= latest) evictable.push_back(&served);
  }
  std::sort(evictable.begin(), evictable.end(),
            [](const ServedConnection* a, const ServedConnection* b) {
              return std::pair(a->phase, a->since) < std::pair(b->phase, b->since);
            });
  if (evictable.size() > wanted) evictable.resize(wanted);
  for (ServedConnection* served : evictable) {
    served->is_evicted = true;
    ::shutdown(served->socket, SHUT_RDWR);
  }
}

void HttpServer::reject_overload(int socket) {
  std::string text = error_response({503, "too many connections wait here"}, false);
  ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(socket);
}

void HttpServer::close(bool all) {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (ServedConnection& served : connections_) {
    if (all || served.phase != ServedConnection::Phase::answered)
      ::shutdown(served.socket, SHUT_RDWR);
  }
}

}  // namespace flow
