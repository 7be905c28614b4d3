#include "engine/executor/wrapped/health_probe.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "engine/base/clock.hpp"

namespace flow {

namespace {

constexpr size_t kResponseMax = 64 * 1024;
constexpr std::string_view kVersion = "HTTP/1.";
constexpr size_t kStatusAt = 9;  // "HTTP/1.1 200"

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// The port if it was free, or for 0 one that was; 0 if there is none.
uint16_t bound_port(uint16_t port) {
  int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(port);
  socklen_t size = sizeof address;
  bool is_bound = descriptor >= 0 &&
                  ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (descriptor >= 0) ::close(descriptor);
  return is_bound ? ntohs(address.sin_port) : 0;
}

bool connects(int descriptor, uint16_t port) {
  sockaddr_in address = loopback(port);
  return ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

void HealthProbe::begin(const std::string& path, int64_t until_us) {
  path_ = path;
  until_us_ = until_us;
  has_begun_ = true;
  response_.clear();
  request_ = fmt::format(
      "GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAccept: */*\r\nConnection: "
      "close\r\n\r\n",
      path, port_);
  descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool is_open = descriptor_ >= 0 && (connects(descriptor_, port_) || errno == EINPROGRESS);
  failed_errno_ = is_open ? 0 : errno;
}

pollfd HealthProbe::waits_for() const {
  bool writes = !request_.empty();
  return {has_begun_ ? descriptor_ : -1, static_cast<short>(writes ? POLLOUT : POLLIN), 0};
}

std::optional<HealthAnswer> HealthProbe::step() {
  if (!has_begun_) return std::nullopt;
  if (failed_errno_ == 0 && !request_.empty() && !write_request()) failed_errno_ = errno;
  bool is_whole = failed_errno_ == 0 && request_.empty() && read_response();
  int code = status();
  if (failed_errno_ == ECONNREFUSED)
    return end(0, fmt::format("nothing listens at 127.0.0.1:{}", port_));
  if (failed_errno_ != 0 && code <= 0) return end(0, std::strerror(failed_errno_));
  if (code < 0) return end(0, "the answer is not HTTP");
  if (code > 0 && (is_whole || failed_errno_ != 0))
    return end(code, fmt::format("status {}", code));
  if (is_whole) return end(0, "the connection was closed without an answer");
  if (monotonic_us() < until_us_) return std::nullopt;
  // A server that keeps the connection open has answered too.
  return code > 0 ? end(code, fmt::format("status {}", code)) : end(0, "no answer in time");
}

HealthAnswer HealthProbe::end(int status, const std::string& text) {
  cancel();
  return {status, fmt::format("GET {}: {}", path_, text)};
}

bool HealthProbe::write_request() {
  int failed = 0;
  socklen_t size = sizeof failed;
  ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &failed, &size);
  errno = failed;
  if (failed != 0) return false;
  ssize_t sent = ::send(descriptor_, request_.data(), request_.size(), MSG_NOSIGNAL);
  bool is_early = sent < 0 && (errno == EAGAIN || errno == ENOTCONN || errno == EINTR);
  if (sent < 0) return is_early;
  request_.erase(0, static_cast<size_t>(sent));
  return true;
}

bool HealthProbe::read_response() {
  char chunk[4096];
  while (response_.size() < kResponseMax) {
    ssize_t got = ::recv(descriptor_, chunk, sizeof chunk, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return false;
    if (got < 0) failed_errno_ = errno;
    if (got <= 0) return true;
    response_.append(chunk, static_cast<size_t>(got));
  }
  return true;
}

int HealthProbe::status() const {
  std::string_view line = response_;
  if (line.substr(0, kVersion.size()) != kVersion.substr(0, line.size())) return -1;
  if (line.size() < kStatusAt + 3) return 0;
  int code = 0;
  for (char digit : line.substr(kStatusAt, 3)) {
    if (digit < '0' || digit > '9') return -1;
    code = code * 10 + (digit - '0');
  }
  return code > 0 ? code : -1;
}

void HealthProbe::cancel() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  has_begun_ = false;
}

ReservedPort::ReservedPort() {
  // Clients of this machine get no port below this range, so none takes the port before the server.
  // Nor can a connection to it be one with itself.
  constexpr uint16_t kFirst = 20'000, kLeast = 1'000;
  constexpr int kTries = 200;
  int last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> last;
  bool has_range = last >= kFirst + kLeast;
  std::uniform_int_distribution<int> ports(kFirst, std::max<int>(kFirst, last - 1));
  std::random_device random;
  for (int i = 0; i < kTries && number_ == 0; i++) {
    uint16_t port = bound_port(has_range ? static_cast<uint16_t>(ports(random)) : 0);
    if (port != 0 && reserve(port)) number_ = port;
  }
}

ReservedPort::~ReservedPort() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// The name of an abstract socket, which ends with this process at the latest.
bool ReservedPort::reserve(uint16_t port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string name = fmt::format("flow-server-port-{}", port);
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) return false;
  if (::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size) == 0) return true;
  ::close(descriptor_);
  descriptor_ = -1;
  return false;
}

bool has_listener(uint16_t port) {
  int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool has = descriptor >= 0 && connects(descriptor, port);
  if (descriptor >= 0) ::close(descriptor);
  return has;
}

}  // namespace flow
