#include "engine/serve/http/http_proxy.hpp"

#include <fmt/format.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "engine/serve/http/event_counter.hpp"
#include "engine/serve/http/forwarded_fields.hpp"
#include "engine/serve/http/http_upload.hpp"
#include "engine/serve/http/upstream_response.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

using Clock = std::chrono::steady_clock;
using Tcp = asio::ip::tcp;
using Stream = asio::generic::stream_protocol::socket;
using Code = boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kPieceBytes = 64 * 1024;  // of a body that is handed on
constexpr int kReadsMax = 16;              // before another connection has its turn

/// Whether the upstream has neither closed the connection nor sent what nobody asked for.
bool is_quiet(Stream& socket) {
  char byte = 0;
  ssize_t got = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

bool is_event_stream(const UpstreamHead& head) {
  constexpr std::string_view kType = "text/event-stream";
  return std::ranges::any_of(head.fields, [&](const HttpField& field) {
    return ::strcasecmp(field.name.c_str(), "content-type") == 0 &&
           ::strncasecmp(field.value.c_str(), kType.data(), kType.size()) == 0;
  });
}

/// The idle connections to one upstream.
class ProxyPool : public std::enable_shared_from_this<ProxyPool> {
 public:
  ProxyPool(asio::io_context& context, uint16_t port, const ProxyLimits& limits,
            HttpProxy::Check check)
      : context(context),
        upstream(Tcp::endpoint(asio::ip::address_v4::loopback(), port)),
        limits(limits),
        check(std::move(check)),
        timer_(context) {}
  ProxyPool(asio::io_context& context, HttpProxy::Connect connect, const ProxyLimits& limits)
      : context(context), limits(limits), connect(std::move(connect)), timer_(context) {}

  std::optional<Stream> take() {
    while (!kept_.empty()) {
      Stream socket = std::move(kept_.back().socket);
      kept_.pop_back();
      if (is_quiet(socket)) return socket;
    }
    return std::nullopt;
  }

  void keep(Stream socket) {
    if (is_closed_) return;
    if (kept_.size() >= limits.kept_max) kept_.pop_front();
    kept_.push_back({std::move(socket), Clock::now()});
    if (!is_waiting_) wait();
  }

  void close() {
    is_closed_ = true;
    kept_.clear();
    timer_.cancel();
  }

  asio::io_context& context;
  const asio::generic::stream_protocol::endpoint upstream;
  const ProxyLimits limits;
  const HttpProxy::Check check;
  const HttpProxy::Connect connect;  // instead of `upstream`
  size_t in_flight = 0;
  std::vector<char> buffer = std::vector<char>(kReadBytes);  // one connection at a time uses it

 private:
  struct Kept {
    Stream socket;
    Clock::time_point since;
  };

  void wait() {
    is_waiting_ = true;
    timer_.expires_at(kept_.front().since + milliseconds(limits.kept_ms));
    timer_.async_wait([weak = weak_from_this()](const Code& error) {
      auto self = weak.lock();
      if (self && !error) self->drop_old();
    });
  }

  void drop_old() {
    is_waiting_ = false;
    auto limit = Clock::now() - milliseconds(limits.kept_ms);
    while (!kept_.empty() && kept_.front().since <= limit) kept_.pop_front();
    if (!kept_.empty()) wait();
  }

  std::deque<Kept> kept_;  // the oldest first; up to kept_max
  asio::steady_timer timer_;
  bool is_waiting_ = false, is_closed_ = false;
};

namespace {

/// One request and its response. It lives as long as one of its handlers waits, or it is paused.
class ProxyExchange : public std::enable_shared_from_this<ProxyExchange> {
 public:
  ProxyExchange(std::shared_ptr<ProxyPool> pool, ProxiedRequest proxied, HttpProxy::Done done)
      : pool_(std::move(pool)),
        proxied_(std::move(proxied)),
        done_(std::move(done)),
        upload_(proxied_.request.upload),
        head_(forwarded_head(proxied_.request)),
        timer_(pool_->context) {}

  void start();

 private:
  using Kind = ProxyOutcome::Kind;

  void connect();
  void connect_elsewhere();
  void connected();
  Status check() const { return pool_->check ? pool_->check() : Status(); }
  void wait_until(Clock::time_point deadline);
  void on_timer();
  void send_request();
  void send_more();
  bool prepare_send();
  bool prepare_piece();
  void frame_piece(std::string_view bytes);
  void end_sending();
  ssize_t send_part();
  void wait_writable();
  void on_upload();
  void move_deadline();
  void wait_for_bytes();
  void read_some();
  void resume();
  void consume(std::string_view bytes);
  void begin_response();
  void note_body(std::string_view body);
  /// `is_closed`: in the orderly way, which ends a response without a length.
  void on_end(const std::string& reason, bool is_closed = false);
  void finish(bool is_clean);
  void fail(const std::string& error);
  void leave();
  void report(Kind kind, int status, std::string message = {});

  /// Calls `handle` when Asio has an event for this attempt, unless it has ended before.
  template <class Handle>
  auto when(Handle handle) {
    return [self = shared_from_this(), attempt = attempt_, handle](const Code& error) {
      if (!self->is_over_ && self->attempt_ == attempt) handle(*self, error);
    };
  }

  const std::shared_ptr<ProxyPool> pool_;
  ProxiedRequest proxied_;
  HttpProxy::Done done_;
  const std::shared_ptr<HttpUpload> upload_;  // the body of the request, or null
  const std::string head_;
  asio::steady_timer timer_;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point connect_deadline_;
  std::optional<Stream> socket_;
  std::optional<UpstreamResponseReader> reader_;
  BodyTimes body_;
  std::optional<EventCounter> events_;  // for a response of type text/event-stream
  std::string piece_;                   // of the upload, as it is framed; at first the head
  size_t piece_bytes_ = 0;              // of the upload in piece_
  size_t sent_ = 0;                     // of the head and the body, or of piece_
  int attempt_ = 1;
  std::shared_ptr<ProxyExchange> paused_;  // itself, while the client must read first
  bool is_kept_ = false;                   // the connection was used before
  bool is_connecting_ = false, is_waiting_ = false;
  bool is_sending_ = false, is_blocked_ = false;  // the request; until the socket takes more
  bool is_last_piece_ = false;                    // piece_ ends the chunks of the upload
  bool is_sent_ = false;                          // the whole request: the socket has all of it
  bool has_begun_ = false;                        // the client's response
  bool is_over_ = false;
};

void ProxyExchange::start() {
  pool_->in_flight++;
  if (upload_) {
    upload_->set_kept(proxied_.is_repeatable || is_safe_method(proxied_.request.method));
    upload_->watch([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->on_upload();
    });
    if (upload_->error()) return on_upload();
  }
  proxied_.reply.watch(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->resume();
      },
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->leave();
      });
  // A kept connection may end just now, and a large body cannot be sent again.
  if (!upload_ || !upload_->length()) socket_ = pool_->take();
  is_kept_ = socket_.has_value();
  if (!is_kept_) return connect();
  wait_until(proxied_.deadline);
  send_request();
}

void ProxyExchange::connect() {
  is_connecting_ = true;
  socket_.emplace(pool_->context);
  connect_deadline_ = Clock::now() + milliseconds(pool_->limits.connect_ms);
  wait_until(std::min(connect_deadline_, proxied_.deadline));
  if (pool_->connect) return connect_elsewhere();
  socket_->async_connect(pool_->upstream, when([](ProxyExchange& self, const Code& error) {
                           if (error) return self.report(Kind::unreachable, 0, error.message());
                           if (Status checked = self.check(); !checked.ok())
                             return self.report(Kind::unreachable, 0, checked.error().message);
                           self.connected();
                         }));
}

void ProxyExchange::connect_elsewhere() {
  pool_->connect([weak = weak_from_this(), attempt = attempt_](Result<int> socket) {
    auto self = weak.lock();
    bool is_awaited = self && !self->is_over_ && self->attempt_ == attempt;
    if (!is_awaited && socket.ok()) ::close(*socket);
    if (!is_awaited) return;
    if (!socket.ok()) return self->report(Kind::unreachable, 0, socket.error().message);
    Code error;
    self->socket_->assign(asio::generic::stream_protocol(AF_UNIX, 0), *socket, error);
    if (error) {
      ::close(*socket);
      return self->report(Kind::unreachable, 0, error.message());
    }
    self->connected();
  });
}

void ProxyExchange::connected() {
  is_connecting_ = false;
  Code ignored;
  socket_->set_option(Tcp::no_delay(true), ignored);  // not for a socket of another kind
  socket_->native_non_blocking(true, ignored);
  wait_until(proxied_.deadline);
  send_request();
}

void ProxyExchange::wait_until(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(deadline);
  timer_.async_wait(when([](ProxyExchange& self, const Code& error) {
    if (!error) self.on_timer();
  }));
}

void ProxyExchange::on_timer() {
  if (has_begun_) return;
  auto now = Clock::now();
  if (proxied_.deadline <= now) {
    std::string message = "the request was not answered within its timeout";
    proxied_.reply.send(error_response(504, message));
    return report(Kind::timeout, 504, message);
  }
  if (is_connecting_ && connect_deadline_ <= now)
    report(Kind::unreachable, 0,
           fmt::format("it did not accept a connection within {} ms", pool_->limits.connect_ms));
}

// ---- The request

void ProxyExchange::send_request() {
  sent_ = piece_bytes_ = 0;
  is_sending_ = true;
  is_sent_ = is_blocked_ = is_last_piece_ = false;
  reader_.emplace(proxied_.request.method == "HEAD");
  if (upload_) {
    piece_ = head_;
    upload_->start();
  }
  send_more();
  wait_for_bytes();  // also while it is being sent: the upstream may reject it early
}

void ProxyExchange::send_more() {
  while (upload_ ? prepare_piece() : prepare_send()) {
    ssize_t sent = send_part();
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return wait_writable();
    } else if (errno != EINTR) {
      is_sending_ = false;
      return;  // what it has answered before it closed the connection can still be read
    }
  }
}

/// For a request without an upload. False if the socket has all of it.
bool ProxyExchange::prepare_send() {
  is_sent_ = sent_ == head_.size() + proxied_.request.body.size();
  is_sending_ = !is_sent_;
  return is_sending_;
}

/// Puts the next bytes of the upload into piece_, once the socket has the last ones. False if
/// nothing can be sent now: on_upload() continues when more of the upload has arrived.
bool ProxyExchange::prepare_piece() {
  if (upload_->is_cancelled()) return false;  // the client has left: leave() is called soon
  if (sent_ < piece_.size()) return true;
  upload_->take(std::exchange(piece_bytes_, 0));
  sent_ = 0;
  piece_.clear();
  if (std::string_view bytes = upload_->next(kPieceBytes); !bytes.empty()) {
    frame_piece(bytes);
    return true;
  }
  if (!upload_->has_ended()) {
    timer_.cancel();  // the upstream has no deadline while the client is awaited
    return false;
  }
  const bool is_chunked = !upload_->length();
  if (is_chunked && !std::exchange(is_last_piece_, true)) {
    piece_ = "0\r\n\r\n";
    return true;
  }
  end_sending();
  return false;
}

void ProxyExchange::frame_piece(std::string_view bytes) {
  const bool is_chunked = !upload_->length();
  if (is_chunked) piece_ = fmt::format("{:x}\r\n", bytes.size());
  piece_ += bytes;
  if (is_chunked) piece_ += "\r\n";
  piece_bytes_ = bytes.size();
}

/// The socket has the whole upload.
void ProxyExchange::end_sending() {
  is_sending_ = false;
  is_sent_ = true;
  move_deadline();
}

/// As sendmsg().
ssize_t ProxyExchange::send_part() {
  std::array<iovec, 2> parts;
  size_t count = 0;
  auto add = [&](const std::string& text, size_t sent) {
    if (sent >= text.size()) return;
    parts[count++] = {const_cast<char*>(text.data()) + sent, text.size() - sent};
  };
  if (upload_) {
    add(piece_, sent_);
  } else {
    add(head_, sent_);
    add(proxied_.request.body, sent_ - std::min(sent_, head_.size()));
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  return ::sendmsg(socket_->native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ProxyExchange::wait_writable() {
  is_blocked_ = true;
  if (upload_) move_deadline();
  socket_->async_wait(Stream::wait_write, when([](ProxyExchange& self, const Code& error) {
                        self.is_blocked_ = false;
                        if (!error) self.send_more();
                      }));
}

/// The client has sent more of the body, or will not.
void ProxyExchange::on_upload() {
  if (is_over_) return;
  if (!upload_->error()) {
    if (is_sending_ && !is_blocked_) send_more();
    return;
  }
  HttpError error = *upload_->error();
  if (has_begun_) {
    proxied_.reply.abort();
    return report(Kind::left, 499, error.message);
  }
  proxied_.reply.send(error_response(error.status, error.message));
  report(Kind::rejected, error.status, error.message);
}

/// The upstream has taken a part of the body.
void ProxyExchange::move_deadline() {
  if (has_begun_ || !proxied_.patience) return;
  proxied_.deadline = Clock::now() + *proxied_.patience;
  wait_until(proxied_.deadline);
}

// ---- The response

void ProxyExchange::wait_for_bytes() {
  if (is_waiting_) return;
  is_waiting_ = true;
  socket_->async_wait(Stream::wait_read, when([](ProxyExchange& self, const Code& error) {
                        self.is_waiting_ = false;
                        if (error) return self.on_end(error.message());
                        self.read_some();
                      }));
}

void ProxyExchange::read_some() {
  for (int count = 0; count < kReadsMax && !paused_; count++) {
    std::vector<char>& buffer = pool_->buffer;
    ssize_t got = ::recv(socket_->native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0)
      return on_end(got == 0 ? "it closed the connection" : std::strerror(errno), got == 0);
    int attempt = attempt_;
    consume({buffer.data(), static_cast<size_t>(got)});
    if (is_over_ || attempt != attempt_) return;
  }
  if (!paused_) wait_for_bytes();
}

/// The client has read most of what was written.
void ProxyExchange::resume() {
  if (is_over_ || !paused_) return;
  paused_.reset();  // the caller has another reference
  read_some();
}

void ProxyExchange::consume(std::string_view bytes) {
  using State = UpstreamResponseReader::State;
  std::string body;
  size_t taken = reader_->read(bytes, body);
  State state = reader_->state();
  if (!has_begun_ && (state == State::body || state == State::whole)) begin_response();
  if (has_begun_ && !body.empty()) {
    note_body(body);
    if (!proxied_.reply.write(std::move(body))) paused_ = shared_from_this();
  }
  if (state == State::failed) return fail(reader_->error());
  if (state == State::whole) finish(taken == bytes.size());
}

void ProxyExchange::begin_response() {
  has_begun_ = true;
  timer_.cancel();
  if (is_sent_) std::string().swap(proxied_.request.body);  // the response may last for hours
  const UpstreamHead& head = reader_->head();
  if (is_event_stream(head)) events_.emplace();
  proxied_.reply.begin(
      {.status = head.status, .fields = forwarded_fields(head.fields), .length = head.length});
}

void ProxyExchange::note_body(std::string_view body) {
  Clock::time_point now = Clock::now();
  if (!body_.first) body_.first = now;
  uint64_t events = events_ ? events_->count(body) : 0;
  if (events == 0) return;
  if (body_.events == 0) body_.first_event = now;
  body_.events += events;
  body_.last_event = now;
}

void ProxyExchange::on_end(const std::string& reason, bool is_closed) {
  if (is_closed) reader_->end();
  if (reader_->state() == UpstreamResponseReader::State::whole) return finish(false);
  if (upload_ && upload_->is_cancelled()) return leave();
  if (has_begun_) return fail(is_closed ? reader_->error() : reason);
  bool repeats = is_kept_ && !reader_->has_begun() &&
                 (proxied_.is_repeatable || is_safe_method(proxied_.request.method)) &&
                 (!upload_ || upload_->is_repeatable());
  if (!repeats) return report(Kind::died, 0, reason);
  attempt_++;
  is_kept_ = is_waiting_ = is_sending_ = false;
  if (upload_) upload_->rewind();
  proxied_.renew_deadline();
  connect();
}

/// `is_clean`: nothing follows the response.
void ProxyExchange::finish(bool is_clean) {
  if (is_clean && is_sent_ && reader_->keeps_connection()) pool_->keep(std::move(*socket_));
  auto reply = std::move(proxied_.reply);
  int status = reader_->head().status;
  report(Kind::responded, status);
  reply.end();
}

/// What the upstream sent is no response, or not the rest of one.
void ProxyExchange::fail(const std::string& error) {
  std::string message = "the response of the program behind the service is broken: " + error;
  if (has_begun_) {
    proxied_.reply.abort();
    return report(Kind::broken, reader_->head().status, message);
  }
  proxied_.reply.send(error_response(502, message));
  report(Kind::invalid, 502, message);
}

void ProxyExchange::leave() {
  if (is_over_) return;
  proxied_.reply.abort();
  report(Kind::left, 499);
}

void ProxyExchange::report(Kind kind, int status, std::string message) {
  is_over_ = true;
  auto self = std::exchange(paused_, nullptr);  // it may be the last reference
  timer_.cancel();
  socket_.reset();
  pool_->in_flight--;
  bool may_repeat = kind == Kind::unreachable || kind == Kind::died;  // at another upstream
  if (upload_ && !may_repeat) upload_->cancel();
  if (upload_ && may_repeat && upload_->is_repeatable()) upload_->rewind();
  auto duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun_);
  auto done = std::exchange(done_, nullptr);
  done({kind, status, duration, std::move(message), body_}, std::move(proxied_));
}

}  // namespace

bool is_safe_method(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS" || method == "TRACE";
}

HttpProxy::HttpProxy(asio::io_context& context, uint16_t port, const ProxyLimits& limits,
                     Check check)
    : pool_(std::make_shared<ProxyPool>(context, port, limits, std::move(check))) {}

HttpProxy::HttpProxy(asio::io_context& context, Connect connect, const ProxyLimits& limits)
    : pool_(std::make_shared<ProxyPool>(context, std::move(connect), limits)) {}

HttpProxy::~HttpProxy() {
  asio::post(pool_->context, [pool = pool_] { pool->close(); });
}

void HttpProxy::forward(ProxiedRequest request, Done done) {
  std::make_shared<ProxyExchange>(pool_, std::move(request), std::move(done))->start();
}

size_t HttpProxy::in_flight() const { return pool_->in_flight; }

}  // namespace flow
