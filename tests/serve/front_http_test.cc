// The front of a service as its clients see it: routes, errors, batching, limits and the end.
#include <netinet/tcp.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "adder.hpp"
#include "engine/front/front_messages.hpp"
#include "engine/serve/http/gzip.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// A request whose answer has `count` numbers.
std::string long_body(int count) {
  std::string numbers = "0";
  for (int i = 1; i < count; i++) numbers += "," + std::to_string(i % 500);
  return R"({"inputs":[{"name":"x","shape":[1,)" + std::to_string(count) +
         R"(],"datatype":"FP32","data":[)" + numbers + "]}]}";
}

std::string timeout_field(const std::string& time) { return "X-Request-Timeout: " + time + "\r\n"; }

}  // namespace

TEST_CASE("a client finds server, health, model and metrics") {
  Service service;
  const std::string model =
      R"({"name":"adder","versions":["1"],"platform":"flow_lua","inputs":[],"outputs":[]})";
  const std::map<std::string, std::string> bodies = {
      {"/v2",
       R"({"name":"flow","version":"1","extensions":["binary_tensor_data","model_configuration",)"
       R"("model_repository","parameters","statistics"]})"},
      {"/v2/health/live", R"({"live":true})"},
      {"/v2/health/ready", R"({"ready":true})"},
      {"/v2/models/adder", model},
      {"/v2/models/%61dder", model},
      {"/v2/models/adder/versions/1", model},
      {"/v2/models/adder/ready", R"({"name":"adder","ready":true})"},
      {"/v2/models/adder/versions/1/ready", R"({"name":"adder","ready":true})"}};
  for (const auto& [path, body] : bodies) {
    INFO(path);
    Reply reply = request(service.port, "GET", path);
    CHECK(reply.status == 200);
    CHECK(reply.body == body);
    CHECK_THAT(reply.headers, Contains("Content-Type: application/json"));
    Reply head = request(service.port, "HEAD", path);
    CHECK(head.status == 200);
    CHECK(head.body.empty());
  }
  Reply metrics = request(service.port, "GET", "/metrics");
  CHECK(metrics.status == 200);
  CHECK_THAT(metrics.headers, Contains("Content-Type: text/plain; version=0.0.4"));
  CHECK_THAT(metrics.body, Contains("\nflow_service_ready{model=\"adder\",version=\"r1\"} 1\n"));
}

TEST_CASE("an inference returns the result of predict, with and without version") {
  Service service;
  for (const char* path :
       {kInfer, "/v2/models/adder/versions/1/infer", "/v2/models/add%65r/infer"}) {
    Reply reply = request(service.port, "POST", path,
                          R"({"id":"a","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32",)"
                          R"("data":[[1,2],[3,4]]}]})");
    CHECK(reply.status == 200);
    CHECK(reply.body == R"({"model_name":"adder","model_version":"1","id":"a","outputs":[)"
                        R"({"name":"x","datatype":"FP32","shape":[2,2],"data":[2,3,4,5]}]})");
  }
}

TEST_CASE("a connection serves several requests, small and large ones") {
  Service service;
  Client client(service.port);
  for (int i = 0; i < 3; i++) {
    CHECK(first_number(client.post(kInfer, infer_body("x", i))) == i + 1);
    Reply reply = client.post(kInfer, long_body(30'000));
    REQUIRE(reply.status == 200);
    auto value = from_json(reply.body);
    REQUIRE(value.ok());
    const auto& data = value->find("outputs")->as_table().list[0].find("data")->as_table().list;
    CHECK(data.size() == 30'000);
    CHECK(data.back().as_number() == 500);
  }
  CHECK(service.calls() == 6);
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
  refused(request(service.port, "GET", "/v2/models/adder/versions/2"), 404);
  refused(request(service.port, "POST", "/v2/models/adder/versions/2/infer", infer_body("x", 1)),
          404);
  refused(request(service.port, "GET", "/v2/models/other/ready"), 404);
  refused(request(service.port, "GET", "/nowhere"), 404);
  for (const char* path : {"/v2/health/live", "/metrics", "/v2/models/adder/versions/1"}) {
    Reply reply = request(service.port, "POST", path);
    refused(reply, 405);
    CHECK_THAT(reply.headers, Contains("\r\nAllow: GET, HEAD\r\n"));
  }
  Reply reply = request(service.port, "GET", kInfer);
  refused(reply, 405);
  CHECK_THAT(reply.headers, Contains("\r\nAllow: POST\r\n"));
  CHECK_THAT(request(service.port, "GET", "/v2/models/a%6eother").body,
             Contains("there is no model `another` here, only `adder`"));
  CHECK_THAT(request(service.port, "GET", "/v2/models/adder/versions/2").body,
             Contains("`adder` has no version `2`, only `1`"));
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
  CHECK(service.calls() == 0);
}

TEST_CASE("a failure of predict is an error response and does not end the server") {
  Service service;
  Reply reply = request(service.port, "POST", kInfer, infer_body("boom", 1));
  CHECK(reply.status == 500);
  CHECK_THAT(reply.body, Contains("boom: predict failed"));
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("an error of kind user is the client's") {
  Service service;
  Reply reply = request(service.port, "POST", kInfer, infer_body("wrong", 1));
  CHECK(reply.status == 400);
  CHECK(reply.body == R"({"error":"wrong is not an input"})");
  service.stop();
  CHECK(service.logged().empty());
}

TEST_CASE("waiting requests are joined in one call of predict") {
  Service service(batched(4));
  service.hold();
  Client first(service.port);
  first.send(post_text(kInfer, infer_body("x", 100)));
  service.wait_calls(1);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; i++) {
    clients.push_back(std::make_unique<Client>(service.port));
    clients.back()->send(post_text(kInfer, infer_body("x", i)));
  }
  service.wait_metric("queue_length", 6);
  service.release();
  CHECK(first_number(first.read()) == 101);
  for (int i = 0; i < 6; i++) CHECK(first_number(clients[static_cast<size_t>(i)]->read()) == i + 1);
  CHECK(service.calls() == 3);
  CHECK(service.rows_max() == 4);
  CHECK(service.metric("batches_total") == 3);
  CHECK(service.metric("rows_total") == 7);
}

TEST_CASE("requests with a declared number of rows are not joined") {
  ServiceOptions options = batched(4);
  options.inputs = {{"x", "FP32", {1, 1}}};
  Service service(options);
  service.hold();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; i++) {
    clients.push_back(std::make_unique<Client>(service.port));
    clients.back()->send(post_text(kInfer, infer_body("x", i)));
  }
  service.wait_calls(1);
  service.wait_metric("queue_length", 2);
  service.release();
  for (int i = 0; i < 3; i++) CHECK(first_number(clients[static_cast<size_t>(i)]->read()) == i + 1);
  CHECK(service.calls() == 3);
  CHECK(service.rows_max() == 1);
}

TEST_CASE("a batch waits for more requests until it is full") {
  Service service(batched(3, int64_t{3600} * 1'000'000));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; i++) {
    CHECK(service.calls() == 0);
    clients.push_back(std::make_unique<Client>(service.port));
    clients.back()->send(post_text(kInfer, infer_body("x", i)));
  }
  for (int i = 0; i < 3; i++) CHECK(first_number(clients[static_cast<size_t>(i)]->read()) == i + 1);
  CHECK(service.calls() == 1);
}

TEST_CASE("an invalid request fails alone, also in a batch") {
  Service service(batched(8));
  service.hold();
  Client first(service.port);
  first.send(post_text(kInfer, infer_body("x", 100)));
  service.wait_calls(1);
  std::map<int, std::unique_ptr<Client>> clients;
  for (int value : {1, 2, 666, 3}) {
    clients[value] = std::make_unique<Client>(service.port);
    clients[value]->send(post_text(kInfer, infer_body("x", value)));
  }
  service.wait_metric("queue_length", 4);
  service.release();
  std::map<int, int> statuses;
  for (const auto& [value, client] : clients) statuses[value] = client->read().status;
  CHECK(statuses == std::map<int, int>{{1, 200}, {2, 200}, {3, 200}, {666, 500}});
  CHECK(first.read().status == 200);
  CHECK(service.calls() == 6);  // one, the batch, and each of it alone
}

TEST_CASE("a response is compressed if the client accepts it and it has 1 KiB") {
  Service service;
  Client client(service.port);
  const std::string accepts = "Accept-Encoding: gzip\r\n";
  for (int numbers : {1'000, 100'000}) {
    const std::string body = long_body(numbers);
    Reply plain = client.post(kInfer, body), packed = client.post(kInfer, body, accepts);
    CHECK(plain.status == 200);
    CHECK(packed.status == 200);
    CHECK(plain.headers.find("Content-Encoding") == std::string::npos);
    CHECK_THAT(packed.headers, Contains("\r\nContent-Encoding: gzip"));
    CHECK(packed.body.size() < plain.body.size());
    PlainBody unpacked = decompress("gzip", packed.body, kRequestBytesMax);
    REQUIRE_FALSE(unpacked.error);
    CHECK(unpacked.bytes == plain.body);
  }
  Reply small = client.post(kInfer, infer_body("x", 1), accepts);
  CHECK(first_number(small) == 2);
  CHECK(small.headers.find("Content-Encoding") == std::string::npos);
}

TEST_CASE("a compressed request is read, and a damaged one is a 400") {
  Service service;
  Client client(service.port);
  const std::string field = "Content-Encoding: gzip\r\n";
  std::string body = gzip(infer_body("x", 4));
  CHECK(first_number(client.post(kInfer, body, field)) == 5);
  body[body.size() / 2] = static_cast<char>(body[body.size() / 2] ^ 1);
  CHECK(client.post(kInfer, body, field).status == 400);
  Reply large = client.post(kInfer, gzip(std::string(kRequestBytesMax + 1, ' ')), field);
  CHECK(large.status == 413);
  CHECK_THAT(large.body, Contains("larger than 67108864 bytes after its Content-Encoding"));
  CHECK(first_number(client.post(kInfer, infer_body("x", 1))) == 2);
}

TEST_CASE("binary tensors are read and returned") {
  Service service;
  Client client(service.port);
  const std::string json = R"({"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32",)"
                           R"("parameters":{"binary_data_size":8}}],"outputs":[{"name":"x",)"
                           R"("parameters":{"binary_data":true}}]})";
  const float numbers[] = {0, 7};
  std::string data(reinterpret_cast<const char*>(numbers), sizeof numbers);
  Reply reply =
      client.post(kInfer, json + data,
                  "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
  CHECK(reply.status == 200);
  CHECK_THAT(reply.headers, Contains("Content-Type: application/octet-stream\r\n"));
  const std::string field = "Inference-Header-Content-Length: ";
  size_t at = reply.headers.find(field);
  REQUIRE(at != std::string::npos);
  REQUIRE(reply.body.size() == std::stoul(reply.headers.substr(at + field.size())) + 8);
  float sums[2];
  std::memcpy(sums, reply.body.data() + reply.body.size() - 8, 8);
  CHECK(sums[0] == 1);
  CHECK(sums[1] == 8);
}

TEST_CASE("the length of the JSON of a compressed request counts what is decompressed") {
  Service service;
  Client client(service.port);
  // The blanks make the JSON longer than the compressed body.
  const std::string json = "{" + std::string(500, ' ') +
                           R"("inputs":[{"name":"x","shape":[1,512],"datatype":"FP32",)"
                           R"("parameters":{"binary_data_size":2048}}]})";
  auto send = [&](size_t json_bytes) {
    return client.post(kInfer, gzip(json + std::string(2048, '\0')),
                       "Content-Encoding: gzip\r\nInference-Header-Content-Length: " +
                           std::to_string(json_bytes) + "\r\n");
  };
  CHECK(gzip(json + std::string(2048, '\0')).size() < json.size());
  CHECK(first_number(send(json.size())) == 1);
  Reply refused = send(json.size() + 2049);
  CHECK(refused.status == 400);
  CHECK_THAT(refused.body, Contains("but the body has"));
}

TEST_CASE("a client that awaits `100 Continue` gets the refusal of its request instead") {
  ServiceOptions options;
  options.queue = 1;
  Service service(options);
  const std::string expects = "Expect: 100-continue\r\n";
  auto ask = [&](Client& client, const std::string& path) {
    client.send("POST " + path + " HTTP/1.1\r\nHost: a\r\n" + expects +
                "Content-Length: " + std::to_string(infer_body("x", 1).size()) + "\r\n\r\n");
    return client.read();
  };
  Client taken(service.port);
  CHECK(ask(taken, kInfer).status == 100);
  taken.send(infer_body("x", 1));
  CHECK(taken.read().status == 200);
  Client other(service.port);
  CHECK(ask(other, "/v2/models/other/infer").status == 404);
  service.hold();
  Client running(service.port), waiting(service.port), refused(service.port);
  running.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(2);
  waiting.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_metric("queue_length", 1);
  Reply full = ask(refused, kInfer);
  CHECK(full.status == 429);
  CHECK_THAT(full.headers, Contains("\r\nRetry-After: 1\r\n") && Contains("\r\nConnection: close"));
  CHECK(full.body ==
        R"({"error":"the queue of `adder` is full: it holds 1 requests; try again later"})");
  CHECK(service.metric("requests_total,code=\"429\"") == 1);
  service.release();
  CHECK(waiting.read().status == 200);
}

TEST_CASE("more requests than the queue holds get status 429") {
  ServiceOptions options;
  options.queue = 2;
  Service service(options);
  service.hold();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; i++) {
    clients.push_back(std::make_unique<Client>(service.port));
    clients.back()->send(post_text(kInfer, infer_body("x", i)));
    if (i == 0) service.wait_calls(1);
  }
  service.wait_metric("queue_length", 2);
  for (const std::string& body : {infer_body("x", 9), long_body(30'000)}) {
    Reply refused = request(service.port, "POST", kInfer, body);
    CHECK(refused.status == 429);
    CHECK_THAT(refused.headers, Contains("\r\nRetry-After: 1\r\n"));
    CHECK(refused.body ==
          R"({"error":"the queue of `adder` is full: it holds 2 requests; try again later"})");
  }
  service.release();
  for (int i = 0; i < 3; i++) CHECK(first_number(clients[static_cast<size_t>(i)]->read()) == i + 1);
  CHECK(service.metric("requests_total,code=\"429\"") == 2);
  CHECK(request(service.port, "POST", kInfer, "{").status == 400);
  front::Status status;
  service.on_loop([&](Front& front) { status = status_of(front); });
  const front::VersionStatus& version = status.versions(0);
  CHECK(version.requests() == 3);
  CHECK(version.step_requests() == 3);
  CHECK(version.refused() == 2);
  CHECK(version.step_refused() == 2);
}

TEST_CASE("a request that waits beyond its deadline gets status 504 and no call of predict") {
  Service service;
  service.hold();
  Client first(service.port), second(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  for (const char* time : {"0.02", "20ms"}) {
    Reply late = second.post(kInfer, infer_body("x", 2), timeout_field(time));
    CHECK(late.status == 504);
    CHECK(late.body == R"({"error":"the request was not answered within 20ms"})");
  }
  std::string asked = infer_body("x", 2);
  asked.insert(1, R"("parameters":{"timeout":30000},)");
  Reply late = second.post(kInfer, asked);
  CHECK(late.status == 504);
  CHECK(late.body == R"({"error":"the request was not answered within 30ms"})");
  CHECK(service.metric("queue_length") == 0);
  service.release();
  CHECK(first.read().status == 200);
  CHECK(first_number(second.post(kInfer, infer_body("x", 3), timeout_field("1h"))) == 4);
  CHECK(service.calls() == 2);
}

TEST_CASE("a hanging predict is status 504, and not ready until it returns") {
  ServiceOptions options;
  options.request_timeout_ms = 50;
  Service service(options);
  service.hold();
  Client client(service.port), probe(service.port);
  for (const char* time : {"1h", "5"}) {  // not beyond the service's own timeout
    Reply late = client.post(kInfer, infer_body("x", 1), timeout_field(time));
    CHECK(late.status == 504);
    CHECK(late.body == R"({"error":"the request was not answered within 50ms"})");
  }
  CHECK(service.calls() == 1);
  CHECK(probe.get("/v2/health/ready").status == 503);
  CHECK(probe.get("/v2/models/adder/ready").status == 503);
  CHECK(probe.get("/v2/health/live").status == 200);
  CHECK(service.metric("ready") == 0);
  service.release();
  while (probe.get("/v2/health/ready").status != 200) std::this_thread::yield();
  CHECK(first_number(client.post(kInfer, infer_body("x", 1))) == 2);
  CHECK(service.metric("requests_total,code=\"504\"") == 2);
  CHECK(service.metric("requests_total,code=\"200\"") == 1);
  CHECK(service.metric("request_duration_seconds_count") == 3);
  service.stop();
  CHECK(service.logged().empty());  // the replica logs its long call
}

TEST_CASE("a malformed X-Request-Timeout is status 400") {
  Service service;
  Client client(service.port);
  for (const char* time : {"0", "-1", "soon", "1 parsec"})
    CHECK(client.post(kInfer, infer_body("x", 1), timeout_field(time)).status == 400);
  CHECK(service.calls() == 0);
}

TEST_CASE("a waiting request of a client that has left is dropped") {
  Service service(batched(8));
  service.hold();
  Client first(service.port), leaving(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  leaving.send(post_text(kInfer, infer_body("x", 2)));
  service.wait_metric("queue_length", 1);
  leaving.reset();
  service.wait_metric("queue_length", 0);
  service.release();
  CHECK(first.read().status == 200);
  CHECK(service.metric("requests_total,code=\"499\"") == 1);
  service.stop();
  CHECK(service.calls() == 1);
}

TEST_CASE("a client that sends no more and waits too long gets status 499") {
  ServiceOptions options;
  options.limits.half_closed_ms = 0;
  Service service(options);
  service.hold();
  Client first(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  Reply reply = send_raw(service.port, post_text(kInfer, infer_body("x", 2)));
  CHECK(reply.status == 499);
  CHECK_THAT(reply.headers, StartsWith("HTTP/1.1 499 Client Closed Request\r\n"));
  CHECK(reply.body ==
        R"({"error":"the client closed its side of the connection while the request waited: )"
        R"(keep it open until the response is there"})");
  service.release();
  CHECK(first.read().status == 200);
  service.stop();
  CHECK(service.calls() == 1);
}

TEST_CASE("a port in use is an error that names it") {
  Service service;
  ServiceOptions options;
  options.name = "second";
  options.port = static_cast<uint16_t>(service.port);
  Service second({.name = "second"}, {.replicas = 0});
  Status joined = second.join(second.add_unjoined(), "r1", options);
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().message ==
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
      R"({"id":"r\n7","inputs":[{"name":"endless","shape":[1],"datatype":"FP32","data":[1]}]})";
  CHECK(request(service.port, "POST", kInfer, endless).status == 500);
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  service.stop();
  std::vector<std::string> logged = service.logged();
  REQUIRE(logged.size() == 3);
  CHECK(logged[0] == "request failed: boom: predict failed");
  CHECK(logged[1] == "request failed: `predict` failed: thrown");
  CHECK(logged[2] ==
        "request `r 7` failed: output `endless` holds inf at index 0, which JSON cannot represent");
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

TEST_CASE("a service is ready while it has a replica") {
  Service service;
  service.replica().die();
  CHECK(request(service.port, "GET", "/v2/health/live").status == 200);
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 503);
  CHECK(request(service.port, "GET", "/v2/models/adder/ready").body ==
        R"({"name":"adder","ready":false})");
  service.add();
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
}

TEST_CASE("a stop answers the accepted requests, also while predict runs") {
  ServiceOptions options;
  options.limits.silence_ms = 3'600'000;  // the client closes its idle connection
  Service service(options, {.drain_ms = 3'600'000});
  service.hold();
  Client first(service.port), second(service.port), kept(service.port), probe(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  second.send(post_text(kInfer, infer_body("x", 2)));
  service.wait_metric("queue_length", 1);
  for (Client* each : {&kept, &probe}) CHECK(each->get("/v2/health/ready").status == 200);

  service.begin_stop();
  Reply ready;
  while (ready.headers.find("Connection: close") == std::string::npos)
    ready = probe.get("/v2/health/ready");
  CHECK(ready.status == 503);
  kept.send(post_text(kInfer, infer_body("x", 3)));

  service.release();
  const int sums[] = {2, 3, 4};
  Client* clients[] = {&first, &second, &kept};
  for (int i = 0; i < 3; i++) {
    Reply reply = clients[i]->read();
    CHECK(reply.status == 200);
    CHECK(first_number(reply) == sums[i]);
    CHECK_THAT(reply.headers + "\r\n", Contains("\r\nConnection: close"));
    CHECK(clients[i]->is_at_end());
    clients[i]->close();
  }
  probe.close();
  service.stop();
  CHECK(connect_to(service.port) < 0);
  CHECK(service.logged().empty());
}

TEST_CASE("what a stop leaves unanswered gets status 503, and is counted") {
  Service service({}, {.drain_ms = 50});
  service.hold();
  Client first(service.port), second(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  second.send(post_text(kInfer, infer_body("x", 2)));
  service.wait_metric("queue_length", 1);
  service.begin_stop();
  const char* whys[] = {
      "was stopped at the end of the `--grace` of its run, and the request is not "
      "run again, because the service is stopping",
      R"({"error":"the service is stopping"})"};
  for (int i = 0; i < 2; i++) {  // predict still runs
    Client& client = i == 0 ? first : second;
    Reply reply = client.read();
    CHECK(reply.status == 503);
    CHECK_THAT(reply.body, Contains(whys[i]));
    CHECK(client.is_at_end());
  }
  service.release();
  service.stop();
  CHECK(service.calls() == 1);
  CHECK(service.logged() ==
        std::vector<std::string>{"requests that were not answered within 50ms after the stop of "
                                 "the service and got status 503: 2"});
}

TEST_CASE("stopping closes an idle connection without a reset") {
  auto service = std::make_unique<Service>();
  int port = service->port;
  Client idle(port);
  CHECK(idle.get("/v2/health/live").status == 200);
  service->stop();
  CHECK(idle.is_at_end());
  service.reset();
  CHECK(connect_to(port) < 0);
}

TEST_CASE("with keys, all but health needs one of them") {
  ServiceOptions options;
  options.keys = {"first-key", "second-key"};
  Service service(options);
  auto asked = [&](const std::string& path, const std::string& fields) {
    return send_raw(service.port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
                                      "Connection: close\r\n\r\n");
  };
  for (const char* path : {"/v2/health/live", "/v2/health/ready", "/v2/models/adder/ready",
                           "/v2/models/adder/versions/1/ready"})
    CHECK(asked(path, "").status == 200);
  for (const char* path : {"/v2", "/v2/models/adder", "/metrics"}) {
    Reply refused = asked(path, "");
    CHECK(refused.status == 401);
    CHECK_THAT(refused.headers, Contains("WWW-Authenticate: Bearer"));
    CHECK_THAT(refused.body, Contains("Authorization: Bearer KEY"));
    CHECK(asked(path, "Authorization: Bearer first-key\r\n").status == 200);
    CHECK(asked(path, "Authorization: bearer  second-key\r\n").status == 200);
    for (const char* wrong :
         {"Bearer first-ke", "Bearer first-key2", "Bearer ", "Basic first-key", "first-key"})
      CHECK(asked(path, std::string("Authorization: ") + wrong + "\r\n").status == 401);
  }
  CHECK(send_raw(service.port, post_text(kInfer, infer_body("x", 1), "Connection: close\r\n"))
            .status == 401);
  CHECK(service.calls() == 0);
  CHECK(
      send_raw(service.port, post_text(kInfer, infer_body("x", 1),
                                       "Connection: close\r\nAuthorization: Bearer second-key\r\n"))
          .status == 200);
}

TEST_CASE("a service listens on the address that it is given, and shows it") {
  ServiceOptions options;
  options.name = "adder";
  options.address = "127.0.0.2";
  CHECK_THAT(Service(options).url(), StartsWith("http://127.0.0.2:"));
  options.address = "192.0.2.1";  // of no machine: RFC 5737
  Service service(options, {.replicas = 0});
  Status other = service.join(service.add_unjoined(), "r1", options);
  REQUIRE_FALSE(other.ok());
  CHECK_THAT(other.error().message, Contains("192.0.2.1: the machine does not have that address"));
}

TEST_CASE("declared tensors are shown and checked") {
  ServiceOptions options = batched(8);
  options.inputs = {{"x", "FP32", {-1, 1}}};
  options.outputs = {{"x", "FP32", {-1, 1}}};
  Service service(options);
  CHECK_THAT(request(service.port, "GET", "/v2/models/adder").body,
             Contains(R"("inputs":[{"name":"x","datatype":"FP32","shape":[-1,1]}])"));
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  Reply refused = request(service.port, "POST", kInfer, infer_body("boom", 1));
  CHECK(refused.status == 400);
  CHECK_THAT(refused.body, Contains("the input `x` is missing"));
  CHECK(service.calls() == 1);
}

TEST_CASE("configuration, statistics and the index of the repository are answered") {
  Service service;
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  for (const char* path :
       {"/v2/models/stats", "/v2/models/adder/stats", "/v2/models/adder/versions/1/stats"})
    CHECK_THAT(request(service.port, "GET", path).body, Contains(R"("success":{"count":1,)"));
  CHECK_THAT(request(service.port, "GET", "/v2/models/adder/config").body,
             Contains(R"({"name":"adder","platform":"flow_lua")"));
  CHECK(request(service.port, "POST", "/v2/repository/index").body ==
        R"([{"name":"adder","version":"1","state":"READY","reason":""}])");
  CHECK(request(service.port, "POST", "/v2/repository/models/adder/unload", "{}").status == 503);
  CHECK(request(service.port, "POST", "/v2/repository/models/other/load", "{}").status == 404);
}

TEST_CASE("a service named stats has its metadata at its path") {
  ServiceOptions options;
  options.name = "stats";
  Service service(options);
  int port = service.port;
  CHECK_THAT(request(port, "GET", "/v2/models/stats").body, Contains(R"({"name":"stats",)"));
  CHECK_THAT(request(port, "GET", "/v2/models/stats/stats").body, Contains(R"("model_stats":)"));
}
