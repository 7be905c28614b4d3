// Load on an HTTP server of this machine: one thread sends the same request again and again over
// many connections, and reads each response whole before the next request.
#pragma once
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/bench.hpp"

namespace flow::bench {

struct Load {
  double per_second = 0;
  double p50_us = 0, p99_us = 0;  // from the request's last byte sent to the response's last byte
  size_t failed = 0;              // not status 200, or a connection that ended
};

/// The length of the body that the head of a response announces.
inline size_t body_bytes(std::string_view head) {
  constexpr std::string_view kField = "\ncontent-length:";  // servers write it in several ways
  auto equal = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  auto at = std::search(head.begin(), head.end(), kField.begin(), kField.end(), equal);
  if (at == head.end()) return 0;
  return std::strtoul(std::string(at + kField.size(), head.end()).c_str(), nullptr, 10);
}

class LoadClient {
 public:
  LoadClient(uint16_t port, size_t connections, std::string request)
      : request_(std::move(request)), connections_(connections) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < connections; i++) {
      int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) failed_++;
      connections_[i].socket = socket;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event);
    }
  }
  LoadClient(const LoadClient&) = delete;
  ~LoadClient() {
    for (Connection& each : connections_) ::close(each.socket);
    ::close(epoll_);
  }

  /// Sends requests for so many seconds, and waits for the responses of all.
  Load run(double duration_s) {
    std::vector<double> took_us;
    double began = seconds(), end = began + duration_s;
    for (Connection& each : connections_) send(each);
    size_t waiting = connections_.size();
    std::vector<epoll_event> events(256);
    while (waiting > 0) {
      int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 10'000);
      if (count <= 0) break;
      double now = seconds();
      for (int i = 0; i < count; i++) {
        Connection& each = connections_[events[static_cast<size_t>(i)].data.u64];
        if (!receive(each)) continue;
        took_us.push_back((now - each.sent_at) * 1e6);
        if (now < end && each.is_good) {
          send(each);
        } else {
          waiting--;
        }
      }
    }
    Load load;
    load.per_second = static_cast<double>(took_us.size()) / (seconds() - began);
    std::sort(took_us.begin(), took_us.end());
    if (!took_us.empty()) {
      load.p50_us = took_us[took_us.size() / 2];
      load.p99_us = took_us[took_us.size() * 99 / 100];
    }
    load.failed = failed_ + waiting;
    return load;
  }

 private:
  struct Connection {
    int socket = -1;
    std::string in;
    double sent_at = 0;
    bool is_good = true;
  };

  void send(Connection& connection) {
    connection.sent_at = seconds();
    if (::send(connection.socket, request_.data(), request_.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request_.size()))
      fail(connection);
  }

  /// Whether the response is whole.
  bool receive(Connection& connection) {
    char chunk[16 * 1024];
    ssize_t got = ::recv(connection.socket, chunk, sizeof chunk, 0);
    if (got <= 0) {
      fail(connection);
      ::epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.socket, nullptr);
      return true;
    }
    connection.in.append(chunk, static_cast<size_t>(got));
    size_t head = connection.in.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    size_t size = body_bytes(std::string_view(connection.in).substr(0, head));
    if (connection.in.size() < head + 4 + size) return false;
    if (!connection.in.starts_with("HTTP/1.1 200")) failed_++;
    connection.in.clear();
    return true;
  }

  void fail(Connection& connection) {
    connection.is_good = false;
    failed_++;
  }

  std::string request_;
  std::vector<Connection> connections_;
  size_t failed_ = 0;
  int epoll_ = -1;
};

inline std::string get_request(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

inline std::string post_request(const std::string& path, const std::string& body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      path, body.size(), body);
}

}  // namespace flow::bench
