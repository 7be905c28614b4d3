// One HTTP/1.1 connection that blocks, for clients that put load on a service.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace flow::load {

struct Answer {
  int status = 0;
  bool closes = false;  // `Connection: close`
  std::string body;
};

/// Whether a head has a field, which is in lower case with `:` at its end. `value` gets its text.
inline bool find_field(std::string_view head, std::string_view name, std::string& value) {
  auto is_equal = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  std::string begin = "\n" + std::string(name);
  auto at = std::search(head.begin(), head.end(), begin.begin(), begin.end(), is_equal);
  if (at == head.end()) return false;
  std::string_view rest = head.substr(static_cast<size_t>(at - head.begin()) + begin.size());
  rest = rest.substr(0, rest.find('\r'));
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  value = rest;
  return true;
}

class BlockingClient {
 public:
  BlockingClient() = default;
  BlockingClient(const BlockingClient&) = delete;
  BlockingClient& operator=(const BlockingClient&) = delete;
  ~BlockingClient() { close(); }

  /// 0, or the code of the system's error.
  int connect(int port) {
    close();
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    timeval limit{kLimitS, 0};
    int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return 0;
    return errno;
  }

  /// The next three return "" or what is wrong.
  std::string send(std::string_view text) {
    while (!text.empty()) {
      ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0) return std::string("send: ") + std::strerror(errno);
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return "";
  }

  /// A whole response with a length.
  std::string read(Answer& answer) {
    std::string head, length, connection;
    if (std::string error = read_until("\r\n\r\n", head); !error.empty()) return error;
    if (!head.starts_with("HTTP/1.1 ")) return "no status line: " + head;
    answer.status = std::atoi(head.c_str() + 9);
    answer.closes = find_field(head, "connection:", connection) && connection == "close";
    if (!find_field(head, "content-length:", length)) return "no length: " + head;
    return read_bytes(std::strtoul(length.c_str(), nullptr, 10), answer.body);
  }

  /// The rest of a chunked response, whose head was read: each chunk is given to `on_chunk`.
  template <typename OnChunk>
  std::string read_chunks(const OnChunk& on_chunk) {
    for (;;) {
      std::string line, chunk;
      if (std::string error = read_until("\r\n", line); !error.empty()) return error;
      size_t size = std::strtoul(line.c_str(), nullptr, 16);
      if (std::string error = read_bytes(size + 2, chunk); !error.empty()) return error;
      if (size == 0) return "";
      on_chunk(std::string_view(chunk).substr(0, size));
    }
  }

  std::string read_until(std::string_view mark, std::string& text) {
    size_t at = 0;
    while ((at = in_.find(mark)) == std::string::npos)
      if (std::string error = receive(); !error.empty()) return error;
    text = in_.substr(0, at + mark.size());
    in_.erase(0, at + mark.size());
    return "";
  }

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
    in_.clear();
  }

 private:
  static constexpr time_t kLimitS = 60;

  std::string read_bytes(size_t size, std::string& bytes) {
    while (in_.size() < size)
      if (std::string error = receive(); !error.empty()) return error;
    bytes = in_.substr(0, size);
    in_.erase(0, size);
    return "";
  }

  std::string receive() {
    char chunk[16 * 1024];
    ssize_t got = ::recv(socket_, chunk, sizeof chunk, 0);
    if (got < 0) return std::string("receive: ") + std::strerror(errno);
    if (got == 0) return "the connection ended without an answer";
    in_.append(chunk, static_cast<size_t>(got));
    return "";
  }

  int socket_ = -1;
  std::string in_;
};

}  // namespace flow::load
