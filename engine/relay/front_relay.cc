#include "engine/relay/front_relay.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <filesystem>
#include <list>
#include <map>
#include <utility>

#include "engine/base/files.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/relay/relay_notes.hpp"
#include "engine/relay/sealed_pipe.hpp"
#include "engine/serve/http/event_loop.hpp"

namespace flow {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPauseMin = std::chrono::milliseconds(50),
               kPauseMax = std::chrono::milliseconds(1000);
constexpr auto kConnectTime = std::chrono::milliseconds(FrontRelay::kConnectMs);
constexpr size_t kPipesMax = 4096;

}  // namespace

/// Its members are used on the loop's thread only.
class FrontRelay::Impl {
 public:
  Impl(cluster::SessionOptions options, std::string host, std::function<void(std::string)> on_note)
      : options_(std::move(options)),
        host_(std::move(host)),
        on_note_(std::move(on_note)),
        loop_("flow-relay", [this](const std::string& line) { on_note_(line); }) {}
  ~Impl() { loop_.stop(); }

  Status open(const std::string& folder);
  void set_port(const std::string& front, uint16_t port);
  EventLoop& loop() { return loop_; }

 private:
  struct Front {
    explicit Front(EventLoop& loop) : acceptor(loop.context()) {}
    std::string name;
    asio::local::stream_protocol::acceptor acceptor;
    uint16_t port = 0;
    std::string problem;  // the newest, which was noted
  };
  /// A connection that is to be carried to a front.
  struct Link {
    explicit Link(EventLoop& loop) : resolver(loop.context()), timer(loop.context()) {}
    std::string front;
    RelayNote note;
    int local = -1;  // owned until a pipe has it
    Clock::time_point until = Clock::now() + kConnectTime;
    std::chrono::milliseconds pause = kPauseMin;
    tcp::resolver resolver;
    asio::steady_timer timer;
    std::shared_ptr<SealedPipe> pipe;  // once it is connected
    bool is_open = false;
  };
  using Links = std::list<Link>;

  void accept(Front& front);
  void carry(const std::string& front, RelayNote note, int local);
  void connect(Links::iterator link);
  void connected(Links::iterator link, tcp::socket socket);
  void fail(Links::iterator link, const std::string& why);
  void try_later(Links::iterator link);
  void end(Links::iterator link);
  void connect_to_server(const std::string& front, const std::weak_ptr<SealedPipe>& asking,
                         const RelayNote& wanted);

  const cluster::SessionOptions options_;
  const std::string host_;
  const std::function<void(std::string)> on_note_;
  EventLoop loop_;
  std::map<std::string, std::unique_ptr<Front>> fronts_;  // by name; the services that ran here
  Links links_;                                           // up to kPipesMax
};

FrontRelay::FrontRelay(cluster::SessionOptions options, std::string host,
                       std::function<void(std::string)> on_note)
    : impl_(std::make_shared<Impl>(std::move(options), std::move(host), std::move(on_note))) {}

FrontRelay::~FrontRelay() = default;

Status FrontRelay::open(const std::string& folder) {
  Status opened;
  impl_->loop().run([&] { opened = impl_->open(folder); });
  return opened;
}

void FrontRelay::set_port(const std::string& front, uint16_t port) {
  impl_->loop().post([impl = impl_.get(), front, port] { impl->set_port(front, port); });
}

// ---- On the loop's thread

Status FrontRelay::Impl::open(const std::string& folder) {
  std::string name = std::filesystem::path(folder).filename().string();
  std::unique_ptr<Front>& front = fronts_[name];
  if (front == nullptr) front = std::make_unique<Front>(loop_);
  front->name = name;
  std::string path = folder + "/front.sock";
  std::error_code error;
  bool is_there = front->acceptor.is_open() && std::filesystem::exists(path, error);
  if (is_there) return {};
  FLOW_TRY(make_dirs(folder));
  auto listener = listen_unix(path);
  FLOW_TRY(listener);
  boost::system::error_code failed;
  if (front->acceptor.is_open()) front->acceptor.close(failed);
  front->acceptor.assign(asio::local::stream_protocol(), *listener, failed);
  if (failed) {
    ::close(*listener);
    return environment_error("cannot listen for the replicas of a service: " + failed.message());
  }
  accept(*front);
  return {};
}

void FrontRelay::Impl::set_port(const std::string& name, uint16_t port) {
  auto known = fronts_.find(name);
  bool is_unused = known == fronts_.end() || !known->second->acceptor.is_open();
  if (port == 0 && is_unused) {
    fronts_.erase(name);
    return;
  }
  std::unique_ptr<Front>& front = fronts_[name];
  if (front == nullptr) front = std::make_unique<Front>(loop_);
  front->name = name;
  if (std::exchange(front->port, port) == port || port == 0) return;
  for (Link& link : links_)
    if (link.front == name && link.pipe == nullptr) link.timer.cancel();  // tries at once
}

void FrontRelay::Impl::accept(Front& front) {
  front.acceptor.async_accept([this, &front](const boost::system::error_code& error,
                                             asio::local::stream_protocol::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      auto pause = std::make_shared<asio::steady_timer>(loop_.context(), kPauseMax);
      return pause->async_wait([this, pause, &front](const boost::system::error_code& failed) {
        if (!failed && front.acceptor.is_open()) accept(front);
      });
    }
    boost::system::error_code ignored;
    if (peer_of(socket.native_handle()) != 0) carry(front.name, {}, socket.release(ignored));
    accept(front);
  });
}

void FrontRelay::Impl::carry(const std::string& front, RelayNote note, int local) {
  if (links_.size() >= kPipesMax) {
    if (local >= 0) ::close(local);
    return;
  }
  auto link = links_.emplace(links_.end(), loop_);
  link->front = front;
  link->note = note;
  link->local = local;
  connect(link);
}

void FrontRelay::Impl::connect(Links::iterator link) {
  uint16_t port = fronts_.at(link->front)->port;
  if (port == 0) return try_later(link);  // its replica is faster than its front
  link->resolver.async_resolve(
      host_, std::to_string(port), tcp::resolver::numeric_service,
      [this, link](const boost::system::error_code& error,
                   const tcp::resolver::results_type& ends) {
        if (error) return fail(link, error.message());
        auto socket = std::make_shared<tcp::socket>(loop_.context());
        auto done = std::make_shared<bool>(false);
        // A connection to a machine that is gone takes minutes to fail.
        link->timer.expires_after(kPauseMax * 5);
        link->timer.async_wait([socket, done](const boost::system::error_code&) {
          boost::system::error_code ignored;
          if (!*done) socket->close(ignored);
        });
        asio::async_connect(
            *socket, ends,
            [this, link, socket, done](const boost::system::error_code& failed, const auto&) {
              *done = true;
              link->timer.cancel();
              if (failed) return fail(link, failed.message());
              connected(link, std::move(*socket));
            });
      });
}

void FrontRelay::Impl::connected(Links::iterator link, tcp::socket socket) {
  link->pipe = std::make_shared<SealedPipe>(loop_, std::move(socket), options_);
  std::string front = link->front;
  link->pipe->start({.opened =
                         [this, link] {
                           link->is_open = true;
                           fronts_.at(link->front)->problem.clear();
                           link->pipe->tell(link->note.encode());
                           link->pipe->attach(std::exchange(link->local, -1));
                         },
                     .noted =
                         [this, front, pipe = std::weak_ptr(link->pipe)](const std::string& text) {
                           auto note = RelayNote::parse(text);
                           if (note && note->kind == RelayNote::Kind::wanted)
                             connect_to_server(front, pipe, *note);
                         },
                     .ended =
                         [this, link](cluster::EndKind, const std::string& why) {
                           if (link->is_open) return end(link);
                           link->pipe = nullptr;
                           fail(link, why);
                         }});
}

/// The front cannot be reached now.
void FrontRelay::Impl::fail(Links::iterator link, const std::string& why) {
  Front& front = *fronts_.at(link->front);
  std::string problem =
      fmt::format("a replica cannot reach the front of its service at port {} of {}: {}",
                  front.port, host_, why);
  if (std::exchange(front.problem, problem) != problem) on_note_(problem);
  try_later(link);
}

void FrontRelay::Impl::try_later(Links::iterator link) {
  if (Clock::now() + link->pause > link->until) return end(link);
  link->timer.expires_after(link->pause);
  link->pause = std::min(link->pause * 2, kPauseMax);
  link->timer.async_wait([this, link](const boost::system::error_code&) { connect(link); });
}

void FrontRelay::Impl::end(Links::iterator link) {
  if (link->local >= 0) ::close(link->local);
  links_.erase(link);
}

/// The front forwards a request to the server of a replica here.
void FrontRelay::Impl::connect_to_server(const std::string& front,
                                         const std::weak_ptr<SealedPipe>& asking,
                                         const RelayNote& wanted) {
  auto socket = std::make_shared<tcp::socket>(loop_.context());
  socket->async_connect(tcp::endpoint(asio::ip::address_v4::loopback(), wanted.port),
                        [this, socket, front, asking,
                         number = wanted.number](const boost::system::error_code& error) {
                          auto pipe = asking.lock();
                          if (error && pipe != nullptr)
                            pipe->tell(RelayNote{RelayNote::Kind::refused, number}.encode());
                          if (error) return;
                          boost::system::error_code ignored;
                          socket->set_option(tcp::no_delay(true), ignored);
                          carry(front, {RelayNote::Kind::server, number}, socket->release(ignored));
                        });
}

}  // namespace flow
