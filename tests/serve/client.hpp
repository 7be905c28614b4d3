// Minimal HTTP/1.1 clients: the tests need to see the exact bytes.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

struct Reply {
  int status = 0;  // 0: the connection ended without a response
  std::string headers, body;
};

inline int port_of(const std::string& url) { return std::stoi(url.substr(url.rfind(':') + 1)); }

inline int connect_to(int port) {
  int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
    return descriptor;
  ::close(descriptor);
  return -1;
}

/// Sends `text` unchanged and reads to the end. `half_close` closes the sending direction.
inline Reply send_raw(int port, const std::string& text, bool half_close = true) {
  Reply reply;
  int descriptor = connect_to(port);
  if (descriptor < 0) return reply;
  size_t sent = 0;
  while (sent < text.size()) {
    ssize_t written = ::send(descriptor, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (written <= 0) break;
    sent += static_cast<size_t>(written);
  }
  if (half_close) ::shutdown(descriptor, SHUT_WR);
  std::string all;
  char chunk[16 * 1024];
  for (ssize_t got = 0; (got = ::read(descriptor, chunk, sizeof chunk)) > 0;)
    all.append(chunk, static_cast<size_t>(got));
  ::close(descriptor);
  size_t space = all.find(' '), end = all.find("\r\n\r\n");
  if (space == std::string::npos || end == std::string::npos) return reply;
  reply.status = std::stoi(all.substr(space + 1, 3));
  reply.headers = all.substr(0, end);
  reply.body = all.substr(end + 4);
  return reply;
}

inline Reply request(int port, const std::string& method, const std::string& path,
                     const std::string& body = "") {
  return send_raw(port,
                  method + " " + path +
                      " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                      "Content-Type: application/json\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body,
                  false);
}

/// The text of a request with a body.
inline std::string post_text(const std::string& path, const std::string& body,
                             const std::string& fields = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// A connection that is kept open between requests.
class Client {
 public:
  explicit Client(int port) : descriptor_(connect_to(port)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  /// Returns false if the server does not accept all of it.
  bool send(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      ssize_t written = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (written <= 0) return false;
      sent += static_cast<size_t>(written);
    }
    return true;
  }
  /// The next response; status 0 if the connection ends before it does.
  Reply read() {
    Reply reply;
    size_t end = 0;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
      if (!read_more()) return reply;
    }
    std::string head = in_.substr(0, end);
    size_t length = 0, at = head.find("Content-Length: ");
    if (at != std::string::npos) length = std::stoul(head.substr(at + 16));
    while (in_.size() < end + 4 + length) {
      if (!read_more()) return reply;
    }
    reply.status = std::stoi(head.substr(head.find(' ') + 1, 3));
    reply.headers = head;
    reply.body = in_.substr(end + 4, length);
    in_.erase(0, end + 4 + length);
    return reply;
  }
  Reply get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return read();
  }
  Reply post(const std::string& path, const std::string& body, const std::string& fields = "") {
    send(post_text(path, body, fields));
    return read();
  }
  /// Whether the server ends the connection without a further byte, and without a reset.
  bool is_at_end() {
    char byte;
    return in_.empty() && ::recv(descriptor_, &byte, 1, 0) == 0;
  }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  /// Closes the connection with a reset.
  void reset() {
    linger abort{1, 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    close();
  }

 private:
  bool read_more() {
    char chunk[16 * 1024];
    ssize_t got = ::recv(descriptor_, chunk, sizeof chunk, 0);
    if (got > 0) in_.append(chunk, static_cast<size_t>(got));
    return got > 0;
  }

  int descriptor_;
  std::string in_;
};
