// Responses in parts over real sockets: their framing, the pace of their clients, and their ends.
#include <catch2/catch.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/serve/http/http_server.hpp"
#include "tests/serve/http_peer.hpp"
#include "tests/serve/tls_client.hpp"

using namespace flow;
using Catch::Contains;

namespace {

constexpr int64_t kLong = 3'600'000;  // ms
const std::string kAsk = "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
const std::string kEventHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

HttpLimits stream_limits() {
  HttpLimits limits;
  limits.idle_ms = limits.head_ms = limits.body_ms = limits.write_ms = kLong;
  limits.silence_ms = limits.half_closed_ms = kLong;
  return limits;
}

std::string_view stream_methods(std::string_view path) {
  return path == "/hold" || path == "/at_once" ? "GET, HEAD" : "";
}

/// Holds the replies of /hold; streams "one" and "two" as the answer to /at_once.
class StreamServer {
 public:
  explicit StreamServer(const HttpLimits& limits = stream_limits(),
                        std::optional<TlsFiles> tls = {}) {
    HttpOptions options{.name = "stream", .tls = std::move(tls), .limits = limits};
    options.rules.methods = stream_methods;
    auto opened = HttpServer::open(options, [this](HttpRequest request, HttpReply reply) {
      if (request.path == "/at_once") {
        reply.begin({.content_type = "text/plain"});
        CHECK(reply.write("one"));
        CHECK(reply.write("two"));
        return reply.end();
      }
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(reply));
      changed_.notify_all();
    });
    REQUIRE(opened.ok());
    server = std::move(*opened);
  }
  HttpPeer client() const { return HttpPeer(connect_to(server->port())); }
  HttpReply take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_.empty(); });
    HttpReply reply = std::move(held_.back());
    held_.pop_back();
    return reply;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpReply> held_;

 public:
  std::unique_ptr<HttpServer> server;  // last: its thread uses the others
};

/// Something that happens, and is waited for.
class Signal {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_set_; });
    is_set_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

}  // namespace

TEST_CASE("each event of a stream reaches its client before the next one is written") {
  StreamServer server;
  HttpPeer client = server.client();
  client.send(kAsk);
  HttpReply reply = server.take();
  reply.begin({.content_type = "text/event-stream"});
  CHECK(client.head() == kEventHead);
  for (int i = 0; i < 3; i++) {
    CHECK(reply.write("data: " + std::to_string(i) + "\n\n"));
    CHECK(client.until("\n\n\r\n") == "9\r\ndata: " + std::to_string(i) + "\n\n\r\n");
  }
  reply.end();
  CHECK(client.until("0\r\n\r\n") == "0\r\n\r\n");
  client.send(kAsk);  // the connection is kept
  server.take().send({.body = "next"});
  CHECK_THAT(client.until("next"), Contains("200 OK"));
}

TEST_CASE("a stream of known length has no chunks") {
  StreamServer server;
  HttpPeer client = server.client();
  client.send(kAsk);
  HttpReply reply = server.take();
  reply.begin({.status = 201, .fields = "X-A: b\r\n", .length = 6});
  reply.write("abc");
  reply.write("");
  reply.write("def");
  reply.end();
  CHECK(client.until("def") == "HTTP/1.1 201 Created\r\nContent-Length: 6\r\nX-A: b\r\n\r\nabcdef");
}

TEST_CASE("a client of HTTP/1.0 gets a stream without chunks, and the end of the connection") {
  StreamServer server;
  HttpPeer client = server.client();
  client.send("GET /at_once HTTP/1.0\r\n\r\n");
  CHECK(client.rest() ==
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nonetwo");
  CHECK_FALSE(client.is_reset());
}

TEST_CASE("pipelined requests for streams are answered in order") {
  StreamServer server;
  HttpPeer client = server.client();
  std::string at_once = "GET /at_once HTTP/1.1\r\nHost: a\r\n\r\n";
  client.send(at_once + kAsk + at_once);
  HttpReply reply = server.take();
  reply.begin({});
  reply.write("held");
  reply.end();
  std::string streamed = "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
  for (const std::string& body : {streamed, std::string("4\r\nheld\r\n0\r\n\r\n"), streamed}) {
    client.head();
    CHECK(client.read(body.size()) == body);
  }
}

TEST_CASE("responses to HEAD and those with status 204 and 304 have no body") {
  StreamServer server;
  HttpPeer client = server.client();
  auto response = [&](const std::string& method, HttpStreamHead head) {
    client.send(method + kAsk.substr(3));
    HttpReply reply = server.take();
    reply.begin(std::move(head));
    CHECK(reply.write("dropped"));
    reply.end();
    return client.head();
  };
  CHECK(response("HEAD", {}) == "HTTP/1.1 200 OK\r\n\r\n");
  CHECK(response("HEAD", {.length = 7}) == "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n");
  CHECK(response("GET", {.status = 204, .length = 0}) == "HTTP/1.1 204 No Content\r\n\r\n");
  CHECK(response("GET", {.status = 304, .length = 7}) ==
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n");
}

TEST_CASE("a stream that is aborted, or dropped, or too short ends without its end marker") {
  StreamServer server;
  auto streamed = [&](const std::string& request, std::optional<uint64_t> length, auto leave) {
    HttpPeer client = server.client();
    client.send(request);
    HttpReply reply = server.take();
    reply.begin({.length = length});
    reply.write("part");
    leave(std::move(reply));
    std::string head = client.head(), body = client.rest();
    return std::pair(body, client.is_reset());
  };
  auto abort = [](HttpReply reply) { reply.abort(); };
  auto drop = [](HttpReply) {};
  auto end = [](HttpReply reply) { reply.end(); };
  CHECK(streamed(kAsk, {}, abort) == std::pair(std::string("4\r\npart\r\n"), false));
  CHECK(streamed(kAsk, {}, drop) == std::pair(std::string("4\r\npart\r\n"), false));
  CHECK(streamed(kAsk, 5, end) == std::pair(std::string("part"), false));
  CHECK(streamed("GET /hold HTTP/1.0\r\n\r\n", {}, abort).second);
}

TEST_CASE("a writer must wait for its client, and learns when to continue") {
  StreamServer server;
  HttpPeer client = server.client();
  client.send(kAsk);
  HttpReply reply = server.take();
  Signal writable;
  reply.watch([&] { writable.set(); }, {});
  reply.begin({});
  std::string got;
  std::thread reader([&] {
    client.head();
    got = client.rest();
  });
  const std::string part(64 * 1024, 'x');
  constexpr size_t kParts = 500;
  size_t waits = 0;
  for (size_t i = 0; i < kParts; i++) {
    if (reply.write(part)) continue;
    waits++;
    writable.wait();
  }
  reply.abort();
  reader.join();
  CHECK(waits > 0);
  CHECK(got.size() == kParts * (part.size() + 9));
}

TEST_CASE("the owner of a stream learns that its client has left") {
  StreamServer server;
  auto leaves = [&](bool begins) {
    HttpPeer client = server.client();
    client.send(kAsk);
    HttpReply reply = server.take();
    auto left = std::make_shared<Signal>();  // the call may come after the end of this one
    reply.watch({}, [left] { left->set(); });
    if (begins) {
      reply.begin({});
      client.head();
    }
    CHECK_FALSE(reply.is_abandoned());
    client.close();
    // A client that has only ended its side would be answered: the next part shows that it has not.
    while (begins && !reply.is_abandoned() && reply.write("x")) std::this_thread::yield();
    if (begins) left->wait();
    reply.abort();
  };
  leaves(true);
  leaves(false);
}

TEST_CASE("a client that sends no more counts as gone after some time") {
  HttpLimits limits = stream_limits();
  limits.half_closed_ms = 0;
  StreamServer server(limits);
  HttpPeer client = server.client();
  client.send(kAsk);
  HttpReply reply = server.take();
  Signal left;
  reply.watch({}, [&] { left.set(); });
  reply.begin({});
  client.head();
  client.close();
  left.wait();
  CHECK(reply.is_abandoned());
}

TEST_CASE("a slow reader of a stream is closed, but not one that has read all there is") {
  HttpLimits limits = stream_limits();
  limits.write_ms = 0;
  StreamServer server(limits);
  HttpPeer good = server.client(), slow = server.client();
  good.send(kAsk);
  HttpReply good_reply = server.take();
  good_reply.begin({});
  good_reply.write("first");
  CHECK_THAT(good.until("first"), Contains("200 OK"));
  slow.send(kAsk);
  HttpReply slow_reply = server.take();
  Signal changed;
  slow_reply.watch([&] { changed.set(); }, [&] { changed.set(); });
  slow_reply.begin({});
  while (!slow_reply.is_abandoned())
    if (!slow_reply.write(std::string(64 * 1024, 'x'))) changed.wait();
  good_reply.write("second");
  good_reply.end();
  CHECK_THAT(good.until("0\r\n\r\n"), Contains("second"));
}

TEST_CASE("a drain waits for a stream") {
  StreamServer server;
  HttpPeer client = server.client(), late = server.client();
  client.send(kAsk);
  HttpReply reply = server.take();
  reply.begin({});
  client.head();
  server.server->begin_drain();
  late.send(kAsk);  // accepted before the drain
  HttpReply late_reply = server.take();
  late_reply.begin({});
  CHECK_THAT(late.head(), Contains("Connection: close"));
  late_reply.end();
  CHECK(late.rest() == "0\r\n\r\n");
  late.close();
  CHECK_FALSE(server.server->wait_drained(0));
  reply.write("last");
  reply.end();
  CHECK(client.until("0\r\n\r\n") == "4\r\nlast\r\n0\r\n\r\n");
  client.close();
  CHECK(server.server->wait_drained(kLong));
}

TEST_CASE("a stream may outlive the server") {
  HttpReply reply;
  Signal left;
  {
    StreamServer server;
    HttpPeer client = server.client();
    client.send(kAsk);
    reply = server.take();
    reply.watch({}, [&] { left.set(); });
    reply.begin({});
    client.head();
    server.server.reset();
    CHECK(client.rest().empty());
  }
  left.wait();
  CHECK_FALSE(reply.write("late"));
  reply.end();
}

TEST_CASE("a stream over TLS ends with a close_notify, unless it is aborted") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  Identity identity = new_identity({});
  TlsFiles files{**folder + "/server.pem", **folder + "/server.key"};
  REQUIRE(write_file_atomic(files.certificate, certificate_pem(identity)).ok());
  REQUIRE(write_file_atomic(files.key, key_pem(identity)).ok());
  StreamServer server(stream_limits(), files);
  for (bool aborts : {false, true}) {
    auto settings = TlsClient::settings_of({});
    std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(settings.get()), SSL_free);
    int socket = connect_to(server.server->port());
    SSL_set_fd(session.get(), socket);
    REQUIRE(SSL_connect(session.get()) == 1);
    std::string ask = "GET /hold HTTP/1.0\r\n\r\n";
    REQUIRE(SSL_write(session.get(), ask.data(), static_cast<int>(ask.size())) > 0);
    HttpReply reply = server.take();
    reply.begin({.content_type = "text/plain"});
    reply.write("one");
    if (aborts)
      reply.abort();
    else
      reply.end();
    std::string all(1000, 0);
    size_t at = 0, more = 0;
    while (SSL_read_ex(session.get(), all.data() + at, all.size() - at, &more) == 1) at += more;
    CHECK((SSL_get_shutdown(session.get()) == SSL_RECEIVED_SHUTDOWN) == !aborts);
    if (!aborts) CHECK(all.substr(0, at).ends_with("\r\n\r\none"));
    ::close(socket);
  }
}
