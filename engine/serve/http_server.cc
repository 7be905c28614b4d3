#include "engine/serve/http_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "engine/base/wait.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kQueueMax = 256;  // connections that wait for a thread
constexpr auto kWriteTime = std::chrono::seconds(60);
constexpr auto kLingerTime = std::chrono::seconds(1);
constexpr auto kRoomCheck = std::chrono::milliseconds(100);
constexpr size_t kPieceBytes = 64 * 1024;

thread_local bool at_the_door = false;  // on the thread that accepts, for one that finds no place

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

std::string refusal_text(const Refusal& refusal, bool head_alone) {
  std::string body = "{\"error\":" + to_json(Value(to_utf8(refusal.message))) + "}";
  std::string allow = refusal.allow.empty() ? "" : "Allow: " + refusal.allow + "\r\n";
  return fmt::format(
      "HTTP/1.1 {} {}\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      refusal.status, reason_of(refusal.status), allow, body.size(), head_alone ? "" : body);
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

/// A request that was read whole, to the library.
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
  Clock::time_point deadline_;  // from the first byte of the answer
};

}  // namespace

/// Threads as they are needed, to a bound.
class Door::Crew final : public httplib::TaskQueue {
 public:
  explicit Crew(Door& door) : door_(door) {}

  void enqueue(std::function<void()> serve) override {
    {
      std::lock_guard lock(mutex_);
      if (jobs_.size() < kQueueMax) {
        jobs_.push_back(std::move(serve));
        bool more = jobs_.size() > free_ && threads_.size() < door_.limits_.connections_max;
        if (more) threads_.emplace_back([this] { work(); });
        arrived_.notify_one();
        return make_room();
      }
      make_room();
    }
    at_the_door = true;
    serve();
    at_the_door = false;
  }

  void on_idle() override {
    std::lock_guard lock(mutex_);
    make_room();
  }

  void shutdown() override {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      arrived_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void make_room() {
    bool can_grow = threads_.size() < door_.limits_.connections_max;
    if (!can_grow && jobs_.size() > free_) door_.give_way(jobs_.size() - free_);
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      free_++;
      arrived_.wait(lock, [this] { return ended_ || !jobs_.empty(); });
      free_--;
      if (jobs_.empty()) return;
      auto serve = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      serve();
      lock.lock();
    }
  }

  Door& door_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> jobs_;  // up to kQueueMax
  std::vector<std::thread> threads_;        // up to connections_max
  size_t free_ = 0;
  bool ended_ = false;
};

/// What one connection says, request after request. On its own thread.
class Door::Talk {
 public:
  Talk(Door& door, Visitor& visitor) : door_(door), visitor_(visitor) {}

  /// Whether another request may follow.
  bool serve() {
    if (!turn(Visitor::Phase::idle)) return false;
    auto text = read_head_text();
    if (!text) return false;
    auto verdict = read_head(*text, door_.body_max_, door_.methods_);
    if (auto* refusal = std::get_if<Refusal>(&verdict))
      return refuse(*refusal, text->starts_with("HEAD "));
    const Head& head = std::get<Head>(verdict);
    if (head.expects_continue && buffer_.empty() &&
        !send_all(visitor_.socket, "HTTP/1.1 100 Continue\r\n\r\n", Clock::now() + kWriteTime))
      return false;
    auto body = read_body(head);
    if (!body || !turn(Visitor::Phase::answered)) return false;
    std::string whole = fmt::format("{} {} HTTP/1.1\r\n", head.method, head.target);
    if (!head.accept_encoding.empty())
      whole += fmt::format("Accept-Encoding: {}\r\n", head.accept_encoding);
    if (head.method == "POST") whole += fmt::format("Content-Length: {}\r\n", body->size());
    whole += "\r\n";
    whole += *body;
    WholeRequest stream(visitor_.socket, std::move(whole));
    bool closed = false;
    return door_.process_request(stream, head.close, closed, nullptr) && !closed && !head.close &&
           !stream.is_readable();
  }

 private:
  enum class Got { bytes, end, late };

  bool turn(Visitor::Phase phase) {
    std::lock_guard lock(door_.mutex_);
    visitor_.phase = phase;
    visitor_.since = Clock::now();
    bool stays = phase == Visitor::Phase::answered || !door_.closed_;
    return stays && !visitor_.leaving;
  }

  Got fill(Clock::time_point deadline) {
    if (!wait_ready(visitor_.socket, POLLIN, deadline)) return Got::late;
    size_t before = buffer_.size();
    buffer_.resize(before + kPieceBytes);
    ssize_t got = ::recv(visitor_.socket, buffer_.data() + before, kPieceBytes, MSG_DONTWAIT);
    bool again = got < 0 && (errno == EAGAIN || errno == EINTR);
    buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return got > 0 || again ? Got::bytes : Got::end;
  }

  /// None where the connection ended, or was refused.
  std::optional<std::string> read_head_text() {
    auto deadline = Clock::now() + std::chrono::milliseconds(door_.limits_.idle_ms);
    bool asking = false;
    for (;;) {
      while (buffer_.starts_with("\r\n")) buffer_.erase(0, 2);
      size_t end = end_of_head(buffer_);
      if (end > kHeadBytesMax || (end == 0 && buffer_.size() > kHeadBytesMax)) {
        refuse({431, fmt::format("the head is larger than {} bytes", kHeadBytesMax)});
        return {};
      }
      if (end > 0) {
        std::string text = buffer_.substr(0, end);
        buffer_.erase(0, end);
        return text;
      }
      if (!asking && !buffer_.empty()) {
        asking = true;
        deadline = Clock::now() + std::chrono::milliseconds(door_.limits_.head_ms);
        if (!turn(Visitor::Phase::asking)) return {};
      }
      Got got = fill(deadline);
      if (got == Got::bytes) continue;
      if (asking && got == Got::late) refuse({408, "the head of the request came too slowly"});
      if (asking && got == Got::end) refuse({400, "the request ends within its head"});
      return {};
    }
  }

  std::optional<std::string> read_body(const Head& head) {
    if (!turn(Visitor::Phase::asking)) return {};
    auto deadline = Clock::now() + std::chrono::milliseconds(door_.limits_.body_ms);
    std::string body;
    Chunks chunks(door_.body_max_);
    for (;;) {
      if (head.chunked) {
        Chunks::State state = chunks.take(buffer_, body);
        if (state == Chunks::State::whole) return body;
        if (state == Chunks::State::too_large) {
          refuse({413, fmt::format("the body is larger than {} bytes", door_.body_max_)});
          return {};
        }
        if (state == Chunks::State::broken) {
          refuse({400, "the chunks of the body are broken"});
          return {};
        }
      } else if (buffer_.size() >= head.length) {
        std::string rest = buffer_.substr(head.length);
        buffer_.resize(head.length);
        return std::exchange(buffer_, rest);
      }
      Got got = fill(deadline);
      if (got == Got::bytes) continue;
      if (got == Got::late) refuse({408, "the body of the request came too slowly"});
      if (got == Got::end) refuse({400, "the request ends within its body"});
      return {};
    }
  }

  /// Says why and reads on for a moment: to close on unread bytes would take the answer back.
  bool refuse(const Refusal& refusal, bool head_alone = false) {
    if (!turn(Visitor::Phase::asking)) return false;
    auto deadline = Clock::now() + kLingerTime;
    if (!send_all(visitor_.socket, refusal_text(refusal, head_alone), deadline)) return false;
    ::shutdown(visitor_.socket, SHUT_WR);
    do buffer_.clear();
    while (fill(deadline) == Got::bytes);
    return false;
  }

  Door& door_;
  Visitor& visitor_;
  std::string buffer_;
};

Door::Door(const ServiceLimits& limits, uint64_t body_max, Methods methods)
    : limits_(limits), body_max_(body_max), methods_(methods) {
  new_task_queue = [this] { return new Crew(*this); };
  set_idle_interval(kRoomCheck);
  set_keep_alive_timeout(limits.idle_ms / 1000);  // what the answers announce
}

Status Door::widen_backlog() {
  if (::listen(svr_sock_, SOMAXCONN) == 0) return {};
  return environment_error(fmt::format("listen: {}", std::strerror(errno)));
}

bool Door::process_and_close_socket(socket_t socket) {
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  if (at_the_door) {
    turn_away(socket);
    return true;
  }
  Visitors::iterator visitor;
  bool welcome = false;
  {
    std::lock_guard lock(mutex_);
    visitor = visitors_.insert(visitors_.end(), {socket, Visitor::Phase::idle, Clock::now()});
    welcome = !closed_;
  }
  Talk talk(*this, *visitor);
  while (welcome && talk.serve()) {
  }
  std::lock_guard lock(mutex_);
  visitors_.erase(visitor);
  ::close(socket);
  return true;
}

/// Those that have said nothing for longest; then those that began to ask.
void Door::give_way(size_t wanted) {
  std::lock_guard lock(mutex_);
  auto latest = Clock::now() - std::chrono::milliseconds(limits_.patience_ms);
  std::vector<Visitor*> waited;
  for (Visitor& visitor : visitors_) {
    if (visitor.leaving && wanted-- == 1) return;
    bool busy = visitor.phase == Visitor::Phase::answered;
    if (!visitor.leaving && !busy && visitor.since <= latest) waited.push_back(&visitor);
  }
  std::sort(waited.begin(), waited.end(), [](const Visitor* a, const Visitor* b) {
    return std::pair(a->phase, a->since) < std::pair(b->phase, b->since);
  });
  if (waited.size() > wanted) waited.resize(wanted);
  for (Visitor* visitor : waited) {
    visitor->leaving = true;
    ::shutdown(visitor->socket, SHUT_RDWR);
  }
}

void Door::turn_away(int socket) {
  std::string text = refusal_text({503, "too many connections wait here"}, false);
  ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(socket);
}

void Door::close(bool all) {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (Visitor& visitor : visitors_) {
    if (all || visitor.phase != Visitor::Phase::answered) ::shutdown(visitor.socket, SHUT_RDWR);
  }
}

}  // namespace flow
