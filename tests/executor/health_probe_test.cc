// Questions to a server on loopback whether it is well.
#include "engine/executor/wrapped/health_probe.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/clock.hpp"

using namespace flow;

namespace {

constexpr int64_t kLongUs = 60'000'000;

/// Answers one connection with the bytes, and keeps it open if `stays`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string bytes, bool stays = false) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
    thread_ = std::thread([this, stays, bytes = std::move(bytes)] {
      int client = ::accept(listener_, nullptr, nullptr);
      char chunk[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        ssize_t got = ::recv(client, chunk, sizeof chunk, 0);
        if (got <= 0) break;
        request.append(chunk, static_cast<size_t>(got));
      }
      (void)!::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      // Until the question has been given up.
      while (stays && ::recv(client, chunk, sizeof chunk, 0) > 0) {
      }
      ::close(client);
    });
  }
  ~OneAnswer() {
    end();
    ::close(listener_);
  }
  void end() {
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port = 0;
  std::string request;  // after end()

 private:
  int listener_ = -1;
  std::thread thread_;
};

HealthAnswer asked(HealthProbe& probe, const std::string& path, int64_t wait_us = kLongUs) {
  probe.begin(path, monotonic_us() + wait_us);
  while (true) {
    if (auto answer = probe.step()) return *answer;
    pollfd waited = probe.waits_for();
    int64_t left_us = std::max<int64_t>(0, probe.until_us() - monotonic_us());
    ::poll(&waited, 1, static_cast<int>(left_us / 1000) + 1);
  }
}

}  // namespace

TEST_CASE("a server is asked with GET, and its status is the answer") {
  OneAnswer server("HTTP/1.1 204 No Content\r\n\r\n");
  HealthProbe probe(server.port);
  CHECK_FALSE(probe.has_begun());
  CHECK(probe.waits_for().fd == -1);
  HealthAnswer answer = asked(probe, "/v1/health?full=1");
  CHECK(answer.is_good());
  CHECK(answer.text == "GET /v1/health?full=1: status 204");
  CHECK_FALSE(probe.has_begun());
  server.end();
  CHECK(server.request.starts_with("GET /v1/health?full=1 HTTP/1.1\r\nHost: 127.0.0.1:"));
  CHECK(server.request.find("\r\nConnection: close\r\n") != std::string::npos);
}

TEST_CASE("a status outside of 200 to 299 is not good") {
  for (const char* status : {"HTTP/1.0 503 Busy\r\n\r\nlater", "HTTP/1.1 302 Found\r\n\r\n"}) {
    OneAnswer server(status);
    HealthProbe probe(server.port);
    HealthAnswer answer = asked(probe, "/");
    CHECK_FALSE(answer.is_good());
    CHECK(answer.text == "GET /: status " + std::string(status).substr(9, 3));
  }
}

TEST_CASE("what is no answer of HTTP is said") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "GET /: the connection was closed without an answer"},
      {"HTTP/1.1 2", "GET /: the connection was closed without an answer"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "GET /: the answer is not HTTP"},
      {"HTTP/1.1 2x0 OK\r\n\r\n", "GET /: the answer is not HTTP"},
      {"HTTP/1.1 000 OK\r\n\r\n", "GET /: the answer is not HTTP"},
  };
  for (const auto& [bytes, text] : cases) {
    OneAnswer server(bytes);
    HealthProbe probe(server.port);
    CHECK(asked(probe, "/").text == text);
  }
}

TEST_CASE("a server that keeps its connection has answered when the time is over") {
  {
    OneAnswer server("HTTP/1.1 200 OK\r\n\r\n", true);
    HealthProbe probe(server.port);
    CHECK(asked(probe, "/", 200'000).is_good());
  }
  OneAnswer server("", true);
  HealthProbe probe(server.port);
  CHECK(asked(probe, "/", 1'000).text == "GET /: no answer in time");
}

TEST_CASE("a large answer is read only in part") {
  OneAnswer server("HTTP/1.1 200 OK\r\n\r\n" + std::string(1 << 20, 'x'));
  HealthProbe probe(server.port);
  CHECK(asked(probe, "/").is_good());
}

TEST_CASE("a free port has no listener, and a server may ask for it at once") {
  ReservedPort reserved, other;
  uint16_t port = reserved.number();
  REQUIRE(port != 0);
  REQUIRE(other.number() != 0);
  CHECK(port != other.number());
  CHECK_FALSE(has_listener(port));
  HealthProbe probe(port);
  HealthAnswer answer = asked(probe, "/health");
  CHECK_FALSE(answer.is_good());
  CHECK(answer.text == "GET /health: nothing listens at 127.0.0.1:" + std::to_string(port));
  OneAnswer server("");
  CHECK(has_listener(server.port));
}
