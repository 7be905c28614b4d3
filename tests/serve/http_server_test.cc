// Accepted and rejected requests over real sockets.
#include <fmt/format.h>

#include "adder.hpp"
#include "engine/serve/http_head.hpp"

using namespace flow;
using Catch::Contains;

namespace {

const std::string kPost = std::string("POST ") + kInfer + " HTTP/1.1\r\nHost: localhost\r\n";

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

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) found++;
  return found;
}

}  // namespace

TEST_CASE("a rejection is a JSON error and closes the connection") {
  Service service;
  auto refused = [&](const std::string& text, int status, const std::string& words) {
    Reply reply = send_raw(service.port, text, false);
    INFO(text.substr(0, 200));
    CHECK(reply.status == status);
    CHECK_THAT(reply.headers, Contains("Connection: close"));
    CHECK(reply.body == "{\"error\":\"" + words + "\"}");
  };
  refused("GARBAGE\r\n\r\n", 400, "the request line is not `METHOD /path HTTP/1.1`");
  refused("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 404, "there is no resource for GET /nowhere");
  refused(kPost + "Content-Length: -1\r\n\r\n", 400,
          "the Content-Length `-1` is not a number of bytes");
  refused(kPost + "\r\n", 411, "a body needs a Content-Length, or Transfer-Encoding: chunked");
  refused(kPost + "Content-Length: 67108865\r\n\r\n", 413,
          "the body is larger than 67108864 bytes");
  refused(kPost + "Transfer-Encoding: chunked\r\n\r\n4000001\r\n", 413,
          "the body is larger than 67108864 bytes");
  refused(kPost + "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400,
          "the chunks of the body are broken");
  refused(kPost + "A: " + std::string(kHeadBytesMax, 'a') + "\r\n\r\n", 431,
          "the head is larger than 16384 bytes");
  refused("GET /v2 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403,
          "the Host `evil.example` is a domain: a service is asked as localhost or by its address");
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("an unsupported method is a 405 with Allow") {
  Service service;
  CHECK_THAT(request(service.port, "BREW", "/v2").headers, Contains("Allow: GET, HEAD\r\n"));
  CHECK_THAT(request(service.port, "GET", kInfer).headers, Contains("Allow: POST\r\n"));
  CHECK(request(service.port, "DELETE", "/v2/models/adder").status == 405);
}

TEST_CASE("HEAD is GET without a body") {
  Service service;
  Reply head = request(service.port, "HEAD", "/v2/health/ready");
  CHECK(head.status == 200);
  CHECK(head.body.empty());
  CHECK_THAT(head.headers, Contains("Content-Length: 14"));
  Reply missing = request(service.port, "HEAD", "/nowhere");
  CHECK(missing.status == 404);
  CHECK(missing.body.empty());
}

TEST_CASE("pipelined requests are answered in order, including chunked ones") {
  Service service;
  std::string one = infer_body("x", 1), two = infer_body("x", 2), three = infer_body("x", 3);
  std::string length = "Content-Length: " + std::to_string(one.size()) + "\r\n";
  std::string all = kPost + length + "\r\n" + one + kPost + "Transfer-Encoding: chunked\r\n\r\n" +
                    fmt::format("{:x}\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", 7, two.substr(0, 7),
                                two.size() - 7, two.substr(7)) +
                    kPost + length + "Connection: close\r\n\r\n" + three;
  int descriptor = connect_to(service.port);
  send_part(descriptor, all);
  std::string answers = rest_of(descriptor);
  CHECK(count(answers, "HTTP/1.1 200") == 3);
  size_t first = answers.find("\"data\":[2]"), second = answers.find("\"data\":[3]");
  CHECK(first < second);
  CHECK(second < answers.find("\"data\":[4]"));
  CHECK(answers.find("\"data\":[4]") != std::string::npos);
}

TEST_CASE("Expect: 100-continue is answered before the body arrives") {
  Service service;
  std::string body = infer_body("x", 1);
  int descriptor = connect_to(service.port);
  send_part(descriptor, kPost + "Expect: 100-continue\r\nConnection: close\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n");
  const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  std::string got(go_on.size(), 0);
  REQUIRE(::recv(descriptor, got.data(), got.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(got.size()));
  CHECK(got == go_on);
  send_part(descriptor, body);
  std::string answer = rest_of(descriptor);
  CHECK_THAT(answer, Contains("HTTP/1.1 200") && Contains("\"data\":[2]"));
  CHECK(count(answer, "100 Continue") == 0);
}

TEST_CASE("Content-Type and Range are ignored") {
  Service service;
  std::string body = infer_body("x", 1) + std::string(20'000, ' ');
  for (const char* type :
       {"application/x-www-form-urlencoded", "multipart/form-data; boundary=b"}) {
    Reply reply =
        send_raw(service.port,
                 kPost + "Connection: close\r\nRange: bytes=0-1\r\nContent-Type: " + type +
                     "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
                 false);
    CHECK(reply.status == 200);
    CHECK_THAT(reply.body, Contains("\"data\":[2]"));
  }
}

TEST_CASE("endless heads and bodies time out, and idle connections are closed") {
  ServiceLimits limits;
  limits.idle_ms = limits.head_ms = limits.body_ms = 50;
  Service service(1, 0, limits);
  int idle = connect_to(service.port), head = connect_to(service.port),
      body = connect_to(service.port);
  send_part(head, "GET /v2 HT");
  send_part(body, kPost + "Content-Length: 10\r\n\r\n{");
  CHECK(rest_of(idle).empty());
  CHECK_THAT(rest_of(head),
             Contains("HTTP/1.1 408") && Contains("the head of the request arrived"));
  CHECK_THAT(rest_of(body),
             Contains("HTTP/1.1 408") && Contains("the body of the request arrived"));
}

TEST_CASE("a truncated request is not processed") {
  Service service;
  CHECK(send_raw(service.port, "GET /v2 HT").status == 400);
  CHECK(send_raw(service.port, kPost + "Content-Length: 10\r\n\r\n{").status == 400);
  CHECK(service.calls == 0);
}

TEST_CASE("if all connections are idle, the one that has been idle longest is closed") {
  ServiceLimits limits;
  limits.connections_max = 4;
  limits.idle_ms = limits.head_ms = limits.body_ms = 3'600'000;
  limits.evict_after_ms = 0;
  Service service(1, 0, limits);
  std::vector<int> silent;
  for (int i = 0; i < 40; i++) {
    silent.push_back(connect_to(service.port));
    REQUIRE(silent.back() >= 0);
    if (i % 2 == 1) send_part(silent.back(), "GET /v2 HT");
  }
  for (int i = 0; i < 8; i++)
    CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  char byte;
  CHECK(::recv(silent[0], &byte, 1, 0) <= 0);
  for (int descriptor : silent) ::close(descriptor);
}

TEST_CASE("a connection whose request is in progress is not closed") {
  ServiceLimits limits;
  limits.connections_max = 2;
  limits.evict_after_ms = 3'600'000;
  Service service(1, 0, limits);
  service.hold = true;
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int i = 0; i < 6; i++)
    clients.emplace_back([&] {
      if (request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200) good++;
    });
  while (service.calls == 0) std::this_thread::yield();
  service.hold = false;
  for (std::thread& client : clients) client.join();
  CHECK(good == 6);
}
