// TLS sessions against a client of OpenSSL, without sockets: versions, certificates of both sides,
// reloading, limits, and damaged files.
#include "engine/serve/http/tls.hpp"

#include <malloc.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "tests/serve/tls_client.hpp"

using namespace flow;
using Catch::Matchers::Contains;

namespace {

const Identity& authority() {
  static const Identity made = new_identity({.name = "authority", .is_authority = true});
  return made;
}
const Identity& server_identity() {
  static const Identity made = new_identity({.issuer = &authority()});
  return made;
}

/// Files of one test.
class Folder {
 public:
  Folder() : folder_(make_temporary_folder()) { FLOW_CHECK(folder_.ok()); }
  std::string path(const std::string& name) const { return **folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    FLOW_CHECK(write_file_atomic(path(name), text).ok());
    return path(name);
  }
  TlsFiles write(const Identity& identity) const {
    return {write("server.pem", certificate_pem(identity)), write("server.key", key_pem(identity))};
  }

 private:
  Result<std::shared_ptr<const std::string>> folder_;
};

std::shared_ptr<TlsContext> open_context(const TlsFiles& files) {
  auto context = TlsContext::open(files);
  INFO((context.ok() ? "" : context.error().message));
  REQUIRE(context.ok());
  return *context;
}

std::shared_ptr<TlsContext> plain_context() {
  Folder folder;
  return open_context(folder.write(server_identity()));
}

std::string error_of(const TlsFiles& files) {
  auto context = TlsContext::open(files);
  REQUIRE_FALSE(context.ok());
  CHECK(context.error().kind == ErrorKind::user);
  return context.error().message;
}

/// A session and a client; pump() moves their bytes until both wait.
struct Conversation {
  explicit Conversation(const TlsContext& context, const TlsClientOptions& options = {},
                        size_t split_bytes = SIZE_MAX)
      : server(context), client(options), part(split_bytes) {}

  /// Whether both sides are still working.
  bool pump() {
    while (true) {
      if (to_server.empty()) client_works = client.receive({}, at_client) && client_works;
      to_server += client.take();
      if (to_server.empty() && to_client.empty()) return server_works && client_works;
      while (!to_server.empty()) {
        std::string bytes = to_server.substr(0, part);
        to_server.erase(0, part);
        size_t before = at_server.size();
        server_works = server.receive(bytes, at_server, to_client);
        CHECK(at_server.size() - before <= bytes.size() + 16 * 1024);
        if (!server_works) to_server.clear();
      }
      while (!to_client.empty()) {
        std::string bytes = to_client.substr(0, part);
        to_client.erase(0, part);
        client_works = client.receive(bytes, at_client) && client_works;
      }
    }
  }
  std::string answer(const std::string& text) {
    at_client.clear();
    REQUIRE(server.send(text, to_client));
    pump();
    return at_client;
  }

  TlsSession server;
  TlsClient client;
  size_t part;
  std::string at_server, at_client, to_server, to_client;
  bool server_works = true, client_works = true;
};

std::string random_bytes(size_t size) {
  std::mt19937_64 random(7);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TlsClientOptions version(int number) { return {.version_min = number, .version_max = number}; }

/// Common name of the certificate that a new session shows.
std::string shown_name(const TlsContext& context) {
  Conversation talk(context);
  REQUIRE(talk.pump());
  X509* certificate = SSL_get0_peer_certificate(talk.client.library());
  char name[64] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof name);
  return name;
}

/// A handshake that fails: what the server says of it, and the alert that the client gets.
using Failure = std::pair<std::string, int>;
constexpr int kNoAlert = -1;

Failure failure_of(const TlsContext& context, const TlsClientOptions& options) {
  Conversation talk(context, options);
  CHECK_FALSE(talk.pump());
  CHECK_FALSE(talk.server_works);
  CHECK_FALSE(talk.server.is_open());
  CHECK(talk.at_server.empty());
  return {talk.server.failure(), talk.client.alert()};
}

}  // namespace

TEST_CASE("TLS 1.2 and 1.3 carry a request and its response, however the bytes are split") {
  auto context = plain_context();
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (size_t part : {size_t{1}, size_t{7}, SIZE_MAX}) {
      INFO(number << " in parts of " << part);
      TlsClientOptions options = version(number);
      options.authority = &authority();
      options.alpn = "\x02h2\x08http/1.1";
      Conversation talk(*context, options, part);
      CHECK_FALSE(talk.server.is_open());
      REQUIRE(talk.pump());
      CHECK(talk.server.is_open());
      CHECK(talk.client.is_open());
      CHECK(SSL_version(talk.client.library()) == number);
      const unsigned char* protocol = nullptr;
      unsigned int size = 0;
      SSL_get0_alpn_selected(talk.client.library(), &protocol, &size);
      CHECK(std::string(reinterpret_cast<const char*>(protocol), size) == "http/1.1");
      talk.client.send("GET / HTTP/1.1\r\n\r\n");
      REQUIRE(talk.pump());
      CHECK(talk.at_server == "GET / HTTP/1.1\r\n\r\n");
      CHECK(talk.answer("HTTP/1.1 200 OK\r\n\r\n") == "HTTP/1.1 200 OK\r\n\r\n");
    }
  }
}

TEST_CASE("a request that arrives with the end of the handshake is delivered") {
  auto context = plain_context();
  Conversation talk(*context, version(TLS1_3_VERSION));
  talk.client.receive({}, talk.at_client);
  REQUIRE(talk.server.receive(talk.client.take(), talk.at_server, talk.to_client));
  talk.client.receive(std::exchange(talk.to_client, {}), talk.at_client);
  REQUIRE(talk.client.is_open());
  talk.client.send("first");
  talk.client.close();
  REQUIRE(talk.server.receive(talk.client.take(), talk.at_server, talk.to_client));
  CHECK(talk.server.is_open());
  CHECK(talk.server.has_ended());
  CHECK(talk.at_server == "first");
}

TEST_CASE("20 MB pass in both directions") {
  auto context = plain_context();
  const std::string bytes = random_bytes(20'000'000);
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Conversation talk(*context, version(number), 100'000);
    REQUIRE(talk.pump());
    for (size_t at = 0; at < bytes.size(); at += 1'000'000) {
      talk.client.send(std::string_view(bytes).substr(at, 1'000'000));
      REQUIRE(talk.pump());
    }
    CHECK((talk.at_server == bytes));
    std::string wire;
    REQUIRE(talk.server.send(bytes, wire));
    CHECK(wire.size() < bytes.size() + (bytes.size() / (16 * 1024) + 1) * 32);
    std::string got;
    for (size_t at = 0; at < wire.size(); at += 100'000)
      REQUIRE(talk.client.receive(std::string_view(wire).substr(at, 100'000), got));
    CHECK((got == bytes));
  }
}

TEST_CASE("intermediate certificates of the server's file are sent") {
  Folder folder;
  Identity middle = new_identity({.name = "middle", .issuer = &authority(), .is_authority = true});
  Identity leaf = new_identity({.issuer = &middle});
  TlsFiles files = folder.write(leaf);
  TlsClientOptions options{.authority = &authority()};
  CHECK(failure_of(*open_context(files), options).first ==
        "the handshake failed: the client sent alert 48 (unknown CA)");
  folder.write("server.pem", certificate_pem(leaf) + certificate_pem(middle));
  Conversation talk(*open_context(files), options);
  CHECK(talk.pump());
}

TEST_CASE("TLS 1.1 and the ciphers without forward secrecy are refused") {
  auto context = plain_context();
  TlsClientOptions old = {.version_min = TLS1_VERSION, .version_max = TLS1_1_VERSION};
  CHECK(failure_of(*context, old) ==
        Failure{"the handshake failed: unsupported protocol", SSL_AD_PROTOCOL_VERSION});
  TlsClientOptions weak = version(TLS1_2_VERSION);
  for (const char* ciphers : {"AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA"}) {
    weak.ciphers = ciphers;
    CHECK(failure_of(*context, weak) ==
          Failure{"the handshake failed: no shared cipher", SSL_AD_HANDSHAKE_FAILURE});
  }
}

TEST_CASE("ALPN permits http/1.1 alone") {
  auto context = plain_context();
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClientOptions options = version(number);
    options.alpn = "\x02h2";
    CHECK(failure_of(*context, options) ==
          Failure{"the handshake failed: no application protocol", SSL_AD_NO_APPLICATION_PROTOCOL});
    options.alpn = "";
    Conversation without(*context, options);
    CHECK(without.pump());
    options.alpn = "\x08http/1.1";
    Conversation with(*context, options);
    CHECK(with.pump());
  }
}

TEST_CASE("a client that does not know the server's authority ends the session") {
  auto context = plain_context();
  Identity other = new_identity({.name = "other", .is_authority = true});
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClientOptions options = version(number);
    options.authority = &other;
    CHECK(failure_of(*context, options) ==
          Failure{"the handshake failed: the client sent alert 48 (unknown CA)", kNoAlert});
  }
}

TEST_CASE("mutual TLS accepts certificates of its authorities alone") {
  Folder folder;
  Identity other = new_identity({.name = "other", .is_authority = true});
  Identity second = new_identity({.name = "second", .is_authority = true});
  Identity middle = new_identity({.name = "middle", .issuer = &other, .is_authority = true});
  TlsFiles files = folder.write(server_identity());
  files.clients =
      folder.write("clients.pem", certificate_pem(authority()) + certificate_pem(second) +
                                      certificate_pem(middle));
  auto context = open_context(files);

  Identity good = new_identity({.name = "alice", .issuer = &authority()});
  Identity also_good = new_identity({.name = "bob", .issuer = &second});
  Identity of_middle = new_identity({.name = "carol", .issuer = &middle});
  Identity foreign = new_identity({.name = "mallory", .issuer = &other});
  Identity own = new_identity({.name = "alice"});
  Identity expired = new_identity({.issuer = &authority(), .from_s = -7200, .until_s = -3600});

  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClientOptions options = version(number);
    for (const Identity* identity : {&good, &also_good, &of_middle}) {
      options.identity = identity;
      Conversation talk(*context, options);
      REQUIRE(talk.pump());
      CHECK(talk.answer("welcome") == "welcome");
      // The server sends its file, and none of the clients' authorities.
      CHECK(sk_X509_num(SSL_get_peer_cert_chain(talk.client.library())) == 1);
    }
    options.identity = nullptr;
    CHECK(
        failure_of(*context, options) ==
        Failure{"the handshake failed: peer did not return a certificate",
                number == TLS1_3_VERSION ? SSL_AD_CERTIFICATE_REQUIRED : SSL_AD_HANDSHAKE_FAILURE});
    const std::string kWrong = "the handshake failed: certificate verify failed";
    options.identity = &foreign;
    CHECK(failure_of(*context, options) == Failure{kWrong, SSL_AD_UNKNOWN_CA});
    options.identity = &own;
    CHECK(failure_of(*context, options).first == kWrong);
    options.identity = &expired;
    CHECK(failure_of(*context, options) == Failure{kWrong, SSL_AD_CERTIFICATE_EXPIRED});
  }
}

TEST_CASE("a session resumes by a ticket until the files or the ticket's key change") {
  Folder folder;
  TlsFiles files = folder.write(server_identity());
  files.clients = folder.write("clients.pem", certificate_pem(authority()));
  auto context = open_context(files);
  Identity alice = new_identity({.name = "alice", .issuer = &authority()});
  int64_t now_us = monotonic_us() + 1;
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    INFO(number);
    TlsClientOptions options = version(number);
    options.identity = &alice;
    auto is_resumed = [&](SSL_SESSION* ticket) {
      options.resumed = ticket;
      Conversation talk(*context, options);
      REQUIRE(talk.pump());
      CHECK(talk.answer("still here") == "still here");
      talk.client.close();  // a session that is not closed cannot be resumed
      return SSL_session_reused(talk.client.library()) == 1;
    };
    auto new_ticket = [&] {
      options.resumed = nullptr;
      Conversation talk(*context, options);
      REQUIRE(talk.pump());
      CHECK(talk.answer("x") == "x");
      talk.client.close();
      return std::shared_ptr<SSL_SESSION>(SSL_get1_session(talk.client.library()),
                                          SSL_SESSION_free);
    };
    CHECK(is_resumed(new_ticket().get()));

    auto ticket = new_ticket();
    now_us += TlsContext::kTicketKeyUs;
    REQUIRE(context->reload_if_changed(now_us).ok());
    CHECK_FALSE(is_resumed(ticket.get()));

    CHECK(is_resumed(new_ticket().get()));
    ticket = new_ticket();
    folder.write(new_identity({.issuer = &authority()}));
    now_us += TlsContext::kCheckUs;
    REQUIRE(context->reload_if_changed(now_us).ok());
    CHECK_FALSE(is_resumed(ticket.get()));
  }
}

TEST_CASE(
    "changed files are loaded for new sessions, and a damaged one keeps the old certificate") {
  Folder folder;
  TlsFiles files = folder.write(new_identity({.name = "first"}));
  auto context = open_context(files);
  int64_t now_us = monotonic_us();
  Conversation old(*context);
  REQUIRE(old.pump());

  TlsSession idle(*context);
  folder.write(new_identity({.name = "second"}));
  CHECK(context->reload_if_changed(now_us).ok());
  CHECK(shown_name(*context) == "first");  // looked less than a second ago
  now_us += TlsContext::kCheckUs + 1'000'000;
  CHECK(context->reload_if_changed(now_us).ok());
  CHECK(shown_name(*context) == "second");
  CHECK(old.answer("still here") == "still here");

  // A pair is replaced one file after the other.
  Identity third = new_identity({.name = "third"});
  folder.write("server.pem", certificate_pem(third));
  now_us += TlsContext::kCheckUs;
  Status failed = context->reload_if_changed(now_us);
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().message ==
        "the TLS key `" + files.key + "` does not belong to the certificate `" + files.certificate +
            "`: name the key with which the certificate was requested. The certificate that was "
            "loaded before stays in use");
  for (int i = 0; i < 3; i++) {
    now_us += TlsContext::kCheckUs;
    CHECK(context->reload_if_changed(now_us).ok());  // reported before
  }
  CHECK(shown_name(*context) == "second");
  folder.write("server.key", key_pem(third));
  now_us += TlsContext::kCheckUs;
  CHECK(context->reload_if_changed(now_us).ok());
  CHECK(shown_name(*context) == "third");

  // A file disappears and returns.
  std::filesystem::remove(files.key);
  now_us += TlsContext::kCheckUs;
  failed = context->reload_if_changed(now_us);
  REQUIRE_FALSE(failed.ok());
  CHECK_THAT(failed.error().message, Contains("No such file or directory"));
  CHECK(shown_name(*context) == "third");
  folder.write("server.key", key_pem(third));
  now_us += TlsContext::kCheckUs;
  CHECK(context->reload_if_changed(now_us).ok());
  CHECK(shown_name(*context) == "third");

  context.reset();
  CHECK(old.answer("still here") == "still here");
}

// Kubernetes replaces a mounted secret in this way.
TEST_CASE("a link that is turned to another folder is a change of the files") {
  Folder folder;
  for (const char* name : {"one", "two"}) {
    std::filesystem::create_directory(folder.path(name));
    Identity identity = new_identity({.name = name});
    folder.write(std::string(name) + "/tls.crt", certificate_pem(identity));
    folder.write(std::string(name) + "/tls.key", key_pem(identity));
  }
  std::filesystem::create_directory_symlink("one", folder.path("data"));
  auto context = open_context({folder.path("data/tls.crt"), folder.path("data/tls.key")});
  CHECK(shown_name(*context) == "one");
  std::filesystem::create_directory_symlink("two", folder.path("next"));
  std::filesystem::rename(folder.path("next"), folder.path("data"));
  CHECK(context->reload_if_changed(monotonic_us() + TlsContext::kCheckUs).ok());
  CHECK(shown_name(*context) == "two");
}

TEST_CASE("a file that cannot be used is named with the reason and the remedy") {
  Folder folder;
  Identity other = new_identity();
  const TlsFiles good = folder.write(server_identity());
  TlsFiles files = good;

  files.certificate = folder.path("missing.pem");
  CHECK(error_of(files) == "the TLS certificate is not readable: cannot open `" +
                               files.certificate +
                               "`: No such file or directory. Check the path and the file's "
                               "permissions, or name another PEM file");
  files.certificate = folder.path("");
  CHECK_THAT(error_of(files), Contains("the TLS certificate is not readable"));
  files.certificate = "";
  CHECK(error_of(files) == "the TLS certificate has no file: name a PEM file");
  files.certificate = folder.write("text", "hello");
  CHECK(error_of(files) == "the TLS certificate `" + files.certificate +
                               "` is not PEM: it has no block `-----BEGIN CERTIFICATE-----`. Name "
                               "a file with the certificates as PEM text");
  files.certificate = folder.write("huge", std::string((1u << 20) + 1, '#'));
  CHECK_THAT(error_of(files), Contains("1048576"));
  std::string damaged = certificate_pem(server_identity());
  damaged.replace(100, 1, "!");
  files.certificate = folder.write("damaged", certificate_pem(server_identity()) + damaged);
  CHECK(error_of(files) == "the TLS certificate `" + files.certificate +
                               "` is damaged: its certificate 2 cannot be read (bad base64 "
                               "decode). Copy the file again");
  unsigned char* der = nullptr;
  int size = i2d_X509(server_identity().certificate.get(), &der);
  files.certificate =
      folder.write("der", std::string(reinterpret_cast<char*>(der), static_cast<size_t>(size)));
  OPENSSL_free(der);
  CHECK_THAT(error_of(files), Contains("is in DER format") && Contains("openssl x509 -inform DER"));
  std::string many;
  for (int i = 0; i < 17; i++) many += certificate_pem(server_identity());
  files.certificate = folder.write("many", many);
  CHECK_THAT(error_of(files), Contains("has more than 16 certificates"));
  files.certificate =
      folder.write("order", certificate_pem(authority()) + certificate_pem(server_identity()));
  CHECK(error_of(files) == "the TLS certificate `" + files.certificate +
                               "` has the server's certificate at position 2: move it before the "
                               "intermediate certificates");
  files = {good.key, good.certificate};
  CHECK_THAT(error_of(files), Contains("are two options swapped?"));

  files = good;
  files.key = folder.path("missing.key");
  CHECK_THAT(error_of(files), Contains("the TLS key is not readable: cannot open `"));
  files.key = folder.write("other.key", key_pem(other));
  CHECK_THAT(error_of(files), Contains("does not belong to the certificate"));
  files.key = folder.write("locked.key", key_pem(server_identity(), "secret"));
  CHECK_THAT(error_of(files),
             Contains("is encrypted with a password") && Contains("openssl pkey -in OLD -out NEW"));
  files.key = folder.write("cut.key", key_pem(server_identity()).substr(0, 80));
  CHECK_THAT(error_of(files), Contains("is damaged"));
  files.key = good.certificate;
  CHECK_THAT(error_of(files), Contains("are two options swapped?"));
  files.key = folder.write("text", "hello");
  CHECK_THAT(error_of(files), Contains("is not PEM"));
  der = nullptr;
  size = i2d_PrivateKey(server_identity().key.get(), &der);
  files.key =
      folder.write("der.key", std::string(reinterpret_cast<char*>(der), static_cast<size_t>(size)));
  OPENSSL_free(der);
  CHECK_THAT(error_of(files), Contains("is in DER format") && Contains("openssl pkey -inform DER"));
  files = folder.write(new_identity({.key_type = "RSA-1024"}));
  CHECK_THAT(error_of(files), Contains("cannot be used: ee key too small. Use a key of type"));

  files = folder.write(server_identity());
  files.clients = folder.path("missing.pem");
  CHECK_THAT(error_of(files), Contains("the file of TLS client authorities is not readable"));
  files.clients = folder.write("text", "hello");
  CHECK_THAT(error_of(files),
             Contains("the file of TLS client authorities `") && Contains("is not PEM"));
  files.clients = folder.write(
      "crl", certificate_pem(authority()) + "-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n");
  CHECK_THAT(error_of(files), Contains("has a revocation list"));
}

TEST_CASE("the key may be in the certificate's file, and keys may be RSA, ECDSA or Ed25519") {
  Folder folder;
  for (const char* type : {"RSA-2048", "P-256", "P-384", "ED25519"}) {
    INFO(type);
    Identity identity = new_identity({.key_type = type});
    std::string path =
        folder.write("both.pem", "comment\n" + key_pem(identity) + certificate_pem(identity));
    auto context = open_context({path, path});
    CHECK(context->warnings().empty());
    for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
      Conversation talk(*context, version(number));
      REQUIRE(talk.pump());
      CHECK(talk.answer("x") == "x");
    }
  }
}

TEST_CASE("an expired certificate and a key that all users can read are warnings") {
  Folder folder;
  Identity expired = new_identity({.from_s = -7200, .until_s = -3600});
  TlsFiles files = folder.write(expired);
  ::chmod(files.key.c_str(), 0644);
  files.clients = folder.write(
      "clients.pem", certificate_pem(authority()) +
                         certificate_pem(new_identity({.from_s = 3600, .until_s = 7200})));
  auto context = open_context(files);
  int64_t age_ms = now_ms() - context->expires_at_ms();
  CHECK(age_ms > 3'500'000);
  CHECK(age_ms < 7'200'000);
  REQUIRE(context->warnings().size() == 3);
  CHECK_THAT(context->warnings()[0],
             Contains("the TLS certificate `" + files.certificate + "` has expired at 2"));
  CHECK(context->warnings()[1] == "every user of this machine can read the TLS key `" + files.key +
                                      "`: `chmod 600` the file");
  CHECK_THAT(context->warnings()[2],
             Contains("has a certificate (number 2) that is valid only from 2"));
}

TEST_CASE("plain HTTP gets a plain response, and other bytes get none") {
  auto context = plain_context();
  for (const char* text : {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "P", "post"}) {
    TlsSession session(*context);
    std::string plain, wire;
    CHECK_FALSE(session.receive(text, plain, wire));
    CHECK(plain.empty());
    CHECK(wire ==
          "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 84\r\n"
          "Connection: close\r\n\r\n{\"error\":\"this port expects HTTPS and received plain HTTP: "
          "use an https:// address\"}");
    CHECK(session.failure() == "the client sent plain HTTP");
    wire.clear();
    CHECK_FALSE(session.receive("more", plain, wire));
    session.close(wire);
    CHECK(wire.empty());
  }
  using namespace std::string_literals;
  for (const std::string& bytes : {"\x80\x2e\x01\x03\x01"s, "\0"s, "\r\n"s, "\xff"s, "\x15\x03"s}) {
    TlsSession session(*context);
    std::string plain, wire;
    CHECK_FALSE(session.receive(bytes, plain, wire));
    CHECK(plain + wire == "");
    CHECK(session.failure() == "the client does not speak TLS");
  }
  TlsSession session(*context);
  std::string plain, wire;
  CHECK(session.receive("", plain, wire));
  session.close(wire);
  CHECK(plain + wire == "");
}

TEST_CASE("close_notify ends one direction") {
  auto context = plain_context();
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Conversation talk(*context, version(number));
    REQUIRE(talk.pump());
    talk.client.send("request");
    talk.client.close();
    REQUIRE(talk.pump());
    CHECK(talk.at_server == "request");
    CHECK(talk.server.has_ended());
    CHECK(talk.server.is_open());
    std::string plain, wire;
    CHECK(talk.server.receive("ignored", plain, wire));
    CHECK(plain + wire == "");
    REQUIRE(talk.server.send("response", talk.to_client));
    talk.server.close(talk.to_client);
    CHECK_FALSE(talk.server.is_open());
    talk.server.close(wire);
    CHECK(wire.empty());
    CHECK(talk.pump());
    CHECK(talk.at_client == "response");
    CHECK(talk.client.has_ended());
  }
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Conversation talk(*context, version(number));
    REQUIRE(talk.pump());
    talk.server.close(talk.to_client);
    talk.client.send("late");
    CHECK(talk.pump());
    CHECK(talk.client.has_ended());
    CHECK(talk.at_server == "late");
    CHECK_FALSE(talk.server.has_ended());
    talk.client.close();
    CHECK(talk.pump());
    CHECK(talk.server.has_ended());
  }
}

TEST_CASE("a changed record ends the session with an alert") {
  auto context = plain_context();
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Conversation talk(*context, version(number));
    REQUIRE(talk.pump());
    talk.client.send("request");
    std::string bytes = talk.client.take();
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    CHECK_FALSE(talk.server.receive(bytes, talk.at_server, talk.to_client));
    CHECK(talk.at_server.empty());
    CHECK(talk.server.failure() == "the session failed: decryption failed or bad record mac");
    CHECK_FALSE(talk.server.is_open());
    CHECK_FALSE(talk.client.receive(talk.to_client, talk.at_client));
    CHECK(talk.client.alert() == SSL_AD_BAD_RECORD_MAC);
    talk.to_client.clear();
    CHECK_FALSE(talk.server.receive("more", talk.at_server, talk.to_client));
    talk.server.close(talk.to_client);
    CHECK(talk.to_client.empty());
  }
}

TEST_CASE("a client of TLS 1.2 cannot renegotiate") {
  auto context = plain_context();
  Conversation talk(*context, version(TLS1_2_VERSION));
  REQUIRE(talk.pump());
  REQUIRE(SSL_renegotiate(talk.client.library()) == 1);
  CHECK_FALSE(talk.pump());
  CHECK(talk.server.failure() ==
        "the session failed: the client sent alert 40 (handshake failure)");
}

TEST_CASE("a client of TLS 1.3 may change its keys, but not without end") {
  auto context = plain_context();
  Conversation talk(*context, version(TLS1_3_VERSION));
  REQUIRE(talk.pump());
  auto request_key = [&] {
    REQUIRE(SSL_key_update(talk.client.library(), SSL_KEY_UPDATE_REQUESTED) == 1);
    REQUIRE(SSL_do_handshake(talk.client.library()) == 1);
  };
  for (int i = 0; i < 100; i++) {
    request_key();
    talk.client.send("x");
    REQUIRE(talk.pump());
    REQUIRE(talk.answer("y") == "y");
  }
  CHECK(talk.at_server == std::string(100, 'x'));
  for (int i = 0; i < 1000; i++) request_key();
  std::string bytes = talk.client.take();
  CHECK_FALSE(talk.server.receive(bytes, talk.at_server, talk.to_client));
  CHECK(talk.to_client.size() < 1000);
  CHECK(talk.server.failure() == "more than 16 handshake messages without data");
}

TEST_CASE("a handshake has a limit of bytes") {
  auto context = plain_context();
  std::string plain, wire;
  // A ClientHello of 100,000 bytes in records of 16 KiB.
  std::string message{'\x01', '\x01', '\x86', '\xa0'};
  message += std::string(100'000, '\0');
  TlsSession session(*context);
  bool works = true;
  size_t sent = 0;
  for (size_t at = 0; works && at < message.size(); at += 16 * 1024) {
    std::string part = message.substr(at, 16 * 1024);
    std::string record{'\x16', '\x03', '\x01', static_cast<char>(part.size() >> 8),
                       static_cast<char>(part.size())};
    works = session.receive(record + part, plain, wire);
    sent += part.size();
  }
  CHECK_FALSE(works);
  CHECK(sent <= TlsSession::kHandshakeBytesMax);
  CHECK(session.failure() == "the handshake has more than 65536 bytes");
  CHECK(plain + wire == "");
}

TEST_CASE("sessions are small") {
  Folder folder;
  TlsFiles files = folder.write(server_identity());
  auto context = open_context(files);
  files.clients = folder.write("clients.pem", certificate_pem(authority()));
  auto mutual = open_context(files);
  Identity alice = new_identity({.name = "alice", .issuer = &authority()});

  constexpr size_t kCount = 100;
  auto used = [] { return ::mallinfo2().uordblks; };  // 0 with a sanitizer's heap
  for (int number : {TLS1_2_VERSION, TLS1_3_VERSION, TLS1_3_VERSION | 0x10000}) {
    bool is_mutual = (number & 0x10000) != 0;
    TlsClientOptions options = version(number & 0xffff);
    if (is_mutual) options.identity = &alice;
    std::vector<std::unique_ptr<TlsSession>> sessions;
    sessions.reserve(kCount);
    std::string plain, wire;
    auto sessions_after = [&](auto action) {
      sessions.clear();
      size_t before = used();
      for (size_t i = 0; i < kCount; i++) {
        sessions.push_back(std::make_unique<TlsSession>(is_mutual ? *mutual : *context));
        action(*sessions.back());
        std::string().swap(plain);
        std::string().swap(wire);
      }
      return (used() - before) / kCount;
    };
    auto connected = [&](TlsSession& session) {
      TlsClient client(options);
      std::string at_client;
      while (!session.is_open() || !client.is_open()) {
        client.receive(std::exchange(wire, {}), at_client);
        REQUIRE(session.receive(client.take(), plain, wire));
      }
      client.send(std::string(40'000, 'x'));
      REQUIRE(session.receive(client.take(), plain, wire));
      REQUIRE(session.send(std::string(40'000, 'y'), wire));
    };
    auto greeted = [&](TlsSession& session) {
      TlsClient client(options);
      std::string at_client;
      client.receive({}, at_client);
      REQUIRE(session.receive(client.take(), plain, wire));
    };
    sessions_after(connected);  // what the library allocates once
    CHECK(sessions_after([](TlsSession&) {}) < 1'000);
    CHECK(sessions_after(greeted) < 60'000);
    CHECK(sessions_after(connected) < 25'000);
  }
}
