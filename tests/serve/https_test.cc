// The HTTP server with TLS over real sockets.
#include <catch2/catch.hpp>
#include <thread>

#include "client.hpp"
#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/serve/http/http_server.hpp"
#include "response_parts.hpp"
#include "tests/serve/tls_client.hpp"

using namespace flow;
using Catch::Matchers::Contains;

namespace {

std::string_view https_methods(std::string_view path) { return path == "/echo" ? "POST" : ""; }

/// Answers each request with its body.
class HttpsEcho {
 public:
  explicit HttpsEcho(const HttpLimits& limits = {}) : folder_(make_temporary_folder()) {
    REQUIRE(folder_.ok());
    Identity identity = new_identity({});
    TlsFiles files{**folder_ + "/server.pem", **folder_ + "/server.key"};
    REQUIRE(write_file_atomic(files.certificate, certificate_pem(identity)).ok());
    REQUIRE(write_file_atomic(files.key, key_pem(identity)).ok());
    HttpOptions options{.name = "echo", .tls = files, .limits = limits};
    options.rules.methods = https_methods;
    auto opened = HttpServer::open(options, [](HttpRequest request, HttpReply reply) {
      reply.send(response_in_parts(std::move(request.body)));
    });
    REQUIRE(opened.ok());
    server = std::move(*opened);
  }

 private:
  Result<std::shared_ptr<const std::string>> folder_;

 public:
  std::unique_ptr<HttpServer> server;
};

/// A blocking client of TLS.
class HttpsClient {
 public:
  explicit HttpsClient(const HttpsEcho& echo)
      : settings_(TlsClient::settings_of({})),
        session_(SSL_new(settings_.get()), SSL_free),
        socket_(connect_to(echo.server->port())) {
    SSL_set_fd(session_.get(), socket_);
    REQUIRE(SSL_connect(session_.get()) == 1);
  }
  ~HttpsClient() { ::close(socket_); }

  void send(const std::string& text) {
    REQUIRE(SSL_write(session_.get(), text.data(), static_cast<int>(text.size())) ==
            static_cast<int>(text.size()));
  }
  std::string read(size_t size) {
    std::string got(size, 0);
    size_t at = 0, more = 0;
    while (at < size && SSL_read_ex(session_.get(), got.data() + at, size - at, &more) == 1)
      at += more;
    got.resize(at);
    return got;
  }
  /// The rest of the connection, which must end with a close_notify.
  std::string read_to_end() {
    std::string all, part;
    while (!(part = read(1)).empty()) all += part;
    CHECK(SSL_get_shutdown(session_.get()) == SSL_RECEIVED_SHUTDOWN);
    return all;
  }

 private:
  std::shared_ptr<SSL_CTX> settings_;
  std::unique_ptr<SSL, void (*)(SSL*)> session_;
  int socket_;
};

std::string echo_text(const std::string& body, const std::string& fields = "") {
  return post_text("/echo", body, fields);
}

std::string echoed(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

TEST_CASE("a connection of TLS serves requests one after another, and ends with a close_notify") {
  HttpsEcho echo;
  HttpsClient client(echo);
  for (const char* body : {"one", "two", "three"}) {
    client.send(echo_text(body));
    CHECK(client.read(echoed(body).size()) == echoed(body));
  }
  client.send(echo_text("four") + echo_text("last", "Connection: close\r\n"));
  CHECK(client.read(echoed("four").size()) == echoed("four"));
  std::string last = client.read_to_end();
  CHECK_THAT(last, Contains("Connection: close"));
  CHECK(last.ends_with("last"));
}

TEST_CASE("a large body arrives whole over TLS, and its response leaves whole") {
  HttpsEcho echo;
  HttpsClient client(echo);
  std::string body(10u << 20, 0);
  for (size_t i = 0; i < body.size(); i++) body[i] = static_cast<char>('a' + i % 23);
  client.send(echo_text(body));
  CHECK(client.read(echoed(body).size()) == echoed(body));
}

TEST_CASE("a rejection over TLS is a response") {
  HttpsEcho echo;
  HttpsClient client(echo);
  client.send("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK_THAT(client.read_to_end(), Contains("HTTP/1.1 404"));
}

TEST_CASE("a client that speaks plain HTTP gets an error that says so") {
  HttpsEcho echo;
  Reply reply = send_raw(echo.server->port(), echo_text("plain"), false);
  CHECK(reply.status == 400);
  CHECK_THAT(reply.body, Contains("TLS") || Contains("https"));
}

TEST_CASE("a handshake that stops is ended") {
  HttpLimits limits;
  limits.head_ms = 50;
  HttpsEcho echo(limits);
  int socket = connect_to(echo.server->port());
  const char start[] = {0x16, 0x03, 0x01, 0x02};  // the begin of a ClientHello
  REQUIRE(::send(socket, start, sizeof start, 0) == sizeof start);
  char byte;
  CHECK(::recv(socket, &byte, 1, 0) <= 0);
  ::close(socket);
}

TEST_CASE("a drain ends connections of TLS with a close_notify") {
  HttpLimits limits;
  limits.silence_ms = 50;
  HttpsEcho echo(limits);
  HttpsClient client(echo);
  client.send(echo_text("open"));
  CHECK(client.read(echoed("open").size()) == echoed("open"));
  echo.server->begin_drain();
  CHECK(client.read_to_end().empty());
  CHECK(echo.server->wait_drained(60'000));
}
