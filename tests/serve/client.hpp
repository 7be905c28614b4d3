// A minimal HTTP/1.1 client with one socket per request: the tests need to see the exact bytes.
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
