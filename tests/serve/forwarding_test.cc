// The front of a service whose replicas are HTTP servers, all of which the test plays.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <future>
#include <list>
#include <mutex>
#include <thread>

#include "engine/front/front.hpp"
#include "engine/front/front_messages.hpp"
#include "engine/process/listening_socket.hpp"
#include "engine/serve/http/http_upload.hpp"
#include "upstream_socket.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr int32_t kNoProcess = 1 << 30;  // beyond the ids of Linux

class ServerReplica final : public FrontReplica {
 public:
  void joined(const std::string& joined_url) override { url = joined_url; }
  void start(uint64_t, const std::vector<const Tensors*>&,
             const std::vector<BatchedRequest>&) override {
    batches++;
  }
  void release() override { released_.set_value(); }
  void log(const std::string& line) override { lines.push_back(line); }
  void wait_released() { release_.wait(); }
  bool is_released() {
    return release_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  UpstreamSocket upstream;
  uint64_t socket = 0;  // that the front gets in the description
  std::string url;
  std::vector<std::string> lines;  // for its log
  int batches = 0;

 private:
  std::promise<void> released_;
  std::future<void> release_ = released_.get_future();
};

uint64_t socket_at(uint16_t port) {
  auto found = listening_socket(port);
  REQUIRE((found.ok() && *found));
  return (*found)->cookie;
}

class ForwardedService {
 public:
  explicit ForwardedService(ServiceOptions options = {}, int replicas = 1)
      : options_(std::move(options)) {
    options_.name = "web";
    options_.forwards = true;
    options_.limits.silence_ms = 0;
    auto started = Front::start(loop_, {.log =
                                            [this](const std::string& line) {
                                              std::lock_guard lock(mutex_);
                                              logged_.push_back(line);
                                            },
                                        .ended = [this] { ended_.set_value(); }});
    REQUIRE(started.ok());
    front_ = std::move(*started);
    for (int i = 0; i < replicas; i++) add();
  }
  ~ForwardedService() {
    // Ends what a test has left waiting.
    for (ServerReplica& each : replicas_) each.upstream.close();
    loop_.run([&] { front_->begin_drain({}); });
    ended_.get_future().wait();
    loop_.stop();
  }

  ServerReplica& add(const std::string& version = "r1", bool tells_socket = false) {
    ServerReplica& replica = replicas_.emplace_back();
    if (tells_socket) replica.socket = socket_at(replica.upstream.port);
    Status joined = join(replica, version, options_);
    INFO((joined.ok() ? "" : joined.error().message));
    REQUIRE(joined.ok());
    port = port_of(replica.url);
    return replica;
  }
  /// One of a version with other options.
  ServerReplica& add_with(ServiceOptions options, const std::string& version) {
    options.name = options_.name;
    options.forwards = true;
    ServerReplica& replica = replicas_.emplace_back();
    REQUIRE(join(replica, version, options).ok());
    return replica;
  }
  /// One of another machine, to which `connect` makes connections.
  ServerReplica& add_remote(
      const std::function<void(ServerReplica&, HttpProxy::Connected)>& connect) {
    ServerReplica& replica = replicas_.emplace_back();
    auto described = description(replica);
    described.connect = [&replica, connect](HttpProxy::Connected done) {
      connect(replica, std::move(done));
    };
    Status joined;
    loop_.run([&] { joined = front_->join(replica, {"r1", described, options_}); });
    REQUIRE(joined.ok());
    port = port_of(replica.url);
    return replica;
  }
  Status join(ServerReplica& replica, const std::string& version, const ServiceOptions& options) {
    Status joined;
    loop_.run([&] { joined = front_->join(replica, {version, description(replica), options}); });
    return joined;
  }
  /// As its executor, when the server listens with another socket.
  void renew(ServerReplica& replica) {
    loop_.run([&] { front_->renew(replica, {"r1", description(replica), options_}); });
  }
  /// As its executor, when the server's process has ended.
  void remove(ServerReplica& replica) {
    loop_.run([&] { front_->remove(replica); });
  }
  void leave(ServerReplica& replica, int64_t grace_ms = 3'600'000) {
    loop_.run([&] { front_->leave(replica, std::chrono::milliseconds(grace_ms)); });
  }
  void set_weights(const TrafficWeights& weights) {
    loop_.run([&] { REQUIRE(front_->set_traffic(weights, "").ok()); });
  }
  front::VersionStatus status(int version = 0) {
    front::Status status;
    loop_.run([&] { status = status_of(*front_); });
    REQUIRE(version < status.versions_size());
    return status.versions(version);
  }
  /// Until the first version has so many requests that wait, at servers, and that are answered.
  void wait_for(uint64_t queued, uint64_t running, uint64_t requests) {
    while (true) {
      auto now = status();
      if (now.queued() == queued && now.running() == running && now.requests() == requests) return;
      std::this_thread::yield();
    }
  }
  std::vector<std::string> logged() {
    std::lock_guard lock(mutex_);
    return logged_;
  }
  ServerReplica& replica(size_t index = 0) {
    return *std::next(replicas_.begin(), static_cast<long>(index));
  }
  HttpPeer client() const { return HttpPeer(connect_to(port)); }
  HttpPeer ask(const std::string& path = "/", const std::string& fields = "",
               const std::string& method = "GET") const {
    HttpPeer peer = client();
    peer.send(method + " " + path + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
    return peer;
  }

  int port = 0;

 private:
  static FrontReplica::Description description(const ServerReplica& replica) {
    return {"web[0]", kNoProcess, "", "", replica.upstream.port, replica.socket, {}};
  }

  ServiceOptions options_;
  std::mutex mutex_;
  std::vector<std::string> logged_;
  std::promise<void> ended_;
  EventLoop loop_{"flow-http", {}};
  std::list<ServerReplica> replicas_;
  std::unique_ptr<Front> front_;
};

const std::string kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const std::string kPost = "Content-Length: 0\r\n";

ServiceOptions service_options(bool is_idempotent) {
  ServiceOptions options;
  options.is_idempotent = is_idempotent;
  return options;
}

}  // namespace

TEST_CASE("a forwarded service gets every path and method but the paths of its front") {
  ForwardedService service;
  HttpPeer client = service.client();
  std::optional<HttpPeer> server;
  for (const char* path : {"/", "/v2/health/ready", "/metrics", "/v1/chat?a=%20b", "/flow/other"}) {
    client.send(
        fmt::format("PATCH {} HTTP/1.1\r\nHost: a\r\nX-Own: 1\r\nContent-Length: 4\r\n\r\n"
                    "body",
                    path));
    if (!server) server.emplace(service.replica().upstream.accept());
    std::string head = server->head();
    CHECK_THAT(head, StartsWith(fmt::format("PATCH {} HTTP/1.1\r\n", path)));
    CHECK_THAT(head, Contains("\r\nX-Own: 1\r\n"));
    CHECK(server->read(4) == "body");
    server->send("HTTP/1.1 207 Odd\r\nX-Theirs: 2\r\nContent-Length: 2\r\n\r\nok");
    CHECK_THAT(client.head(), StartsWith("HTTP/1.1 207 ") && Contains("\r\nX-Theirs: 2\r\n"));
    CHECK(client.read(2) == "ok");
  }
  CHECK(request(service.port, "GET", "/flow/live").body == R"({"live":true})");
  CHECK(request(service.port, "GET", "/flow/ready").body == R"({"ready":true})");
  Reply metrics = request(service.port, "GET", "/flow/metrics");
  CHECK_THAT(metrics.body, Contains("requests_total{model=\"web\",version=\"r1\",code=\"207\"} 5"));
  Reply refused = request(service.port, "POST", "/flow/live");
  CHECK(refused.status == 405);
  CHECK_THAT(refused.headers, Contains("Allow: GET, HEAD"));
}

TEST_CASE("a forwarded response reaches the client in its parts, and counts when it has ended") {
  ForwardedService service;
  HttpPeer client = service.ask();
  HttpPeer server = service.replica().upstream.accept();
  server.head();
  server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.head();
  for (const char* part : {"3\r\none\r\n", "3\r\ntwo\r\n"}) {
    server.send(part);
    CHECK(client.until(part) == part);
    CHECK(service.status().requests() == 0);
  }
  CHECK(service.status().replicas(0).is_busy());
  server.send("0\r\n\r\n");
  CHECK(client.until("0\r\n\r\n") == "0\r\n\r\n");
  service.wait_for(0, 0, 1);
  CHECK(service.status().replicas(0).batches() == 1);
}

TEST_CASE("a broken response of a forwarded service is an error, and logged") {
  ForwardedService service;
  HttpPeer client = service.ask();
  HttpPeer server = service.replica().upstream.accept();
  server.head();
  server.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
  client.head();
  server.close();
  CHECK(client.rest() == "half");
  service.wait_for(0, 0, 1);
  CHECK(service.status().errors() == 1);
  REQUIRE(service.logged().size() == 1);
  CHECK_THAT(service.logged()[0], StartsWith("request failed: the response of the program"));
}

TEST_CASE("the server with the fewest requests gets the next one") {
  ForwardedService service({}, 2);
  ServerReplica &one = service.replica(0), &two = service.replica(1);
  HttpPeer first = service.ask("/1");
  HttpPeer at_one = one.upstream.accept();
  HttpPeer second = service.ask("/2");
  HttpPeer at_two = two.upstream.accept();
  at_two.head();
  at_two.send(kAnswer);
  second.head();
  service.wait_for(0, 1, 1);
  HttpPeer third = service.ask("/3");  // on the connection that is kept
  CHECK_THAT(at_two.head(), StartsWith("GET /3 "));
}

TEST_CASE("a server that dies loses no request that may run again") {
  bool is_idempotent = GENERATE(false, true);
  ForwardedService service(service_options(is_idempotent), 2);
  HttpPeer client = is_idempotent ? service.ask("/", kPost, "POST") : service.ask();
  service.replica(0).upstream.accept().close();
  HttpPeer server = service.replica(1).upstream.accept();
  server.head();
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
  service.wait_for(0, 0, 1);
  CHECK(service.logged().empty());
}

TEST_CASE("a POST that may not run again is a 502 after its server's death, a 503 after its end") {
  const bool is_stopped = GENERATE(false, true);
  ForwardedService service(service_options(false), 2);
  HttpPeer client = service.ask("/", kPost, "POST");
  HttpPeer server = service.replica(0).upstream.accept();
  server.head();
  if (is_stopped) service.leave(service.replica(0));
  server.close();
  std::string head = client.head();
  CHECK_THAT(head, StartsWith(is_stopped ? "HTTP/1.1 503 " : "HTTP/1.1 502 "));
  CHECK((head.find("Retry-After: ") != std::string::npos) == is_stopped);
  CHECK_THAT(client.until("`idempotent`"), Contains("a POST is not repeated"));
  if (is_stopped) client.until("the server was stopped at the end of the `--grace` of its run");
  REQUIRE(service.logged().size() == 1);
  CHECK(service.status().errors() == 1);
}

TEST_CASE("a request after which servers die three times is a 502") {
  ForwardedService service;
  HttpPeer client = service.ask();
  for (int i = 0; i < 3; i++) service.replica().upstream.accept().close();
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 502 "));
  CHECK_THAT(client.until("}"), Contains("ended the connection 3 times"));
}

TEST_CASE("without a server a request waits for the next one, or for its deadline") {
  ForwardedService service;
  // Nothing listens, although the replica is still there.
  service.replica().upstream.close();
  HttpPeer client = service.ask("/", kPost, "POST");
  while (service.status().queued() != 1) std::this_thread::yield();
  CHECK(request(service.port, "GET", "/flow/ready").status == 503);
  HttpPeer late = service.ask("/", "X-Request-Timeout: 20ms\r\n");
  CHECK_THAT(late.head(), StartsWith("HTTP/1.1 504 "));
  service.remove(service.replica());
  service.wait_for(1, 0, 1);
  HttpPeer server = service.add().upstream.accept();
  server.head();
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("what breaks with the last server is in the log of the next one") {
  ForwardedService service;
  HttpPeer client = service.ask();
  HttpPeer server = service.replica().upstream.accept();
  server.head();
  server.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab");
  client.until("ab");
  service.remove(service.replica());
  CHECK(service.replica().lines.empty());
  server.close();
  client.rest();
  service.wait_for(0, 0, 1);
  ServerReplica& next = service.add();
  REQUIRE(next.lines.size() == 1);
  CHECK_THAT(next.lines[0], StartsWith("request failed: the response of the program"));
}

TEST_CASE("another process at the port of a server gets no request") {
  ForwardedService service({}, 0);
  ServerReplica& replica = service.add("r1", true);
  HttpPeer client = service.ask("/", kPost, "POST");
  {
    HttpPeer server = replica.upstream.accept();
    server.head();
    server.send(kAnswer);
    CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
    client.read(2);
  }
  replica.upstream.listen_again();
  client.send("POST /secret HTTP/1.1\r\nHost: a\r\n" + kPost + "\r\n");
  CHECK(replica.upstream.accept().rest().empty());
  service.wait_for(1, 0, 1);
  REQUIRE_FALSE(service.logged().empty());
  CHECK_THAT(service.logged().front(),
             Contains(fmt::format("a process of user {} listens at 127.0.0.1:{}, the port of the "
                                  "server of `web[0]`: no request is sent there",
                                  ::geteuid(), replica.upstream.port)));
  // It was the server after all.
  replica.socket = socket_at(replica.upstream.port);
  service.renew(replica);
  std::string head;
  while (head.empty()) {
    HttpPeer server = replica.upstream.accept();  // some were closed before
    head = server.head();
    server.send(kAnswer);
  }
  CHECK_THAT(head, StartsWith("POST /secret "));
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("WebSocket is refused, and another upgrade is not made") {
  ForwardedService service;
  auto ask = [&](const std::string& fields) {
    return service.ask("/chat", "Connection: keep-alive, Upgrade\r\n" + fields);
  };
  for (const char* upgrade :
       {"Upgrade: WebSocket\r\n", "Upgrade: websocket/13\r\n",
        "Upgrade: h2c, WebSocket/13, x/1\r\n", "Upgrade: h2c\r\nUpgrade: websocket\r\n"}) {
    INFO(upgrade);
    HttpPeer refused = ask(upgrade + std::string("Sec-WebSocket-Version: 13\r\n"));
    CHECK_THAT(refused.head(), StartsWith("HTTP/1.1 501 "));
    CHECK_THAT(refused.until("}"), Contains("WebSocket is not forwarded"));
  }
  HttpPeer client = ask("Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n");
  HttpPeer server = service.replica().upstream.accept();
  CHECK_THAT(server.head(), !Contains("Upgrade"));
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a forwarded request has until its deadline for the head of its response") {
  ForwardedService service;
  HttpPeer client = service.ask("/", "X-Request-Timeout: 20ms\r\n");
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 504 "));
  HttpPeer malformed = service.ask("/", "X-Request-Timeout: soon\r\n");
  CHECK_THAT(malformed.head(), StartsWith("HTTP/1.1 400 "));
  service.wait_for(0, 0, 1);
  CHECK(service.status().errors() == 1);
}

TEST_CASE("a forwarded service has at most `queue` requests at once for each of its servers") {
  ServiceOptions options;
  options.queue = 2;
  ForwardedService service(options);
  HttpPeer one = service.ask(), two = service.ask();
  service.wait_for(0, 2, 0);
  // Before its body, if it waits for `100 Continue`.
  HttpPeer patient = service.ask("/", "Expect: 100-continue\r\nContent-Length: 4\r\n");
  CHECK_THAT(patient.head(), StartsWith("HTTP/1.1 429 "));
  HttpPeer client = service.ask();
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 429 "));
  CHECK_THAT(client.until("}"),
             Contains("`web` has 2 requests, as many as its `queue` of 2 for each server permits"));
  ServerReplica& second = service.add();
  HttpPeer three = service.ask(), four = service.ask();
  service.wait_for(0, 4, 0);
  HttpPeer other = service.ask();
  CHECK_THAT(other.head(), StartsWith("HTTP/1.1 429 "));
  CHECK_THAT(other.until("}"), Contains("`web` has 4 requests"));
  service.leave(second);  // it takes no more
  HttpPeer last = service.ask();
  CHECK_THAT(last.head(), StartsWith("HTTP/1.1 429 "));
  CHECK_THAT(last.until("}"), Contains("`web` has 2 requests"));
}

TEST_CASE("a server of another machine that cannot be reached has not died") {
  ForwardedService service({}, 0);
  std::atomic<int> refused = 0;
  std::atomic<bool> is_reachable = false;
  ServerReplica& remote = service.add_remote([&](ServerReplica& self, HttpProxy::Connected done) {
    if (is_reachable) return done(connect_to(self.upstream.port));
    refused++;
    done(environment_error("its worker does not answer"));
  });
  // Not idempotent: a request that a server may have got would not be sent again.
  HttpPeer client = service.ask("/", "Content-Length: 2\r\n", "POST");
  client.send("hi");
  while (refused < 3) std::this_thread::yield();
  CHECK(service.status().requests() == 0);
  is_reachable = true;
  HttpPeer server = remote.upstream.accept();
  server.until("\r\n\r\nhi");
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a body is sent to a server while it arrives, through a drain to its end") {
  const size_t size = 2 * HttpUpload::kKeptMax;
  const std::string begin(HttpUpload::kKeptMax, 'a'), end(size - begin.size(), 'b');
  ForwardedService service;
  HttpPeer client = service.ask("/", fmt::format("Content-Length: {}\r\n", size), "PUT");
  client.send(begin);
  HttpPeer server = service.replica().upstream.accept();
  CHECK_THAT(server.head(), Contains(fmt::format("Content-Length: {}\r\n", size)));
  CHECK((server.read(begin.size()) == begin));
  service.leave(service.replica());
  client.send(end);
  CHECK((server.read(end.size()) == end));
  CHECK_FALSE(service.replica().is_released());
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
  service.replica().wait_released();
}

TEST_CASE("a request whose large body was sent is not repeated, a small one is") {
  ForwardedService service(service_options(true));
  const std::string chunk = "4\r\nbody\r\n";
  HttpPeer small = service.ask("/", "Transfer-Encoding: chunked\r\n", "POST");
  small.send(chunk);
  {
    HttpPeer server = service.replica().upstream.accept();
    server.until(chunk);
  }  // it dies
  HttpPeer again = service.replica().upstream.accept();
  CHECK_THAT(again.until(chunk), StartsWith("POST / ") && Contains("Transfer-Encoding: chunked"));
  small.send("0\r\n\r\n");
  CHECK(again.until("0\r\n\r\n") == "0\r\n\r\n");
  again.send(kAnswer);
  CHECK_THAT(small.head(), StartsWith("HTTP/1.1 200 "));

  const size_t size = 2 * HttpUpload::kKeptMax;
  HttpPeer large = service.ask("/", fmt::format("Content-Length: {}\r\n", size), "POST");
  large.send(std::string(size - 1, 'a'));
  {
    HttpPeer server = service.replica().upstream.accept();
    server.head();
    server.read(size - 1);
  }
  CHECK_THAT(large.head(), StartsWith("HTTP/1.1 502 ") && Contains("Connection: close"));
  CHECK_THAT(large.until("}"), Contains("is not repeated, because its body was sent already"));
}

TEST_CASE("a client whose body stops or breaks while it waits for a server is answered") {
  ServiceOptions options;
  ForwardedService patient(options);
  options.limits.body_ms = 20;
  ForwardedService service(options);
  for (ForwardedService* each : {&patient, &service})
    each->replica().upstream.close();  // unreachable
  HttpPeer broken = patient.ask("/", "Transfer-Encoding: chunked\r\n", "POST");
  broken.send("x\r\n");
  CHECK_THAT(broken.head(), StartsWith("HTTP/1.1 400 "));
  HttpPeer silent = service.ask("/", "Transfer-Encoding: chunked\r\n", "POST");
  silent.send("4\r\nbo");
  CHECK_THAT(silent.head(), StartsWith("HTTP/1.1 408 "));
}

TEST_CASE("requests that a full service or a full server refuses count apart") {
  ServiceOptions options;
  options.queue = 1;
  ForwardedService service(options);
  HttpPeer first = service.ask();
  service.wait_for(0, 1, 0);
  HttpPeer second = service.ask();
  CHECK_THAT(second.head(), StartsWith("HTTP/1.1 429 "));
  HttpPeer server = service.replica().upstream.accept();
  server.send("HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n");
  service.wait_for(0, 0, 0);
  front::VersionStatus status = service.status();
  CHECK(status.refused() == 2);
  CHECK(status.rejected() == 2);
  CHECK(status.errors() == 0);
  CHECK(status.p99_us() == 0);
}

TEST_CASE("a forwarded service asks for keys, but not for its health") {
  ServiceOptions options;
  options.keys = {"secret"};
  ForwardedService service(options);
  CHECK(request(service.port, "GET", "/v2/health/live").status == 401);
  CHECK(request(service.port, "GET", "/flow/metrics").status == 401);
  CHECK(request(service.port, "GET", "/flow/live").status == 200);
  // Its own paths take no body, which a client without a key could send.
  for (const char* path : {"/flow/live", "/flow/ready", "/flow/metrics"})
    for (const char* method : {"POST", "PUT", "DELETE", "GET", "HEAD"}) {
      INFO(method << " " << path);
      std::string head = service.ask(path, "Content-Length: 1000000\r\n", method).head();
      if (method == std::string("GET") || method == std::string("HEAD"))
        CHECK_THAT(head, StartsWith("HTTP/1.1 4"));
      else
        CHECK_THAT(head, StartsWith("HTTP/1.1 405 ") && Contains("\r\nAllow: GET, HEAD\r\n"));
    }
  CHECK(request(service.port, "GET", "/flow/ready").status == 200);
  HttpPeer client = service.ask("/", "Authorization: Bearer secret\r\n");
  HttpPeer server = service.replica().upstream.accept();
  const std::string head = server.head();
  CHECK_THAT(head, StartsWith("GET / "));
  CHECK_THAT(head, !Contains("secret"));
}

TEST_CASE("the key of one version does not reach the server of another") {
  ServiceOptions options;
  options.keys = {"secret"};
  ForwardedService service(options);
  service.set_weights({{"r1", 51}, {"r2", 49}});
  ServerReplica& second = service.add_with({}, "r2");
  std::optional<HttpPeer> first_server, second_server;
  std::vector<HttpPeer> clients;
  for (int i = 0; i < 2; i++)
    clients.push_back(service.ask("/", "Authorization: Bearer secret\r\n"));
  first_server.emplace(service.replica().upstream.accept());
  second_server.emplace(second.upstream.accept());
  CHECK_THAT(first_server->head(), !Contains("secret"));
  CHECK_THAT(second_server->head(), !Contains("secret"));
}

TEST_CASE("a server that leaves gets no request, and is released after its last one") {
  ForwardedService service;
  HttpPeer client = service.ask();
  HttpPeer server = service.replica(0).upstream.accept();
  server.head();
  service.add();
  service.leave(service.replica(0));
  for (int i = 0; i < 2; i++) {
    HttpPeer other = service.ask();
    HttpPeer at_other = service.replica(1).upstream.accept();
    at_other.head();
    at_other.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    CHECK_THAT(other.head(), StartsWith("HTTP/1.1 200 "));
  }
  CHECK_FALSE(service.replica(0).is_released());
  server.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
  service.replica(0).wait_released();
}

TEST_CASE("the last server is released when its streams have ended") {
  ForwardedService service;
  HttpPeer client = service.ask();
  HttpPeer server = service.replica().upstream.accept();
  server.head();
  server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.head();
  service.leave(service.replica());
  server.send("1\r\na\r\n");
  CHECK(client.until("1\r\na\r\n") == "1\r\na\r\n");
  CHECK_FALSE(service.replica().is_released());
  server.send("0\r\n\r\n");
  CHECK(client.rest() == "0\r\n\r\n");
  service.replica().wait_released();
}

TEST_CASE(
    "forwarded requests follow the weights of versions, and a version ends with its streams") {
  ForwardedService service;
  service.add("r2");
  HttpPeer client = service.ask();
  HttpPeer old = service.replica(0).upstream.accept();
  old.head();
  service.set_weights({{"r2", 100}});
  HttpPeer other = service.ask("/new");
  HttpPeer at_new = service.replica(1).upstream.accept();
  CHECK_THAT(at_new.head(), StartsWith("GET /new "));
  service.leave(service.replica(0));
  CHECK_FALSE(service.replica(0).is_released());
  old.send(kAnswer);
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
  service.replica(0).wait_released();
  CHECK(service.status().version() == "r2");
}

TEST_CASE("requests at a server that is killed at the end of its version's grace are answered") {
  const bool is_repeatable = GENERATE(true, false);
  ForwardedService service(service_options(false));
  service.add("r2");
  HttpPeer client = is_repeatable ? service.ask() : service.ask("/", kPost, "POST");
  HttpPeer old = service.replica(0).upstream.accept();
  old.head();
  service.set_weights({{"r2", 100}});
  service.leave(service.replica(0), 0);
  service.replica(0).wait_released();
  CHECK(service.status().version() == "r2");
  old.close();
  if (is_repeatable) {
    HttpPeer next = service.replica(1).upstream.accept();
    next.head();
    next.send(kAnswer);
    CHECK_THAT(client.head(), StartsWith("HTTP/1.1 200 "));
    service.wait_for(0, 0, 1);  // counted by the version that has answered it
    return;
  }
  CHECK_THAT(client.head(), StartsWith("HTTP/1.1 503 ") && Contains("Retry-After: "));
  client.until("the server was stopped at the end of the `--grace` of its run");
  CHECK_THAT(service.logged().back(), Contains("a POST is not repeated"));
}

TEST_CASE("a front does not mix servers and functions") {
  ForwardedService service;
  ServerReplica replica;
  ServiceOptions options;
  options.name = "web";
  Status joined = service.join(replica, "r2", options);
  REQUIRE_FALSE(joined.ok());
  CHECK_THAT(joined.error().message,
             StartsWith("the service `web` answers requests with a function, and the version that "
                        "serves at http://127.0.0.1:") &&
                 Contains("with the server of a `command`: give the service another name"));
}

TEST_CASE("the join of a server names its port of loopback") {
  front::Join join;
  join.set_version("r1");
  join.set_model("web");
  join.set_wraps_server(true);
  for (const char* server : {"", "127.0.0.1", "127.0.0.1:0", "10.0.0.1:80", "127.0.0.1:99999"}) {
    join.set_server(server);
    auto request = join_request_of(join);
    REQUIRE_FALSE(request.ok());
    CHECK_THAT(request.error().message, Contains("its server has no address such as"));
  }
  join.set_server("127.0.0.1:8080");
  auto request = join_request_of(join);
  REQUIRE(request.ok());
  CHECK(request->replica.server == 8080);
  CHECK(request->options.forwards);
}

TEST_CASE("a forwarded request keeps a valid trace, and loses one that is malformed") {
  ForwardedService service;
  const std::string valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  HttpPeer client = service.ask("/a", "traceparent: " + valid + "\r\ntracestate: a=1\r\n");
  HttpPeer server = service.replica().upstream.accept();
  CHECK_THAT(server.head(), Contains("\r\ntraceparent: " + valid + "\r\ntracestate: a=1\r\n"));
  server.send(kAnswer);
  client.until("ok");
  for (const std::string& fields : std::vector<std::string>{
           "traceparent: 00-nonsense\r\ntracestate: a=1\r\n",
           "Traceparent: " + valid + "\r\nTraceparent: " + valid + "\r\ntracestate: a=1\r\n"}) {
    client.send("GET /b HTTP/1.1\r\nHost: a\r\n" + std::string(fields) + "\r\n");
    std::string head = server.head();
    CHECK_THAT(head, StartsWith("GET /b ") && !Contains("raceparent") && !Contains("tracestate"));
    server.send(kAnswer);
    client.until("ok");
  }
}
