// Many TLS connections to a service at the same time, for bench_tls.py: all are opened, requests go
// through all of them in turn, they stay idle for a while, and then requests go through them again.
//
// usage: tls_hold PORT CONNECTIONS IDLE_SECONDS PATH BODY_FILE
//
// Prints a line for each figure. Exit code 1 if a connection ended, or a response was not 200.
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <thread>

#include "tests/bench/http_load.hpp"

namespace flow::bench {
namespace {

constexpr size_t kAtATime = 64;  // handshakes or requests
constexpr int kSilenceMs = 60'000;

struct TlsConnection {
  int socket = -1;
  SSL* session = nullptr;
  std::string in;
  double began = 0;
  bool is_busy = false;  // with a handshake or a request
};

class TlsLoad {
 public:
  TlsLoad(uint16_t port, std::string request) : port_(port), request_(std::move(request)) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    settings_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(settings_, SSL_MODE_RELEASE_BUFFERS);
  }

  size_t failed() const { return failed_; }

  void open(size_t count) {
    connections_.resize(count);
    each(
        "handshakes", [this](TlsConnection& connection) { return connect(connection); },
        [](TlsConnection& connection) { return SSL_connect(connection.session); });
  }

  void ask_all(const char* name) {
    each(
        name, [this](TlsConnection& connection) { return send(connection); },
        [this](TlsConnection& connection) { return receive(connection); });
  }

 private:
  /// Begins an action on all connections, so many at a time, and waits until `advance` returns 1
  /// for each: as OpenSSL's functions it is called again when the socket is ready.
  template <typename Begin, typename Advance>
  void each(const char* name, const Begin& begin, const Advance& advance) {
    std::vector<double> took;
    double began = seconds();
    size_t next = 0, open = 0;
    auto start_more = [&] {
      for (; open < kAtATime && next < connections_.size(); next++) {
        TlsConnection& connection = connections_[next];
        connection.began = seconds();
        connection.is_busy = begin(connection);
        if (connection.is_busy) open++;
      }
    };
    start_more();
    std::vector<epoll_event> events(kAtATime);
    while (open > 0) {
      int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), kSilenceMs);
      if (count <= 0) break;
      for (int i = 0; i < count; i++) {
        auto& connection = *static_cast<TlsConnection*>(events[static_cast<size_t>(i)].data.ptr);
        ERR_clear_error();
        if (!connection.is_busy) {
          read_ticket(connection);
          continue;
        }
        int done = advance(connection);
        if (done != 1 && is_waiting(connection, done)) continue;
        connection.is_busy = false;
        open--;
        if (done == 1)
          took.push_back((seconds() - connection.began) * 1e3);
        else
          end(connection);
      }
      start_more();
    }
    failed_ += open;
    std::sort(took.begin(), took.end());
    if (took.empty()) took.push_back(0);
    fmt::print("tls_{}_per_s {:.0f} p50_ms {:.2f} p99_ms {:.2f} count {} failed {}\n", name,
               static_cast<double>(took.size()) / (seconds() - began), took[took.size() / 2],
               took[took.size() * 99 / 100], took.size(), failed_);
    std::fflush(stdout);
  }

  bool connect(TlsConnection& connection) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection.socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(connection.socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      end(connection);
      return false;
    }
    ::fcntl(connection.socket, F_SETFL, O_NONBLOCK);
    connection.session = SSL_new(settings_);
    SSL_set_fd(connection.session, connection.socket);
    SSL_set_tlsext_host_name(connection.session, "localhost");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &connection;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.socket, &event);
    ERR_clear_error();
    int done = SSL_connect(connection.session);  // sends the first message
    return done == 1 || is_waiting(connection, done);
  }

  bool send(TlsConnection& connection) {
    if (connection.session == nullptr) return false;  // it has failed before
    ERR_clear_error();
    int sent = SSL_write(connection.session, request_.data(), static_cast<int>(request_.size()));
    if (sent == static_cast<int>(request_.size())) return true;
    end(connection);
    return false;
  }

  int receive(TlsConnection& connection) {
    char chunk[16 * 1024];
    int got = 0;
    while ((got = SSL_read(connection.session, chunk, sizeof chunk)) > 0) {
      connection.in.append(chunk, static_cast<size_t>(got));
      size_t head = connection.in.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      size_t size = body_bytes(std::string_view(connection.in).substr(0, head));
      if (connection.in.size() < head + 4 + size) continue;
      if (!connection.in.starts_with("HTTP/1.1 200")) failed_++;
      std::string().swap(connection.in);
      return 1;
    }
    return got;
  }

  /// What arrives between requests: tickets of sessions after a handshake, or the end.
  void read_ticket(TlsConnection& connection) {
    char byte;
    int got = SSL_read(connection.session, &byte, 1);
    if (got > 0 || !is_waiting(connection, got)) end(connection);
  }

  static bool is_waiting(const TlsConnection& connection, int done) {
    int error = SSL_get_error(connection.session, done);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }

  void end(TlsConnection& connection) {
    failed_++;
    SSL_free(connection.session);
    connection.session = nullptr;
    ::close(connection.socket);
  }

  const uint16_t port_;
  const std::string request_;
  int epoll_ = -1;
  SSL_CTX* settings_ = nullptr;
  std::vector<TlsConnection> connections_;
  size_t failed_ = 0;
};

}  // namespace
}  // namespace flow::bench

int main(int argc, char** argv) {
  using namespace flow::bench;
  if (argc != 6) {
    std::fputs("usage: tls_hold PORT CONNECTIONS IDLE_SECONDS PATH BODY_FILE\n", stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);  // of connections that the server has closed
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::ifstream file(argv[5], std::ios::binary);
  std::string body{std::istreambuf_iterator<char>(file), {}};
  TlsLoad load(static_cast<uint16_t>(std::stoi(argv[1])), post_request(argv[4], body));
  load.open(std::stoul(argv[2]));
  load.ask_all("requests");
  std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(argv[3])));
  load.ask_all("requests_after_idle");
  return load.failed() == 0 ? 0 : 1;
}
