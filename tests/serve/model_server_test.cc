// The HTTP server with a fake predict function: routes, errors, batching and shutdown.
#include <netinet/tcp.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <thread>

#include "adder.hpp"

using namespace flow;
using Catch::Contains;

TEST_CASE("a client finds server, health and model") {
  Service service;
  CHECK(request(service.port, "GET", "/v2").status == 200);
  CHECK_THAT(request(service.port, "GET", "/v2").body, Contains("\"name\""));
  CHECK(request(service.port, "GET", "/v2/health/live").status == 200);
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
  CHECK(request(service.port, "GET", "/v2/models/adder/ready").status == 200);
  Reply model = request(service.port, "GET", "/v2/models/adder");
  CHECK(model.status == 200);
  CHECK_THAT(model.body, Contains(R"("name":"adder")"));
  CHECK_THAT(model.headers, Contains("application/json"));
}

TEST_CASE("an inference returns the result of predict") {
  Service service;
  Reply reply = request(service.port, "POST", kInfer,
                        R"({"id":"a","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32",)"
                        R"("data":[[1,2],[3,4]]}]})");
  CHECK(reply.status == 200);
  CHECK(reply.body == R"({"model_name":"adder","id":"a","outputs":[{"name":"x","datatype":"FP32",)"
                      R"("shape":[2,2],"data":[2,3,4,5]}]})");
}

TEST_CASE("an invalid request gets a 4xx with a JSON error, and the next request is served") {
  Service service;
  auto refused = [&](const Reply& reply, int status) {
    CHECK(reply.status == status);
    auto value = from_json(reply.body);
    REQUIRE(value.ok());
    REQUIRE(value->find("error") != nullptr);
    CHECK_FALSE(value->find("error")->as_string().empty());
  };
  refused(request(service.port, "POST", kInfer, "not json"), 400);
  refused(request(service.port, "POST", kInfer, ""), 400);
  refused(request(service.port, "POST", kInfer, "{}"), 400);
  refused(request(service.port, "POST", kInfer, std::string(1000, '[')), 400);
  refused(request(service.port, "POST", kInfer, "\xff\xfe"), 400);
  refused(request(service.port, "POST", kInfer, infer_body("x", 1) + std::string("\0more", 5)),
          400);
  refused(request(service.port, "POST", "/v2/models/other/infer", infer_body("x", 1)), 404);
  refused(request(service.port, "GET", "/v2/models/other"), 404);
  refused(request(service.port, "GET", "/v2/models/other/ready"), 404);
  refused(request(service.port, "GET", "/nowhere"), 404);
  refused(request(service.port, "POST", "/v2/health/live"), 405);
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("a broken request line, an endless header and a large body are harmless") {
  Service service;
  auto client_error = [](int status) { return status == 0 || (status >= 400 && status < 500); };
  CHECK(client_error(send_raw(service.port, "\r\n\r\n").status));
  CHECK(client_error(send_raw(service.port, "GARBAGE\r\n\r\n").status));
  CHECK(client_error(
      send_raw(service.port, "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n").status));
  CHECK(client_error(send_raw(service.port, "GET /v2 HTTP/1.1\r\nX: " + std::string(1 << 20, 'a') +
                                                "\r\nConnection: close\r\n\r\n")
                         .status));
  CHECK(client_error(send_raw(service.port, std::string("POST ") + kInfer +
                                                " HTTP/1.1\r\nContent-Length: 99999999999\r\n"
                                                "Connection: close\r\n\r\n{}")
                         .status));
  CHECK(client_error(send_raw(service.port, std::string("POST ") + kInfer +
                                                " HTTP/1.1\r\nContent-Length: -5\r\n"
                                                "Connection: close\r\n\r\n{}")
                         .status));
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("an infinity in a result is a 500 that names the output") {
  Service service;
  Reply reply = request(service.port, "POST", kInfer, infer_body("endless", 1));
  CHECK(reply.status == 500);
  CHECK(reply.body ==
        R"({"error":"output `endless` holds inf at index 0, which JSON cannot represent"})");
}

TEST_CASE("a number that its datatype cannot hold is a 400 that names the input") {
  Service service;
  Reply reply =
      request(service.port, "POST", kInfer,
              R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1e300]}]})");
  CHECK(reply.status == 400);
  CHECK(reply.body == R"({"error":"inputs[0].data[0] of `x` is 1e+300, but FP32 holds numbers )"
                      R"(up to 3.4028235e38"})");
  CHECK(service.calls == 0);
}

TEST_CASE("a failure of predict is an error response and does not end the server") {
  Service service;
  Reply reply = request(service.port, "POST", kInfer, infer_body("boom", 1));
  CHECK(reply.status == 500);
  CHECK_THAT(reply.body, Contains("boom: predict failed"));
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("waiting requests are joined in one call of predict") {
  Service service(4, 20'000);
  service.hold = true;
  std::vector<std::thread> clients;
  std::mutex mutex;
  std::vector<std::pair<int, double>> answers;
  auto ask = [&](int value) {
    Reply reply = request(service.port, "POST", kInfer, infer_body("x", value));
    std::lock_guard lock(mutex);
    CHECK(reply.status == 200);
    answers.emplace_back(value, first_number(reply));
  };
  clients.emplace_back(ask, 100);
  while (service.calls == 0) std::this_thread::yield();
  for (int i = 0; i < 4; i++) clients.emplace_back(ask, i);
  service.hold = false;
  for (std::thread& client : clients) client.join();
  for (const auto& [value, answer] : answers) CHECK(answer == value + 1);
  CHECK(answers.size() == 5);
  CHECK(service.rows_max <= 4);
  CHECK(service.calls <= 5);
}

TEST_CASE("an invalid request fails alone, also in a batch") {
  Service service(8, 50'000);
  service.hold = true;
  std::vector<std::thread> clients;
  std::mutex mutex;
  std::map<int, int> statuses;
  auto ask = [&](int value) {
    Reply reply = request(service.port, "POST", kInfer, infer_body("x", value));
    std::lock_guard lock(mutex);
    statuses[value] = reply.status;
  };
  clients.emplace_back(ask, 100);
  while (service.calls == 0) std::this_thread::yield();
  for (int value : {1, 2, 666, 3}) clients.emplace_back(ask, value);
  service.hold = false;
  for (std::thread& client : clients) client.join();
  CHECK(statuses == std::map<int, int>{{100, 200}, {1, 200}, {2, 200}, {3, 200}, {666, 500}});
}

TEST_CASE("a port in use is an error that names it") {
  Service service;
  ServiceOptions options;
  options.name = "second";
  options.port = static_cast<uint16_t>(service.port);
  auto second = ModelServer::open(options);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message ==
        "the service `second` cannot listen on port " + std::to_string(service.port) +
            " of 127.0.0.1: the port is in use. End the program that listens there, choose another "
            "port, or write `port = 0` for a free one");
}

// Descriptors of this process whose local port is this one, listening or connected.
std::vector<int> sockets_at(int port, bool listening) {
  std::vector<int> found;
  for (int descriptor = 0; descriptor < 1024; descriptor++) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        address.sin_family != AF_INET || ntohs(address.sin_port) != port)
      continue;
    int listens = 0;
    size = sizeof listens;
    ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    if ((listens != 0) == listening) found.push_back(descriptor);
  }
  return found;
}

TEST_CASE("a response is sent at once, and the accept backlog is the system's maximum") {
  Service service;
  int client = connect_to(service.port);
  REQUIRE(client >= 0);
  std::vector<int> accepted;
  while (accepted.empty()) accepted = sockets_at(service.port, false);
  for (int socket : accepted) {
    int is_set = 0;
    socklen_t size = sizeof is_set;
    REQUIRE(::getsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &is_set, &size) == 0);
    CHECK(is_set != 0);
  }
  std::vector<int> listening = sockets_at(service.port, true);
  REQUIRE(listening.size() == 1);
  tcp_info info{};
  socklen_t size = sizeof info;
  REQUIRE(::getsockopt(listening[0], IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
  uint32_t most = SOMAXCONN;
  std::ifstream("/proc/sys/net/core/somaxconn") >> most;
  CHECK(info.tcpi_sacked == std::min<uint32_t>(most, SOMAXCONN));  // of a listener: its backlog
  ::close(client);
}

TEST_CASE("a request that the service fails to answer is logged, an error of the client is not") {
  Service service;
  CHECK(request(service.port, "POST", kInfer, "not json").status == 400);
  CHECK(request(service.port, "POST", kInfer, infer_body("boom", 1)).status == 500);
  CHECK(request(service.port, "POST", kInfer, infer_body("throw", 1)).status == 500);
  std::string endless =
      R"({"id":"r7","inputs":[{"name":"endless","shape":[1],"datatype":"FP32","data":[1]}]})";
  CHECK(request(service.port, "POST", kInfer, endless).status == 500);
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  service.stop();
  std::vector<std::string> logged = service.logged();
  REQUIRE(logged.size() == 3);
  CHECK(logged[0] == "request failed: boom: predict failed");
  CHECK(logged[1] == "request failed: `predict` failed: thrown");
  CHECK(logged[2] ==
        "request `r7` failed: output `endless` holds inf at index 0, which JSON cannot represent");
}

TEST_CASE("the server listens only on loopback") {
  Service service;
  int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(service.port));
  address.sin_addr.s_addr = htonl(0x7f000002);  // 127.0.0.2: it does not listen there
  CHECK(::connect(other, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0);
  ::close(other);
}

TEST_CASE("stopping ends the server at once, also with an idle connection") {
  auto service = std::make_unique<Service>();
  int port = service->port;
  int idle = connect_to(port);
  REQUIRE(idle >= 0);
  service->stop();
  service.reset();
  CHECK(connect_to(port) < 0);
  ::close(idle);
}
