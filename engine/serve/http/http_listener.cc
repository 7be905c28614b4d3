#include "engine/serve/http/http_listener.hpp"

#include <fmt/format.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/serve/http/socket_address.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

constexpr int kAcceptsMax = 64;      // before connections have their turn
constexpr rlim_t kOtherFiles = 256;  // that the process opens besides connections

/// The listener ignores packets that open a connection (RFC 9293, 3.1: of SYN and ACK only SYN is
/// set). Handshakes that have begun continue.
void ignore_new_connections(int listener) {
  constexpr uint32_t kFlagsAt = 13, kSynAck = 0x12, kSyn = 0x02;
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kFlagsAt),
                        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kSynAck),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kSyn, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  sock_fprog program{std::size(code), code};
  ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

}  // namespace

HttpListener::HttpListener(asio::io_context& context, Adopt adopt)
    : adopt_(std::move(adopt)), acceptor_(context) {}

HttpListener::~HttpListener() { close(); }

Status HttpListener::listen(const HttpOptions& options) {
  auto listening = listen_at(options.name, {options.address, options.port}, "`port = 0`");
  FLOW_TRY(listening);
  port_ = listening->port;
  protocol_ = listening->is_v6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
  acceptor_.assign(protocol_, listening->socket);
  resume();
  return {};
}

void HttpListener::resume() {
  if (is_waiting_ || parked_ >= 0 || !acceptor_.is_open()) return;
  is_waiting_ = true;
  acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read,
                       [this](const boost::system::error_code& error) {
                         is_waiting_ = false;
                         if (!error && accept_some()) resume();
                       });
}

/// Returns false if accepting must pause, because file descriptors or places have run out.
bool HttpListener::accept_some() {
  for (int count = 0; count < kAcceptsMax && parked_ < 0; count++) {
    int socket =
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      is_backlog_empty_ = errno == EAGAIN || errno == EWOULDBLOCK;
      return is_backlog_empty_ || errno == EINTR || errno == ECONNABORTED;
    }
    is_backlog_empty_ = false;
    if (adopt_(socket)) continue;
    parked_ = socket;
    parked_since_ = Clock::now();
  }
  return parked_ < 0;
}

std::optional<HttpListener::Clock::time_point> HttpListener::parked_since() const {
  if (parked_ < 0) return std::nullopt;
  return parked_since_;
}

bool HttpListener::retry_parked() {
  if (parked_ >= 0 && adopt_(parked_)) parked_ = -1;
  return parked_ < 0;
}

void HttpListener::refuse_parked(std::string_view text) {
  ::send(parked_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(std::exchange(parked_, -1));
}

void HttpListener::begin_drain() {
  if (acceptor_.is_open()) ignore_new_connections(acceptor_.native_handle());
}

void HttpListener::close_if_empty() {
  if (!acceptor_.is_open() || parked_ >= 0) return;
  accept_some();
  if (!is_backlog_empty_ || parked_ >= 0) return;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

void HttpListener::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  if (parked_ >= 0) ::close(std::exchange(parked_, -1));
}

/// Raises the limit of open files as far as it is permitted. Returns how many connections fit.
size_t connections_permitted(size_t wanted) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  rlim_t needed = std::min<rlim_t>(files.rlim_max, wanted + kOtherFiles);
  if (files.rlim_cur < needed) {
    rlimit raised{needed, files.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) files = raised;
  }
  rlim_t reserved = std::min<rlim_t>(kOtherFiles, files.rlim_cur / 2);
  return std::max<size_t>(1, std::min<size_t>(wanted, files.rlim_cur - reserved));
}

}  // namespace flow
