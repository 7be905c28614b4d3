// The HTTP server over real sockets, with a handler that echoes or holds requests.
#include "engine/serve/http/http_server.hpp"

#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "client.hpp"
#include "response_parts.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr int64_t kHour = 3'600'000;

std::string_view echo_methods(std::string_view path) {
  if (path == "/echo" || path == "/hold") return "POST";
  return path == "/get" ? "GET, HEAD" : "";
}

const HttpRules kEchoRules{.methods = echo_methods};

/// Limits without those of time.
HttpLimits patient() {
  HttpLimits limits;
  limits.evict_after_ms = limits.idle_ms = limits.head_ms = limits.body_ms = kHour;
  limits.write_ms = limits.silence_ms = limits.half_closed_ms = kHour;
  return limits;
}

/// Answers /echo with the body, /get with "got", and /hold when answer_held() is called.
class EchoServer {
 public:
  explicit EchoServer(const HttpLimits& limits = patient(), std::optional<TlsFiles> tls = {}) {
    HttpOptions options{.name = "echo", .tls = tls, .rules = kEchoRules, .limits = limits};
    auto opened = HttpServer::open(options, [this](HttpRequest request, HttpReply reply) {
      std::unique_lock lock(mutex_);
      requests_++;
      if (request.path == "/hold") {
        held_.push_back(std::move(reply));
      } else {
        lock.unlock();
        reply.send(response_in_parts(request.path == "/get" ? "got" : std::move(request.body)));
      }
      changed_.notify_all();
    });
    REQUIRE(opened.ok());
    server = std::move(*opened);
    port = server->port();
  }

  /// Waits until `count` requests are held.
  void wait_held(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() == count; });
  }
  void answer_held(const std::string& body) {
    std::vector<HttpReply> held;
    {
      std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (HttpReply& reply : held) reply.send({.body = body});
  }
  std::vector<HttpReply> take_replies() {
    std::lock_guard lock(mutex_);
    return std::exchange(held_, {});
  }
  bool is_first_abandoned() {
    std::lock_guard lock(mutex_);
    return held_.front().is_abandoned();
  }
  int requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpReply> held_;
  int requests_ = 0;

 public:
  int port = 0;
  std::unique_ptr<HttpServer> server;  // last: its thread uses the others
};

std::string post(const std::string& path, const std::string& body, const std::string& fields = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}", path,
                     fields, body.size(), body);
}

void send_part(int descriptor, const std::string& text) {
  REQUIRE(::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
}

/// Everything that arrives until the peer closes the connection.
std::string rest_of(int descriptor) {
  std::string all;
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(descriptor, chunk, sizeof chunk)) > 0;)
    all.append(chunk, static_cast<size_t>(got));
  ::close(descriptor);
  return all;
}

/// One response; the connection stays open.
std::string response_of(int descriptor) {
  std::string all;
  char byte;
  while (all.find("\r\n\r\n") == std::string::npos && ::recv(descriptor, &byte, 1, 0) == 1)
    all += byte;
  size_t at = all.find("Content-Length: ");
  REQUIRE(at != std::string::npos);
  std::string body(std::stoul(all.substr(at + 16)), 0);
  if (!body.empty())
    REQUIRE(::recv(descriptor, body.data(), body.size(), MSG_WAITALL) ==
            static_cast<ssize_t>(body.size()));
  return all + body;
}

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) found++;
  return found;
}

void reset(int descriptor) {
  linger abort{1, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
  ::close(descriptor);
}

bool is_refused(int port) {
  int descriptor = connect_to(port);
  if (descriptor >= 0) ::close(descriptor);
  return descriptor < 0;
}

}  // namespace

TEST_CASE("a connection serves requests one after another") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  for (int i = 0; i < 3; i++) {
    send_part(descriptor, post("/echo", std::to_string(i)));
    CHECK(response_of(descriptor) ==
          fmt::format("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n"
                      "\r\n{}",
                      i));
  }
  ::close(descriptor);
}

TEST_CASE("pipelined requests are answered in order, also when a reply comes later") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  send_part(descriptor, post("/echo", "first") + post("/hold", "") + post("/echo", "third") +
                            post("/echo", "last", "Connection: close\r\n"));
  echo.wait_held(1);
  CHECK(echo.requests() == 2);
  echo.answer_held("second");
  std::string all = rest_of(descriptor);
  CHECK(count(all, "HTTP/1.1 200") == 4);
  CHECK(all.find("first") < all.find("second"));
  CHECK(all.find("second") < all.find("third"));
  CHECK(all.ends_with("Connection: close\r\n\r\nlast"));
}

TEST_CASE("a request that arrives byte by byte is answered") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  for (char byte : post("/echo", "slow", "Connection: close\r\n"))
    send_part(descriptor, std::string(1, byte));
  CHECK(rest_of(descriptor).ends_with("\r\n\r\nslow"));
}

TEST_CASE("a large body arrives whole, and its response leaves whole") {
  EchoServer echo;
  std::string body(20u << 20, 0);
  for (size_t i = 0; i < body.size(); i++) body[i] = static_cast<char>('a' + i % 23);
  std::string text = post("/echo", body, "Connection: close\r\n");
  int descriptor = connect_to(echo.port);
  std::thread writer([&] { ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL); });
  writer.join();  // nothing is read meanwhile: the server buffers the response
  CHECK(rest_of(descriptor).ends_with("\r\n\r\n" + body));
}

TEST_CASE("HEAD has the head of GET and no body") {
  EchoServer echo;
  Reply head = send_raw(echo.port, "HEAD /get HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(head.status == 200);
  CHECK_THAT(head.headers, Contains("Content-Length: 3"));
  CHECK(head.body.empty());
}

TEST_CASE("a rejection is a JSON error and closes the connection") {
  EchoServer echo;
  auto refused = [&](const std::string& text, int status, const std::string& words) {
    Reply reply = send_raw(echo.port, text, false);
    INFO(text.substr(0, 200));
    CHECK(reply.status == status);
    CHECK_THAT(reply.headers, Contains("Connection: close"));
    CHECK_THAT(reply.body, Contains("{\"error\":\"") && Contains(words));
  };
  refused("GARBAGE\r\n\r\n", 400, "request line");
  refused("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 404, "GET /nowhere");
  refused("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 67108865\r\n\r\n", 413,
          "larger than 67108864 bytes");
  refused("GET /get HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "evil.example");
  CHECK_THAT(send_raw(echo.port, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", false).headers,
             Contains("405") && Contains("Allow: POST"));
}

TEST_CASE("a rejection reaches a client that still sends its body") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  send_part(descriptor, "POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" +
                            std::string(1'000'000, 'x'));
  CHECK_THAT(rest_of(descriptor), Contains("HTTP/1.1 404"));
}

TEST_CASE("Expect: 100-continue is answered before the body arrives") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  send_part(descriptor,
            "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  std::string got(25, 0);
  REQUIRE(::recv(descriptor, got.data(), got.size(), MSG_WAITALL) == 25);
  CHECK(got == "HTTP/1.1 100 Continue\r\n\r\n");
  send_part(descriptor, "body");
  std::string response = response_of(descriptor);
  CHECK(response.ends_with("\r\n\r\nbody"));
  CHECK(count(response, "100 Continue") == 0);
  ::close(descriptor);
}

TEST_CASE("slow heads and bodies get 408, and silent connections are closed") {
  HttpLimits limits = patient();
  limits.idle_ms = limits.head_ms = limits.body_ms = 50;
  EchoServer echo(limits);
  int idle = connect_to(echo.port), head = connect_to(echo.port), body = connect_to(echo.port);
  send_part(head, "GET /get HT");
  send_part(body, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{");
  CHECK(rest_of(idle).empty());
  CHECK_THAT(rest_of(head), Contains("HTTP/1.1 408") && Contains("the head of the request"));
  CHECK_THAT(rest_of(body), Contains("HTTP/1.1 408") && Contains("the body of the request"));
  CHECK(echo.requests() == 0);
}

TEST_CASE("a truncated request gets 400, or 499 within its body, and is not handled") {
  EchoServer echo;
  CHECK(send_raw(echo.port, "GET /get HT").status == 400);
  CHECK(
      send_raw(echo.port, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{").status ==
      499);
  CHECK(echo.requests() == 0);
}

TEST_CASE("a client that sends no more still gets its response") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  send_part(descriptor, post("/hold", ""));
  ::shutdown(descriptor, SHUT_WR);
  echo.wait_held(1);
  CHECK_FALSE(echo.is_first_abandoned());
  echo.answer_held("late");
  CHECK(rest_of(descriptor).ends_with("\r\n\r\nlate"));
}

TEST_CASE("a request is abandoned when its client is gone") {
  HttpLimits limits = patient();
  limits.half_closed_ms = 0;
  EchoServer echo(limits);
  auto abandoned = [&](auto leave) {
    int descriptor = connect_to(echo.port);
    send_part(descriptor, post("/hold", ""));
    echo.wait_held(1);
    leave(descriptor);
    while (!echo.is_first_abandoned()) std::this_thread::yield();
    echo.answer_held("to nobody");
  };
  abandoned(reset);
  abandoned([](int descriptor) { ::close(descriptor); });
  CHECK(request(echo.port, "GET", "/get").status == 200);
}

TEST_CASE("a reply that is dropped is a 500") {
  EchoServer echo;
  int descriptor = connect_to(echo.port);
  send_part(descriptor, post("/hold", "", "Connection: close\r\n"));
  echo.wait_held(1);
  echo.take_replies();
  CHECK_THAT(rest_of(descriptor), Contains("HTTP/1.1 500"));
}

TEST_CASE("a reply may outlive the server") {
  std::vector<HttpReply> held;
  int descriptor = -1;
  {
    EchoServer echo;
    descriptor = connect_to(echo.port);
    send_part(descriptor, post("/hold", ""));
    echo.wait_held(1);
    held = echo.take_replies();
  }
  CHECK(rest_of(descriptor).empty());
  CHECK(held.front().is_abandoned());
  held.front().send({.body = "late"});
}

TEST_CASE("if all places are taken, the connection that has been idle longest is closed") {
  HttpLimits limits = patient();
  limits.connections_max = 4;
  limits.evict_after_ms = 0;
  EchoServer echo(limits);
  std::vector<int> silent;
  for (int i = 0; i < 40; i++) {
    silent.push_back(connect_to(echo.port));
    REQUIRE(silent.back() >= 0);
    if (i % 2 == 1) send_part(silent.back(), "GET /get HT");
  }
  for (int i = 0; i < 8; i++) CHECK(request(echo.port, "GET", "/get").status == 200);
  CHECK(rest_of(silent[0]).empty());
  for (size_t i = 1; i < silent.size(); i++) ::close(silent[i]);
}

TEST_CASE("connections without a place wait while requests are answered") {
  HttpLimits limits = patient();
  limits.connections_max = 2;
  EchoServer echo(limits);
  std::atomic<int> served{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; i++)
    clients.emplace_back([&] {
      int client = connect_to(echo.port);
      send_part(client, post("/hold", "", "Connection: close\r\n"));
      served += rest_of(client).ends_with("\r\n\r\nheld");
    });
  for (int round = 0; round < 3; round++) {
    echo.wait_held(2);
    echo.answer_held("held");
  }
  for (std::thread& client : clients) client.join();
  CHECK(served == 6);
}

TEST_CASE("a connection is refused with 503 if all others have requests") {
  HttpLimits limits = patient();
  limits.connections_max = 1;
  limits.evict_after_ms = 0;
  EchoServer echo(limits);
  int busy = connect_to(echo.port);
  send_part(busy, post("/hold", ""));
  echo.wait_held(1);
  CHECK_THAT(rest_of(connect_to(echo.port)), Contains("HTTP/1.1 503") &&
                                                 Contains("Retry-After: 1") &&
                                                 Contains("too many connections"));
  echo.answer_held("held");
  CHECK(response_of(busy).ends_with("held"));
  ::close(busy);
}

TEST_CASE("bodies beyond the limit of all bytes get 503 before they arrive") {
  HttpLimits limits = patient();
  limits.bytes_max = 1000;
  EchoServer echo(limits);
  int first = connect_to(echo.port);
  send_part(first, post("/hold", std::string(700, 'x')));
  echo.wait_held(1);
  Reply refused =
      send_raw(echo.port, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 301\r\n\r\n", false);
  CHECK(refused.status == 503);
  CHECK_THAT(refused.headers, Contains("Retry-After: 1"));
  CHECK(request(echo.port, "POST", "/echo", std::string(300, 'y')).status == 200);
  echo.answer_held("");
  response_of(first);
  CHECK(request(echo.port, "POST", "/echo", std::string(1000, 'z')).status == 200);
  ::close(first);
}

TEST_CASE("bodies that are only announced take no place from others") {
  HttpLimits limits = patient();
  limits.bytes_max = 8u << 20;
  EchoServer echo(limits);
  std::vector<int> silent;
  for (int i = 0; i < 4; i++) {
    silent.push_back(connect_to(echo.port));
    send_part(silent.back(), "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\nx");
  }
  CHECK(request(echo.port, "POST", "/echo", std::string(1'000'000, 'y')).status == 200);
  for (int client : silent) ::close(client);
}

TEST_CASE("a body that arrives too slowly gives way when others reach the limit of all bytes") {
  HttpLimits limits = patient();
  limits.bytes_max = 8u << 20;
  EchoServer echo(limits);
  int slow = connect_to(echo.port);
  send_part(slow, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 7000000\r\n\r\n" +
                      std::string(6'000'000, 'x'));
  const std::string body(3'000'000, 'y');
  while (request(echo.port, "POST", "/echo", body).status != 200) std::this_thread::yield();
  CHECK_THAT(rest_of(slow), StartsWith("HTTP/1.1 408") && Contains("arrived too slowly"));
}

TEST_CASE("a response that is not read gives way when bodies reach the limit of all bytes") {
  HttpLimits limits = patient();
  limits.bytes_max = 30u << 20;
  EchoServer echo(limits);
  int unread = connect_to(echo.port);
  send_part(unread, post("/hold", "", "Connection: close\r\n"));
  echo.wait_held(1);
  echo.answer_held(std::string(29u << 20, 'x'));
  const std::string body(20'000'000, 'y');
  while (request(echo.port, "POST", "/echo", body).status != 200) std::this_thread::yield();
  CHECK(rest_of(unread).size() < 29u << 20);
}

TEST_CASE("when responses exceed the limit of all bytes, clients that do not read are closed") {
  constexpr size_t kResponse = 20u << 20;
  HttpLimits limits = patient();
  limits.bytes_max = 30u << 20;
  EchoServer echo(limits);
  std::vector<int> clients;
  for (size_t i = 0; i < 3; i++) {
    clients.push_back(connect_to(echo.port));
    send_part(clients.back(), post("/hold", "", "Connection: close\r\n"));
    echo.wait_held(i + 1);
  }
  echo.answer_held(std::string(kResponse, 'x'));
  while (echo.server->connections() > 1) std::this_thread::yield();
  CHECK(rest_of(clients[2]).size() > kResponse);
  CHECK(rest_of(clients[0]).size() < kResponse);
  CHECK(rest_of(clients[1]).size() < kResponse);
}

TEST_CASE("a client that pipelines without end leaves others their turn") {
  EchoServer echo;
  std::string text;
  for (int i = 0; i < 500; i++) text += "GET /get HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::atomic<bool> is_done{false};
  int client = connect_to(echo.port);
  std::thread reader([&] {
    char chunk[64 * 1024];
    while (::read(client, chunk, sizeof chunk) > 0) {
    }
  });
  std::thread writer([&] {
    while (!is_done && ::send(client, text.data(), text.size(), MSG_NOSIGNAL) > 0) {
    }
    ::shutdown(client, SHUT_RDWR);
  });
  for (int i = 0; i < 50; i++) CHECK(request(echo.port, "GET", "/get").status == 200);
  is_done = true;
  writer.join();
  reader.join();
  ::close(client);
}

TEST_CASE("all of many pipelined requests are answered in order") {
  EchoServer echo;
  std::string text, expected;
  for (int i = 0; i < 200; i++) text += post("/echo", std::to_string(i));
  int client = connect_to(echo.port);
  send_part(client, text + post("/echo", "last", "Connection: close\r\n"));
  std::string all = rest_of(client);
  CHECK(count(all, "HTTP/1.1 200") == 201);
  size_t at = 0;
  for (int i = 0; i < 200; i++) {
    size_t found = all.find("\r\n\r\n" + std::to_string(i) + "HTTP", at);
    REQUIRE(found != std::string::npos);
    at = found;
  }
  CHECK(all.ends_with("last"));
}

TEST_CASE("a drain answers what has arrived, and accepts no more connections") {
  HttpLimits limits = patient();
  limits.silence_ms = 50;
  EchoServer echo(limits);
  int waiting = connect_to(echo.port), open = connect_to(echo.port);
  send_part(waiting, post("/hold", ""));
  echo.wait_held(1);
  echo.server->begin_drain();
  while (!is_refused(echo.port)) std::this_thread::yield();
  CHECK(rest_of(open).empty());  // closed after a time of silence
  CHECK_FALSE(echo.server->wait_drained(0));
  echo.answer_held("held");
  std::string response = rest_of(waiting);
  CHECK_THAT(response, Contains("Connection: close"));
  CHECK(response.ends_with("held"));
  CHECK(echo.server->wait_drained(kHour));
}

TEST_CASE("during a drain a request on an open connection is answered, and its connection closed") {
  EchoServer echo;  // no connection is closed for its silence
  int open = connect_to(echo.port);
  send_part(open, post("/echo", "before"));
  CHECK(count(response_of(open), "Connection: close") == 0);
  echo.server->begin_drain();
  while (!is_refused(echo.port)) std::this_thread::yield();
  send_part(open, post("/echo", "during"));
  std::string response = rest_of(open);
  CHECK_THAT(response, Contains("Connection: close"));
  CHECK(response.ends_with("during"));
  CHECK(echo.server->wait_drained(kHour));
}

TEST_CASE("a drain serves the connections that the system has accepted") {
  HttpLimits limits = patient();
  limits.connections_max = 1;  // the others wait in the system's backlog
  EchoServer echo(limits);
  std::vector<int> clients;
  for (int i = 0; i < 20; i++) {
    clients.push_back(connect_to(echo.port));
    send_part(clients.back(), post("/echo", "served", "Connection: close\r\n"));
  }
  echo.server->begin_drain();
  std::atomic<int> served{0};
  std::vector<std::thread> readers;
  for (int client : clients)
    readers.emplace_back([&, client] { served += rest_of(client).ends_with("served"); });
  for (std::thread& reader : readers) reader.join();
  CHECK(served == 20);
  CHECK(echo.server->wait_drained(kHour));
}

TEST_CASE("a port that is in use is an error that says what to do") {
  EchoServer echo;
  auto port = static_cast<uint16_t>(echo.port);
  auto second = HttpServer::open({.name = "echo", .port = port, .rules = kEchoRules}, nullptr);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().kind == ErrorKind::user);
  CHECK_THAT(second.error().message, Contains("the service `echo` cannot listen") &&
                                         Contains("port is in use") &&
                                         Contains("`port = 0` for a free one"));
}
