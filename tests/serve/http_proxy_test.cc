// Requests to a server that forwards them to an upstream, both ends of which the test plays.
#include "engine/serve/http/http_proxy.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "engine/serve/http/http_upload.hpp"
#include "tests/serve/upstream_socket.hpp"

using namespace flow;
using Catch::Contains;
using Kind = ProxyOutcome::Kind;

namespace {

constexpr int64_t kForever = 3'600'000;  // ms

HttpLimits no_limits() {
  HttpLimits limits;
  limits.idle_ms = limits.head_ms = limits.body_ms = limits.write_ms = kForever;
  limits.silence_ms = limits.half_closed_ms = kForever;
  return limits;
}

struct ProxyTestOptions {
  HttpLimits limits = no_limits();
  ProxyLimits proxy = {.connect_ms = kForever, .kept_ms = kForever};
  int64_t timeout_ms = kForever;
  bool is_repeatable = false;
  HttpProxy::Check check = {};
  std::optional<uint64_t> streamed_above = {};
  HttpProxy::Connect connect = {};  // instead of the port of the upstream
};

ProxyTestOptions streaming() {
  ProxyTestOptions options;
  options.streamed_above = 8;
  return options;
}

/// Forwards all requests. Those that remain unanswered get 502.
class ProxyServer {
 public:
  explicit ProxyServer(const ProxyTestOptions& test = {}) {
    HttpOptions options{.name = "proxy", .limits = test.limits};
    options.rules = {.methods = [](std::string_view) { return kAnyMethod; },
                     .keeps_fields = true,
                     .streamed_above = test.streamed_above};
    auto opened = HttpServer::open(options, [this, test](HttpRequest request, HttpReply reply) {
      upload_ = request.upload;
      auto patience = std::chrono::milliseconds(test.timeout_ms);
      auto deadline = std::chrono::steady_clock::now();
      if (request.path != "/late") deadline += patience;
      proxy_->forward(
          {std::move(request), std::move(reply), deadline, test.is_repeatable, patience},
          [this](ProxyOutcome outcome, ProxiedRequest proxied) {
            if (outcome.kind == Kind::unreachable || outcome.kind == Kind::died)
              proxied.reply.send(error_response(502, "no answer"));
            std::lock_guard lock(mutex_);
            outcomes_.push_back(std::move(outcome));
            changed_.notify_all();
          });
    });
    REQUIRE(opened.ok());
    server = std::move(*opened);
    if (test.connect)
      proxy_ = std::make_unique<HttpProxy>(server->context(), test.connect, test.proxy);
    else
      proxy_ =
          std::make_unique<HttpProxy>(server->context(), upstream.port, test.proxy, test.check);
  }
  ~ProxyServer() { proxy_.reset(); }

  HttpPeer client() const { return HttpPeer(connect_to(server->port())); }
  /// The next outcome.
  ProxyOutcome outcome() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !outcomes_.empty(); });
    ProxyOutcome outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
    return outcome;
  }
  Kind kind() { return outcome().kind; }
  /// What `call` returns of the last upload, on the server's thread.
  bool ask_upload(const std::function<bool(HttpUpload&)>& call) {
    std::promise<bool> answer;
    boost::asio::post(server->context(), [&] { answer.set_value(upload_ && call(*upload_)); });
    return answer.get_future().get();
  }
  void wait_upload(const std::function<bool(HttpUpload&)>& call) {
    while (!ask_upload(call)) std::this_thread::yield();
  }

  UpstreamSocket upstream;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ProxyOutcome> outcomes_;
  std::unique_ptr<HttpProxy> proxy_;
  std::shared_ptr<HttpUpload> upload_;  // of the last request

 public:
  std::unique_ptr<HttpServer> server;  // last: its thread uses the others
};

const std::string kPutChunks = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string get_text(const std::string& path = "/", const std::string& fields = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}

std::string ok_text(const std::string& body, const std::string& fields = "") {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n{}", body.size(), fields,
                     body);
}

}  // namespace

TEST_CASE("a request is forwarded unchanged but for the fields of its connection") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(
      "POST /a%20b/../c?x=1&y HTTP/1.1\r\nHost: a:81\r\nX-One: 1\r\nTE: trailers\r\n"
      "Connection: keep-alive, X-Hop, Host\r\nX-Hop: 2\r\nKeep-Alive: timeout=5\r\n"
      "Upgrade: websocket\r\nProxy-Authorization: x\r\nTransfer-Encoding: chunked\r\n"
      "X_Forwarded_For: 6.6.6.6\r\nx-forwarded_proto: https\r\nProxy: http://evil\r\n"
      "traceparent: 00-1-2-01\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n"
      "Content-Encoding: br\r\nInference-Header-Content-Length: 99\r\nx-one: 3\r\n"
      "Expect: 100-continue\r\nAuthorization: Bearer k\r\n\r\n");
  CHECK(client.head() == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  HttpPeer upstream = server.upstream.accept();
  CHECK(upstream.until("abcdefg") ==
        "POST /a%20b/../c?x=1&y HTTP/1.1\r\nHost: a:81\r\nX-One: 1\r\ntraceparent: 00-1-2-01\r\n"
        "Content-Encoding: br\r\nInference-Header-Content-Length: 99\r\nx-one: 3\r\n"
        "Authorization: Bearer k\r\nX-Forwarded-For: 1.2.3.4, 127.0.0.1\r\n"
        "X-Forwarded-Proto: http\r\nContent-Length: 7\r\n\r\nabcdefg");
  upstream.send(ok_text("ok", "Server: s\r\nConnection: X-Hop\r\nX-Hop: 1\r\nETag: e\r\n"));
  CHECK(client.until("\r\n\r\nok") ==
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: s\r\nETag: e\r\n\r\nok");
  ProxyOutcome outcome = server.outcome();
  CHECK(outcome.kind == Kind::responded);
  CHECK(outcome.status == 200);
}

TEST_CASE("any method is forwarded, with a body or without") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send("PURGE /x HTTP/1.1\r\nHost: a\r\n\r\n");
  HttpPeer upstream = server.upstream.accept();
  const std::string forwarded = "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n";
  CHECK(upstream.head() == "PURGE /x HTTP/1.1\r\nHost: a\r\n" + forwarded + "\r\n");
  upstream.send(ok_text("1"));
  client.until("\r\n\r\n1");
  client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
  CHECK(upstream.until("hi") ==
        "PUT / HTTP/1.1\r\nHost: a\r\n" + forwarded + "Content-Length: 2\r\n\r\nhi");
  upstream.send(ok_text("2"));
  client.until("\r\n\r\n2");
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
  CHECK_THAT(upstream.head(), Contains("Content-Length: 0\r\n"));
  upstream.send(ok_text("3"));
  CHECK_THAT(client.until("\r\n\r\n3"), Contains("200 OK"));
}

TEST_CASE("responses are framed anew for each client") {
  ProxyServer server;
  auto response = [&](const std::string& request, const std::string& sent) {
    HttpPeer client = server.client();
    client.send(request);
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    upstream.send(sent);
    upstream.close();
    client.end_sending();
    std::string got = client.rest();
    CHECK(server.kind() == Kind::responded);
    return got;
  };
  const std::string old = "GET / HTTP/1.0\r\n\r\n", head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string chunks =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: trailer\r\n\r\n";
  const std::string begin = "HTTP/1.1 200 OK\r\n", closes = "Connection: close\r\n";
  const std::string chunked = begin + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  CHECK(response(get_text(), ok_text("abc")) == ok_text("abc"));
  CHECK(response(get_text(), chunks) == chunked);
  CHECK(response(get_text(), begin + "\r\nabc") == chunked);
  CHECK(response(get_text(), "HTTP/1.0 200 OK\r\n\r\nabc") == chunked);
  CHECK(response(old, ok_text("abc")) == ok_text("abc", closes));
  CHECK(response(old, chunks) == begin + closes + "\r\nabc");
  CHECK(response(head, begin + "Content-Length: 3\r\n\r\n") == begin + "Content-Length: 3\r\n\r\n");
  CHECK(response(get_text(), "HTTP/1.1 204 x\r\n\r\n") == "HTTP/1.1 204 No Content\r\n\r\n");
  CHECK(response(get_text(), "HTTP/1.1 304 x\r\nETag: e\r\n\r\n") ==
        "HTTP/1.1 304 Not Modified\r\nETag: e\r\n\r\n");
  CHECK(response(get_text(), "HTTP/1.1 103 x\r\n\r\n" + ok_text("abc")) == ok_text("abc"));
}

TEST_CASE("each event of an upstream reaches the client before the next one is sent") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(get_text("/events"));
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  CHECK_THAT(client.head(), Contains("Content-Type: text/event-stream"));
  for (int i = 0; i < 3; i++) {
    upstream.send(fmt::format("9\r\ndata: {}\n\n\r\n", i));
    CHECK(client.until("\n\n\r\n") == fmt::format("9\r\ndata: {}\n\n\r\n", i));
  }
  upstream.send("0\r\n\r\n");
  CHECK(client.until("\r\n\r\n") == "0\r\n\r\n");
  ProxyOutcome outcome = server.outcome();
  CHECK(outcome.kind == Kind::responded);
  CHECK(outcome.body.events == 3);
  REQUIRE(outcome.body.first);
  CHECK(*outcome.body.first <= outcome.body.first_event);
  CHECK(outcome.body.first_event < outcome.body.last_event);
}

TEST_CASE("an upstream waits for a client that does not read, and all of a large body arrives") {
  constexpr size_t kSize = 64u << 20;
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(get_text());
  std::string body(kSize, 0);
  for (size_t i = 0; i < body.size(); i++) body[i] = static_cast<char>('a' + i % 23);
  std::string text = fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", kSize) + body;
  HttpPeer upstream = server.upstream.accept();
  int accepted = upstream.descriptor();
  upstream.head();
  size_t sent = 0;
  // Until the sockets between are full: memory of the server would take the rest.
  for (pollfd writable{accepted, POLLOUT, 0};
       sent < text.size() && ::poll(&writable, 1, 300) == 1;) {
    ssize_t more =
        ::send(accepted, text.data() + sent, text.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (more <= 0) break;
    sent += static_cast<size_t>(more);
  }
  CHECK(sent < text.size());
  std::thread writer([&] { upstream.send(text.substr(sent)); });
  CHECK_THAT(client.head(), Contains(fmt::format("Content-Length: {}", kSize)));
  CHECK((client.read(kSize) == body));
  writer.join();
  CHECK(server.kind() == Kind::responded);
}

TEST_CASE("a large request reaches the upstream, which may reject it before its end") {
  constexpr size_t kSize = 20u << 20;
  ProxyServer server;
  std::string body(kSize, 'x');
  std::string text = fmt::format("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", kSize);
  {
    HttpPeer client = server.client();
    client.send(text + body);
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    CHECK((upstream.read(kSize) == body));
    upstream.send(ok_text("ok"));
    CHECK_THAT(client.until("\r\n\r\nok"), Contains("200 OK"));
  }
  HttpPeer client = server.client();
  client.send(text + body);
  HttpPeer upstream = server.upstream.accept();  // the other connection was closed
  upstream.head();
  upstream.send("HTTP/1.1 413 x\r\nContent-Length: 0\r\n\r\n");
  CHECK_THAT(client.head(), Contains("413 Payload Too Large"));
  upstream.rest();  // a connection with a request that is not whole is not used again
  CHECK(server.kind() == Kind::responded);
  CHECK(server.kind() == Kind::responded);
}

TEST_CASE("a connection to the upstream is used again") {
  ProxyServer server;
  HttpPeer first = server.client(), second = server.client();
  first.send(get_text("/1"));
  HttpPeer upstream = server.upstream.accept();
  CHECK_THAT(upstream.head(), Contains("GET /1 "));
  upstream.send(ok_text("1"));
  first.until("\r\n\r\n1");
  second.send(get_text("/2"));
  CHECK_THAT(upstream.head(), Contains("GET /2 "));
  upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  second.until("\r\n\r\n0\r\n\r\n");
  first.send(get_text("/3"));
  CHECK_THAT(upstream.head(), Contains("GET /3 "));
  upstream.send(ok_text("3", "Connection: close\r\n"));
  CHECK_THAT(first.until("\r\n\r\n3"), !Contains("close"));
  CHECK(upstream.rest().empty());
  second.send(get_text("/4"));
  HttpPeer next = server.upstream.accept();
  CHECK_THAT(next.head(), Contains("GET /4 "));
  next.send(ok_text("4") + "extra");
  second.until("\r\n\r\n4");
  CHECK(next.rest().empty());  // what nobody asked for may belong to another response
}

TEST_CASE("an idle connection to the upstream is closed after some time") {
  ProxyServer server({.proxy = {.kept_ms = 1}});
  HttpPeer client = server.client();
  client.send(get_text());
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send(ok_text("1"));
  CHECK(upstream.rest().empty());
}

TEST_CASE("a request is sent once more if a kept connection ends before the response") {
  auto forwarded = [](const std::string& request, bool is_repeatable, int deaths) {
    ProxyServer server({.is_repeatable = is_repeatable});
    HttpPeer client = server.client();
    client.send(get_text());
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    upstream.send(ok_text("kept"));
    client.until("kept");
    CHECK(server.kind() == Kind::responded);
    client.send(request);
    upstream.head();
    upstream.close();
    if (deaths > 1) server.upstream.accept().head();
    if (deaths == 1) {
      HttpPeer next = server.upstream.accept();
      CHECK_THAT(next.head(), Contains(request.substr(0, request.find(' ')) + " /again "));
      next.send(ok_text("again"));
    }
    std::string answer = client.head();
    CHECK_FALSE(server.upstream.has_connection());
    ProxyOutcome outcome = server.outcome();
    CHECK(answer.substr(9, 3) == (outcome.kind == Kind::died ? "502" : "200"));
    return outcome.kind;
  };
  std::string get = get_text("/again"), post = "POST" + get.substr(3, get.size() - 5);
  post += "Content-Length: 0\r\n\r\n";
  CHECK(forwarded(get, false, 1) == Kind::responded);
  CHECK(forwarded(get, false, 2) == Kind::died);
  CHECK(forwarded(post, false, 0) == Kind::died);
  CHECK(forwarded(post, true, 1) == Kind::responded);
}

TEST_CASE("a kept connection that the upstream has closed is not used") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(get_text());
  {
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    upstream.send(ok_text("1"));
    client.until("\r\n\r\n1");
  }
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send(ok_text("2"));
  CHECK_THAT(client.until("\r\n\r\n2"), Contains("200 OK"));
}

TEST_CASE("an upstream that cannot be reached, or dies before its response, leaves the request") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(get_text());
  server.upstream.accept().head();  // and closes
  CHECK_THAT(client.until("no answer\"}"), Contains("502 Bad Gateway"));
  CHECK(server.kind() == Kind::died);
  client.send(get_text());
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send("HTTP/1.1 200 OK\r\nA: ");
  upstream.close();
  CHECK_THAT(client.until("no answer\"}"), Contains("502 Bad Gateway"));
  CHECK(server.kind() == Kind::died);
  server.upstream.close();
  client.send(get_text());
  CHECK_THAT(client.until("no answer\"}"), Contains("502 Bad Gateway"));
  ProxyOutcome outcome = server.outcome();
  CHECK(outcome.kind == Kind::unreachable);
  CHECK(outcome.message == "Connection refused");
}

TEST_CASE("nothing is sent on a connection that the check rejects") {
  int checks = 0;
  ProxyServer server({.check = [&]() -> Status {
    if (checks++ == 0) return {};
    return user_error("another one listens");
  }});
  HttpPeer client = server.client();
  client.send(get_text("/1"));
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send(ok_text("1"));
  client.until("\r\n\r\n1");
  CHECK(server.kind() == Kind::responded);
  client.send(get_text("/2"));  // on the connection that was checked
  CHECK_THAT(upstream.head(), Contains("GET /2 "));
  upstream.send(ok_text("2", "Connection: close\r\n"));
  client.until("\r\n\r\n2");
  CHECK(server.kind() == Kind::responded);
  client.send(get_text("/3"));
  CHECK(server.upstream.accept().rest().empty());
  CHECK_THAT(client.until("no answer\"}"), Contains("502 Bad Gateway"));
  ProxyOutcome outcome = server.outcome();
  CHECK(outcome.kind == Kind::unreachable);
  CHECK(outcome.message == "another one listens");
  CHECK(checks == 2);
}

TEST_CASE("a response that breaks in the middle ends the client's without its end marker") {
  ProxyServer server;
  auto broken = [&](const std::string& sent, const std::string& last) {
    HttpPeer client = server.client();
    client.send(get_text());
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    upstream.send(sent);
    client.until("abc");
    upstream.send(last);
    upstream.close();
    std::string body = client.rest();
    ProxyOutcome outcome = server.outcome();
    CHECK(outcome.kind == Kind::broken);
    CHECK_THAT(outcome.message, Contains("the response of the program behind the service"));
    return body;
  };
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc";
  CHECK(broken(chunked, "") == "\r\n");
  CHECK(broken(chunked, "\r\nx\r\n") == "\r\n");
  CHECK(broken(chunked, "\r\n2\r\nd") == "\r\n1\r\nd\r\n");
  CHECK(broken("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "").empty());
}

TEST_CASE("a response that cannot be understood is a 502, and none of it reaches the client") {
  ProxyServer server;
  HttpPeer client = server.client();
  for (const std::string& sent :
       {std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nSecret: a\nB: c\r\n\r\n"), std::string("Secret")}) {
    client.send(get_text());
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    upstream.send(sent);
    std::string got = client.until("\"}");
    CHECK_THAT(got, Contains("502 Bad Gateway") && Contains("{\"error\":\"the response of the"));
    CHECK_THAT(got, !Contains("Secret"));
    CHECK(upstream.rest().empty());
    CHECK(server.kind() == Kind::invalid);
  }
}

TEST_CASE("when a client leaves, its request to the upstream is cancelled") {
  ProxyTestOptions options;
  options.limits.half_closed_ms = 0;
  ProxyServer server(options);
  for (bool begins : {false, true}) {
    HttpPeer client = server.client();
    client.send(get_text());
    HttpPeer upstream = server.upstream.accept();
    upstream.head();
    if (begins) {
      upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
      client.until("a\r\n");
    }
    client.close();
    CHECK(upstream.rest().empty());
    ProxyOutcome outcome = server.outcome();
    CHECK(outcome.kind == Kind::left);
    CHECK(outcome.status == 499);
  }
}

TEST_CASE("the deadline of a request ends with the head of its response") {
  ProxyServer server({.timeout_ms = 50});
  HttpPeer client = server.client(), streaming = server.client();
  streaming.send(get_text("/stream"));
  HttpPeer stream = server.upstream.accept();
  stream.head();
  stream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
  std::string first = streaming.until("a\r\n");
  client.send(get_text("/never"));
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  CHECK_THAT(client.until("\"}"), Contains("504 Gateway Timeout") &&
                                      Contains("the request was not answered within its timeout"));
  CHECK(upstream.rest().empty());
  CHECK(server.kind() == Kind::timeout);
  CHECK_THAT(first, Contains("200 OK"));
  stream.send("1\r\nb\r\n0\r\n\r\n");
  CHECK(streaming.until("0\r\n\r\n") == "1\r\nb\r\n0\r\n\r\n");
  CHECK(server.kind() == Kind::responded);
}

TEST_CASE("pipelined requests are forwarded one after the other") {
  ProxyServer server;
  HttpPeer client = server.client();
  client.send(get_text("/1") + get_text("/2") + get_text("/3"));
  HttpPeer upstream = server.upstream.accept();
  std::string expected;
  for (const char* path : {"/1", "/2", "/3"}) {
    CHECK_THAT(upstream.head(), Contains(fmt::format("GET {} HTTP/1.1", path)));
    upstream.send(ok_text(path));
    expected += ok_text(path);
  }
  CHECK(client.read(expected.size()) == expected);
}

TEST_CASE("a server ends while requests are forwarded") {
  auto server = std::make_unique<ProxyServer>();
  HttpPeer client = server->client(), waiting = server->client();
  client.send(get_text());
  HttpPeer upstream = server->upstream.accept();
  upstream.head();
  upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
  client.until("a\r\n");
  waiting.send(get_text());
  HttpPeer other = server->upstream.accept();
  other.head();
  server.reset();
  CHECK(client.rest().empty());
  CHECK(waiting.rest().empty());
  CHECK(upstream.rest().empty());
  CHECK(other.rest().empty());
}

// ---- Bodies that are sent while they arrive

TEST_CASE("a body reaches the upstream while it arrives, framed as the client did") {
  ProxyServer server(streaming());
  HttpPeer client = server.client();
  client.send("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n");
  HttpPeer upstream = server.upstream.accept();
  std::string head = upstream.head();
  CHECK_THAT(head, Contains("Content-Length: 10\r\n") && !Contains("Expect"));
  CHECK(client.head() == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("01234");
  CHECK(upstream.read(5) == "01234");
  client.send("56789");
  CHECK(upstream.read(5) == "56789");
  upstream.send(ok_text("1"));
  CHECK(client.until("\r\n\r\n1") == ok_text("1"));
  // Both connections are used again.
  client.send("POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n");
  CHECK_THAT(upstream.head(), Contains("POST /2") && Contains("Transfer-Encoding: chunked\r\n"));
  CHECK(upstream.until("abc\r\n") == "3\r\nabc\r\n");
  client.send("2\r\nde\r\n");
  CHECK(upstream.until("de\r\n") == "2\r\nde\r\n");
  client.send("0\r\nTrailer: dropped\r\n\r\n" + get_text("/3"));
  CHECK(upstream.until("0\r\n\r\n") == "0\r\n\r\n");
  upstream.send(ok_text("2"));
  CHECK(client.until("\r\n\r\n2") == ok_text("2"));
  CHECK_THAT(upstream.head(), Contains("GET /3 "));
  upstream.send(ok_text("3"));
  CHECK(client.until("\r\n\r\n3") == ok_text("3"));
}

TEST_CASE("a client waits for an upstream that does not read, and all of a large body arrives") {
  constexpr size_t kSize = 64u << 20;
  ProxyServer server(streaming());
  HttpPeer client = server.client();
  std::string body(kSize, 0);
  for (size_t i = 0; i < body.size(); i++) body[i] = static_cast<char>('a' + i % 23);
  client.send(fmt::format("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", kSize));
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  size_t sent = 0;
  // Until the sockets between are full: memory of the server would take the rest.
  for (pollfd writable{client.descriptor(), POLLOUT, 0};
       sent < body.size() && ::poll(&writable, 1, 300) == 1;) {
    ssize_t more = ::send(client.descriptor(), body.data() + sent, body.size() - sent,
                          MSG_DONTWAIT | MSG_NOSIGNAL);
    if (more <= 0) break;
    sent += static_cast<size_t>(more);
  }
  CHECK(sent < body.size());
  std::thread writer([&] { client.send(body.substr(sent)); });
  CHECK((upstream.read(kSize) == body));
  writer.join();
  upstream.send(ok_text("ok"));
  CHECK(client.until("\r\n\r\nok") == ok_text("ok"));
}

TEST_CASE("bodies that are sent while memory is short arrive, too") {
  ProxyTestOptions options = streaming();
  options.limits.bytes_max = 100'000;
  ProxyServer server(options);
  std::string body(1'000'000, 'x');
  std::string text = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
  HttpPeer first = server.client(), second = server.client();
  first.send(text);
  HttpPeer at_first = server.upstream.accept();
  at_first.head();
  std::thread writer([&] { first.send(body); });
  second.send(text);  // it gets a place, or the answer that there is none
  CHECK((at_first.read(body.size()) == body));
  writer.join();
  at_first.send(ok_text("ok"));
  CHECK(first.until("\r\n\r\nok") == ok_text("ok"));
}

TEST_CASE("an upstream may answer before the end of a body, whose connection then ends") {
  ProxyServer server(streaming());
  HttpPeer client = server.client();
  client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin");
  HttpPeer upstream = server.upstream.accept();
  upstream.until("begin");
  upstream.send("HTTP/1.1 413 x\r\nContent-Length: 3\r\n\r\nbig");
  CHECK_THAT(client.until("\r\n\r\nbig"), Contains("413 Payload Too Large\r\nContent-Length: 3\r\n"
                                                   "Connection: close\r\n"));
  CHECK(upstream.rest().empty());
  client.send("more");  // which is no request
  CHECK(client.rest().empty());
  CHECK(server.kind() == Kind::responded);
}

TEST_CASE("a response may begin while the body still arrives") {
  ProxyServer server(streaming());
  HttpPeer client = server.client();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  HttpPeer upstream = server.upstream.accept();
  upstream.head();
  upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  CHECK_THAT(client.head(), Contains("Connection: close"));
  for (const char* part : {"3\r\none\r\n", "3\r\ntwo\r\n"}) {
    client.send(part);
    CHECK(upstream.until(part) == part);
    upstream.send(part);
    CHECK(client.until(part) == part);
  }
  client.send("0\r\n\r\n");
  CHECK(upstream.until("0\r\n\r\n") == "0\r\n\r\n");
  upstream.send("0\r\n\r\n");
  CHECK(client.rest() == "0\r\n\r\n");
  CHECK(server.kind() == Kind::responded);
}

TEST_CASE("a client that leaves or stops within a body ends its request at the upstream") {
  ProxyTestOptions options = streaming();
  ProxyServer server(options);
  const std::string head = "PUT / HTTP/1.1\r\nHost: a\r\n";
  auto ask = [&](HttpPeer& client, const std::string& text) {
    client.send(head + text);
    HttpPeer upstream = server.upstream.accept();
    upstream.until("\r\n\r\n");
    return upstream;
  };
  {
    HttpPeer client = server.client();
    HttpPeer upstream = ask(client, "Content-Length: 20\r\n\r\nbegin");
    client.end_sending();
    CHECK_THAT(client.rest(), Contains(" 499 ") && Contains("ends within its body"));
    upstream.rest();
    CHECK(server.outcome().status == 499);
  }
  {
    HttpPeer client = server.client();
    HttpPeer upstream = ask(client, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n");
    CHECK_THAT(client.rest(), Contains(" 400 ") && Contains("chunks of the body are broken"));
    CHECK_THAT(upstream.rest(), !Contains("0\r\n\r\n"));
    CHECK(server.kind() == Kind::rejected);
  }
  HttpPeer client = server.client();
  HttpPeer upstream = ask(client, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.head();
  client.end_sending();
  CHECK(client.rest().empty());  // the response has no end
  CHECK(server.kind() == Kind::left);
}

TEST_CASE("a client that sends nothing more of a body gets 408") {
  ProxyTestOptions options = streaming();
  options.limits.body_ms = 50;
  ProxyServer server(options);
  HttpPeer client = server.client();
  client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\nbegin");
  HttpPeer upstream = server.upstream.accept();
  CHECK_THAT(client.rest(), Contains(" 408 "));
  CHECK_THAT(upstream.rest(), Contains("begin"));
  CHECK(server.kind() == Kind::rejected);
}

TEST_CASE("an upstream that stops reading a body, or does not answer after it, is a 504") {
  ProxyTestOptions options = streaming();
  options.timeout_ms = 100;
  ProxyServer server(options);
  for (size_t size : {size_t{20}, size_t{64} << 20}) {
    HttpPeer client = server.client();
    client.send(fmt::format("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", size));
    std::thread writer([&] { client.send(std::string(size, 'x')); });
    HttpPeer upstream = server.upstream.accept();
    CHECK_THAT(client.until("}"), Contains(" 504 ") && Contains("within its timeout"));
    writer.join();
    CHECK(server.kind() == Kind::timeout);
  }
}

TEST_CASE("a body that was sent is sent again only if all of it is kept") {
  for (bool is_repeatable : {false, true}) {
    ProxyTestOptions options = streaming();
    options.is_repeatable = is_repeatable;
    ProxyServer server(options);
    HttpPeer client = server.client();
    client.send(get_text("/first"));
    HttpPeer kept = server.upstream.accept();
    kept.head();
    kept.send(ok_text("1"));
    client.until("\r\n\r\n1");
    CHECK(server.kind() == Kind::responded);
    client.send("POST /late HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    kept.until("abc\r\n");
    kept.close();
    if (!is_repeatable) {
      CHECK_THAT(client.head(), Contains(" 502 "));
      CHECK(server.kind() == Kind::died);
      continue;
    }
    HttpPeer next = server.upstream.accept();
    CHECK_THAT(next.until("abc\r\n"), Contains("POST /late HTTP/1.1\r\n"));
    client.send("0\r\n\r\n");
    CHECK(next.until("0\r\n\r\n") == "0\r\n\r\n");
    next.send(ok_text("2"));
    CHECK(client.until("\r\n\r\n2") == ok_text("2"));
  }
}

TEST_CASE("nothing more is sent of a body whose client has left while the upstream was full") {
  UpstreamPair pair;
  ProxyTestOptions options = streaming();
  options.connect = [&](const HttpProxy::Connected& done) { done(pair.connection()); };
  ProxyServer server(options);
  HttpPeer client = server.client();
  client.send(kPutChunks);
  const size_t size = size_t{64} << 20;
  std::thread writer([&] { client.send(fmt::format("{:x}\r\n", size) + std::string(size, 'x')); });
  server.wait_upload([](HttpUpload& upload) { return upload.is_full(); });  // nothing takes of it
  // The connection of the client does this before the exchange gets to know that the client left.
  server.ask_upload([](HttpUpload& upload) {
    upload.cancel();
    upload.end();  // which is not the end of what was sent
    return true;
  });
  CHECK_FALSE(pair.read_all().empty());
  for (int i = 0; i < 3; i++) server.ask_upload([](HttpUpload&) { return true; });
  CHECK(pair.read_all().empty());
  ::shutdown(client.descriptor(), SHUT_RDWR);
  writer.join();
}

TEST_CASE("a connection is not used again if the end of the body is not on its way") {
  UpstreamPair pair;
  ProxyTestOptions options = streaming();
  options.connect = [&](const HttpProxy::Connected& done) { done(pair.connection()); };
  ProxyServer server(options);
  HttpPeer client = server.client();
  client.send(kPutChunks + "3\r\nabc\r\n");
  pair.upstream.until("abc\r\n");
  server.wait_upload([](HttpUpload& upload) { return upload.next(1).empty(); });
  pair.fill();
  client.send("0\r\n\r\n");
  server.wait_upload([](HttpUpload& upload) { return upload.has_ended(); });
  pair.upstream.send(ok_text("early"));
  CHECK(client.until("early") == ok_text("early"));
  CHECK(server.kind() == Kind::responded);
  CHECK_THAT(pair.read_all(), !Contains("0\r\n\r\n"));
  CHECK(pair.has_ended());
}
