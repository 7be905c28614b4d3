#include "engine/front/front_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace flow {

namespace asio = boost::asio;

namespace {

constexpr int kPeerAcceptsMax = 64;  // before others have their turn
constexpr auto kRetry = std::chrono::milliseconds(100);

/// Whether the process at the other end belongs to this user, or to root.
bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

FrontSocket::FrontSocket(Front& front, EventLoop& loop, std::function<void(const std::string&)> log,
                         std::string gate_file)
    : front_(front),
      loop_(loop),
      log_(std::move(log)),
      acceptor_(loop.context()),
      gate_(
          loop, std::move(gate_file),
          [this](int socket, RemotePeer peer) { add_peer(socket, {.remote = std::move(peer)}); },
          log_),
      retry_(loop.context()) {}

FrontSocket::~FrontSocket() = default;

Status FrontSocket::listen(int folder, const std::string& name) {
  auto failed = [&] {
    return environment_error(
        fmt::format("cannot listen at the socket {} of the front: {}", name, std::strerror(errno)));
  };
  // Through the descriptor: a path may be longer than the address of a socket.
  std::string path = fmt::format("/proc/self/fd/{}/{}", folder, name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return environment_error(fmt::format("the name of the socket {} is too long", name));
  std::memcpy(address.sun_path, path.data(), path.size());
  int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return failed();
  ::unlinkat(folder, name.c_str(), 0);
  mode_t mask = ::umask(0177);
  bool listens = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                 ::listen(socket, SOMAXCONN) == 0;
  ::umask(mask);
  if (!listens) {
    Status error = failed();
    ::close(socket);
    return error;
  }
  loop_.run([&] {
    acceptor_.assign(asio::local::stream_protocol(), socket);
    wait();
  });
  return {};
}

void FrontSocket::wait() {
  acceptor_.async_wait(asio::local::stream_protocol::acceptor::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (!error) accept_some();
                       });
}

void FrontSocket::accept_some() {
  for (int count = 0; count < kPeerAcceptsMax; count++) {
    int socket =
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) {
      adopt(socket);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      retry_.expires_after(kRetry);
      retry_.async_wait([this](const boost::system::error_code& error) {
        if (!error) accept_some();
      });
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      break;
    }
  }
  wait();
}

void FrontSocket::adopt(int socket) {
  if (is_of_this_user(socket))
    return add_peer(socket,
                    {.open_gate = [this](const front::Gate& gate) { return gate_.open(gate); }});
  log_("a peer was turned away: it belongs to another user");
  ::close(socket);
}

void FrontSocket::add_peer(int socket, PeerAccess access) {
  if (peers_.size() >= kPeersMax) {
    log_(fmt::format("a peer was turned away: {} are connected", peers_.size()));
    ::close(socket);
    return;
  }
  auto place = peers_.emplace(peers_.end());
  // Not at once: the peer is the caller.
  auto ended = [this, place] { loop_.post([this, place] { peers_.erase(place); }); };
  try {
    *place = std::make_shared<FrontPeer>(front_, loop_, socket, log_, ended, std::move(access));
  } catch (const std::exception& error) {
    peers_.erase(place);
    log_(fmt::format("a peer was turned away: {}", error.what()));
    return;
  }
  auto timer = std::make_shared<asio::steady_timer>(loop_.context(), kFirstMessage);
  timer->async_wait(
      [timer, peer = std::weak_ptr<FrontPeer>(*place)](const boost::system::error_code& error) {
        auto connected = error ? nullptr : peer.lock();
        if (connected != nullptr && connected->role() == FrontPeer::Role::unknown)
          connected->disconnect("it sent no first message in time");
      });
}

}  // namespace flow
