#include "engine/serve/http/http_server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/serve/http/connection_table.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/http_connection.hpp"
#include "engine/serve/http/http_listener.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Connection = std::shared_ptr<HttpConnection>;

constexpr auto kTick = milliseconds(50);  // resolution of all limits of time
constexpr auto kLingerTime = milliseconds(1'000);
constexpr auto kSlowClient = milliseconds(1'000);  // then a body or response gives way to others
constexpr auto kCertificateReport = std::chrono::hours(24);
constexpr milliseconds kExpiresSoon = std::chrono::hours(7 * 24);

}  // namespace

class HttpServerImpl : public std::enable_shared_from_this<HttpServerImpl> {
 public:
  /// Without a loop it has one of its own.
  HttpServerImpl(const HttpOptions& options, HttpServer::Handler handler, EventLoop* loop);

  Status listen();
  uint16_t port() const { return listener_.port(); }
  size_t connections() const { return shared_.table.size(); }
  boost::asio::io_context& context() { return shared_.context; }
  void send(Connection connection, HttpResponse response);
  void act(Connection connection, std::function<void(HttpConnection&)> action);
  bool write(const Connection& connection, std::string bytes);
  void begin_drain(std::function<void()> drained);
  bool wait_drained(int64_t timeout_ms);
  void set_hosts(std::vector<std::string> hosts) { shared_.options.rules.hosts = std::move(hosts); }
  void stop();

 private:
  using Action = std::function<void(HttpConnection&)>;
  struct Completion {
    Connection connection;
    std::variant<HttpResponse, Action> what;
  };

  void report(const std::string& line) const;
  bool adopt(int socket);
  bool evict_oldest(Clock::time_point now);
  void retry_parked(Clock::time_point now);
  void post(Completion completion);
  void flush_completed();
  void wait_for_tick();
  void tick(Clock::time_point now);
  void end_slow(Clock::time_point now);
  void end_silent(Clock::time_point now);
  void drop_slow_readers(Clock::time_point now);
  void evict_slow(HttpConnection& wanting, uint64_t bytes);
  void reload_certificates(Clock::time_point now);
  void report_certificates();
  void drain(Clock::time_point now);
  void check_drained();

  std::unique_ptr<EventLoop> own_loop_;
  EventLoop& loop_;
  HttpShared shared_;
  const HttpServer::Handler handler_;
  const size_t connections_max_;
  HttpListener listener_;
  asio::steady_timer timer_{shared_.context};
  Clock::time_point draining_since_, certificates_reported_, next_room_;
  int64_t expires_at_ms_ = 0;  // as reported
  std::function<void()> on_drained_;

  std::mutex mutex_;
  std::condition_variable drained_changed_;
  std::vector<Completion> completed_;  // one per waiting connection, or one per part of a stream
  bool is_drained_ = false, is_stopped_ = false;
};

HttpServerImpl::HttpServerImpl(const HttpOptions& options, HttpServer::Handler handler,
                               EventLoop* loop)
    : own_loop_(loop == nullptr ? std::make_unique<EventLoop>("flow-http", options.log) : nullptr),
      loop_(loop == nullptr ? *own_loop_ : *loop),
      shared_(options, loop_.context()),
      handler_(std::move(handler)),
      connections_max_(connections_permitted(options.limits.connections_max)),
      listener_(shared_.context, [this](int socket) { return adopt(socket); }) {
  shared_.handle = [this](HttpRequest request, Connection connection) {
    handler_(std::move(request), HttpReply(shared_from_this(), std::move(connection)));
  };
  shared_.evict_slow = [this](HttpConnection& wanting, uint64_t bytes) {
    evict_slow(wanting, bytes);
  };
  shared_.on_close = [this] {
    // Not at once: the caller may be looking at the table.
    if (listener_.parked_since())
      asio::post(shared_.context, [this] { retry_parked(Clock::now()); });
    check_drained();
  };
}

Status HttpServerImpl::listen() {
  const HttpOptions& options = shared_.options;
  if (options.tls) {
    auto context = TlsContext::open(*options.tls);
    FLOW_TRY(context);
    shared_.tls = std::move(*context);
    report_certificates();
  }
  Status listening;
  loop_.run([&] {
    listening = listener_.listen(options);
    if (listening.ok()) wait_for_tick();
  });
  return listening;
}

void HttpServerImpl::report(const std::string& line) const {
  if (shared_.options.log) shared_.options.log(line);
}

// ---- Connections

bool HttpServerImpl::adopt(int socket) {
  if (shared_.table.size() >= connections_max_ && !evict_oldest(Clock::now())) return false;
  Connection connection;
  try {
    connection = std::make_shared<HttpConnection>(shared_, listener_.protocol(), socket);
  } catch (const std::exception& error) {  // the system's limit of watched files, or memory
    ::close(socket);
    report(fmt::format("a connection cannot be accepted: {}", error.what()));
    return true;
  }
  shared_.table.add(connection);
  connection->start();
  return true;
}

/// Makes a place for a new connection: closes the one that has waited longest for a request, or
/// else for the rest of one.
bool HttpServerImpl::evict_oldest(Clock::time_point now) {
  auto patience = milliseconds(shared_.options.limits.evict_after_ms);
  for (Phase phase : {Phase::lingering, Phase::idle, Phase::head, Phase::body}) {
    const auto& all = shared_.table.all(phase);
    if (all.empty() || all.front()->entry().since + patience > now) continue;
    all.front()->close();
    return true;
  }
  return false;
}

/// If the requests of all connections are whole, the parked one is refused.
void HttpServerImpl::retry_parked(Clock::time_point now) {
  auto since = listener_.parked_since();
  if (!since) return;
  auto patience = milliseconds(shared_.options.limits.evict_after_ms);
  if (!listener_.retry_parked() && *since + patience <= now) {
    HttpResponse response = busy_response(503, "too many connections are open");
    listener_.refuse_parked(shared_.tls ? "" : response_head(response, true) + response.body);
  }
  listener_.resume();
}

void HttpServerImpl::send(Connection connection, HttpResponse response) {
  if (loop_.is_current()) return connection->respond(std::move(response));
  post({std::move(connection), std::move(response)});
}

void HttpServerImpl::act(Connection connection, Action action) {
  if (loop_.is_current()) return action(*connection);
  post({std::move(connection), std::move(action)});
}

bool HttpServerImpl::write(const Connection& connection, std::string bytes) {
  if (loop_.is_current()) return connection->write(std::move(bytes));
  bool may_continue = connection->post_write(bytes.size());
  post({connection, [bytes = std::move(bytes), may_continue](HttpConnection& each) mutable {
          each.write_posted(std::move(bytes), !may_continue);
        }});
  return may_continue;
}

void HttpServerImpl::post(Completion completion) {
  bool is_first = false;
  {
    std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    is_first = completed_.empty();
    completed_.push_back(std::move(completion));
  }
  if (is_first) asio::post(shared_.context, [this] { flush_completed(); });
}

void HttpServerImpl::flush_completed() {
  std::vector<Completion> completed;
  {
    std::lock_guard lock(mutex_);
    completed.swap(completed_);
  }
  for (Completion& each : completed) {
    if (auto* response = std::get_if<HttpResponse>(&each.what))
      each.connection->respond(std::move(*response));
    else
      std::get<Action>(each.what)(*each.connection);
  }
}

// ---- Limits of time

void HttpServerImpl::wait_for_tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    tick(Clock::now());
    wait_for_tick();
  });
}

void HttpServerImpl::tick(Clock::time_point now) {
  end_slow(now);
  if (shared_.tls) reload_certificates(now);
  retry_parked(now);
  if (shared_.is_draining) drain(now);
  listener_.resume();  // after a pause for want of a file descriptor
}

void HttpServerImpl::end_slow(Clock::time_point now) {
  const HttpLimits& limits = shared_.options.limits;
  auto lapsed = [&](Phase phase, int64_t ms) {
    return shared_.table.lapsed(phase, milliseconds(ms), now);
  };
  for (const Connection& each : lapsed(Phase::idle, limits.idle_ms)) each->close();
  for (const Connection& each : lapsed(Phase::head, limits.head_ms))
    each->reject({408, "the head of the request arrived too slowly"});
  for (const Connection& each : lapsed(Phase::body, limits.body_ms))
    each->reject({408, "the body of the request arrived too slowly"});
  for (const Connection& each : lapsed(Phase::writing, limits.write_ms))
    if (each->is_overdue(now)) each->close();
  end_silent(now);
  drop_slow_readers(now);
  for (const Connection& each : lapsed(Phase::lingering, kLingerTime.count())) each->close();
  for (const Connection& each : lapsed(Phase::waiting, limits.half_closed_ms))
    if (each->has_ended()) each->abandon();
}

/// Bodies that are handed on while they arrive may take any time, but not stop.
void HttpServerImpl::end_silent(Clock::time_point now) {
  auto patience = milliseconds(shared_.options.limits.body_ms);
  for (Phase phase : {Phase::waiting, Phase::writing})
    for (const Connection& each : shared_.table.lapsed(phase, patience, now))
      if (each->is_silent_sender(now - patience))
        each->fail_upload({408, "the body of the request arrived too slowly"});
}

/// Clients that do not read must not take all memory.
void HttpServerImpl::drop_slow_readers(Clock::time_point now) {
  if (!shared_.table.is_exceeded()) return;
  for (const Connection& each : shared_.table.lapsed(Phase::writing, kSlowClient, now)) {
    each->close();
    if (!shared_.table.is_exceeded()) return;
  }
}

/// Ends requests whose bodies arrive too slowly and then responses that are not read, the oldest
/// first, until the bytes fit.
void HttpServerImpl::evict_slow(HttpConnection& wanting, uint64_t bytes) {
  const Clock::time_point now = Clock::now();
  if (now < next_room_) return;
  auto is_enough = [&] { return shared_.table.fits(wanting.entry(), bytes); };
  for (const Connection& each : shared_.table.lapsed(Phase::body, kSlowClient, now)) {
    if (each.get() == &wanting || !each->is_slow_sender(now)) continue;
    each->reject({408, "the body of the request arrived too slowly"});
    if (is_enough()) return;
  }
  for (const Connection& each : shared_.table.lapsed(Phase::writing, kSlowClient, now)) {
    if (each.get() == &wanting || !each->is_slow_reader(now)) continue;
    each->close();
    if (is_enough()) return;
  }
  next_room_ = now + kTick;  // none is slow at present
}

void HttpServerImpl::reload_certificates(Clock::time_point now) {
  auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch());
  Status reloaded = shared_.tls->reload_if_changed(now_us.count());
  if (!reloaded.ok()) report(reloaded.error().message);
  bool is_new = shared_.tls->expires_at_ms() != expires_at_ms_;
  if (is_new || now - certificates_reported_ >= kCertificateReport) report_certificates();
}

/// What is wrong with the certificates, and whether they expire soon.
void HttpServerImpl::report_certificates() {
  certificates_reported_ = Clock::now();
  expires_at_ms_ = shared_.tls->expires_at_ms();
  for (const std::string& warning : shared_.tls->warnings()) report(warning);
  int64_t left_ms = expires_at_ms_ - now_ms();
  if (left_ms > 0 && left_ms < kExpiresSoon.count())
    report(
        fmt::format("the certificate of the service `{}` expires in {}: replace its files, and "
                    "they are loaded without a restart",
                    shared_.options.name, format_duration(left_ms)));
}

// ---- The end

void HttpServerImpl::begin_drain(std::function<void()> drained) {
  asio::post(shared_.context, [this, drained = std::move(drained)] {
    if (std::exchange(shared_.is_draining, true)) return;
    draining_since_ = Clock::now();
    on_drained_ = drained;
    listener_.begin_drain();
  });
}

void HttpServerImpl::drain(Clock::time_point now) {
  listener_.close_if_empty();
  auto silence = milliseconds(shared_.options.limits.silence_ms);
  if (now - draining_since_ >= silence)
    for (const Connection& each : shared_.table.lapsed(Phase::idle, silence, now)) each->linger();
  check_drained();
}

void HttpServerImpl::check_drained() {
  if (!shared_.is_draining || listener_.is_open() || shared_.table.size() > 0) return;
  {
    std::lock_guard lock(mutex_);
    is_drained_ = true;
    drained_changed_.notify_all();
  }
  if (on_drained_) std::exchange(on_drained_, {})();
}

bool HttpServerImpl::wait_drained(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return drained_changed_.wait_for(lock, milliseconds(timeout_ms), [this] { return is_drained_; });
}

void HttpServerImpl::stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    completed_.clear();
  }
  loop_.run([this] {
    on_drained_ = {};
    timer_.cancel();
    listener_.close();
    for (Phase phase : kAllPhases)
      while (!shared_.table.all(phase).empty()) shared_.table.all(phase).front()->close();
  });
  // Until the handlers of what was closed have run: the first job may overtake them, because a
  // handler's own posts are queued at its end.
  for (int i = 0; i < 2; i++) loop_.run([] {});
  if (own_loop_) own_loop_->stop();
}

// ---- The interface

HttpReply::HttpReply(std::shared_ptr<HttpServerImpl> server, Connection connection)
    : server_(std::move(server)), connection_(std::move(connection)) {}

HttpReply& HttpReply::operator=(HttpReply&& other) noexcept {
  std::swap(server_, other.server_);
  std::swap(connection_, other.connection_);
  std::swap(is_streaming_, other.is_streaming_);
  return *this;
}

HttpReply::~HttpReply() {
  if (!connection_) return;
  if (is_streaming_)
    abort();
  else
    send(error_response(500, "the service gave no answer"));
}

void HttpReply::send(HttpResponse response) {
  if (!connection_) return;
  FLOW_CHECK(!is_streaming_);
  server_->send(std::exchange(connection_, nullptr), std::move(response));
}

void HttpReply::begin(HttpStreamHead head) {
  if (!connection_) return;
  is_streaming_ = true;
  server_->act(connection_, [head = std::move(head)](HttpConnection& each) mutable {
    each.begin(std::move(head));
  });
}

bool HttpReply::write(std::string bytes) {
  return !connection_ || server_->write(connection_, std::move(bytes));
}

void HttpReply::end() {
  if (!connection_) return;
  server_->act(std::exchange(connection_, nullptr), [](HttpConnection& each) { each.end(); });
}

void HttpReply::abort() {
  if (!connection_) return;
  server_->act(std::exchange(connection_, nullptr), [](HttpConnection& each) { each.abort(); });
}

void HttpReply::watch(std::function<void()> on_writable, std::function<void()> on_left) {
  if (!connection_) return;
  ReplyEvents events{std::move(on_writable), std::move(on_left)};
  server_->act(connection_, [events = std::move(events)](HttpConnection& each) mutable {
    each.watch(std::move(events));
  });
}

bool HttpReply::is_abandoned() const {
  return connection_ != nullptr && connection_->is_abandoned();
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(const HttpOptions& options, Handler handler) {
  return open(std::make_shared<HttpServerImpl>(options, std::move(handler), nullptr));
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(const HttpOptions& options, Handler handler,
                                                     EventLoop& loop) {
  return open(std::make_shared<HttpServerImpl>(options, std::move(handler), &loop));
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(std::shared_ptr<HttpServerImpl> impl) {
  FLOW_TRY(impl->listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<HttpServerImpl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { impl_->stop(); }
uint16_t HttpServer::port() const { return impl_->port(); }
size_t HttpServer::connections() const { return impl_->connections(); }
boost::asio::io_context& HttpServer::context() const { return impl_->context(); }
void HttpServer::begin_drain(std::function<void()> drained) {
  impl_->begin_drain(std::move(drained));
}
bool HttpServer::wait_drained(int64_t timeout_ms) { return impl_->wait_drained(timeout_ms); }
void HttpServer::set_hosts(std::vector<std::string> hosts) { impl_->set_hosts(std::move(hosts)); }

}  // namespace flow
