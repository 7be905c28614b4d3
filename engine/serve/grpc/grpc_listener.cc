#include "engine/serve/grpc/grpc_listener.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/serve/http/socket_address.hpp"

namespace flow {

namespace {

constexpr int kPauseMs = 100;  // when no file descriptor is left

}  // namespace

GrpcListener::~GrpcListener() { close(); }

Status GrpcListener::listen(const std::string& service, const Address& address) {
  auto listening = listen_at(service, address, "`grpc = 0`");
  FLOW_TRY(listening);
  listener_ = listening->socket;
  port_ = listening->port;
  return {};
}

Status GrpcListener::start(Adopt adopt) {
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0)
    return environment_error(std::string("cannot accept gRPC connections: ") +
                             std::strerror(errno));
  adopt_ = std::move(adopt);
  thread_ = engine_thread([this] { loop(); });
  return {};
}

void GrpcListener::close() {
  if (thread_.joinable()) {
    ::eventfd_write(wake_, 1);
    thread_.join();
  }
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
  if (wake_ >= 0) ::close(std::exchange(wake_, -1));
}

void GrpcListener::loop() {
  bool is_paused = false;
  while (true) {
    std::array<pollfd, 2> events{{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}}};
    ::poll(events.data(), is_paused ? 1 : 2, is_paused ? kPauseMs : -1);
    if (events[0].revents != 0) return;
    is_paused = !accept_one();
  }
}

/// False if the process can accept none for some time.
bool GrpcListener::accept_one() {
  sockaddr_storage client{};
  socklen_t size = sizeof client;
  int socket = ::accept4(listener_, reinterpret_cast<sockaddr*>(&client), &size,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
  if (connections_.add(socket, peer_of(client), GrpcConnections::Clock::now()))
    adopt_(socket);
  else
    ::close(socket);
  return true;
}

}  // namespace flow
