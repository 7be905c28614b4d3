// Requests as bytes: which are accepted, what is read of them, and the status of the rejected ones.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "engine/serve/http/http_request.hpp"

using namespace flow;
using State = HttpRequestReader::State;

namespace {

std::string_view methods_of(std::string_view path) {
  if (path == "/read") return "GET, HEAD";
  return path == "/ask" ? "POST" : "";
}

const HttpRules kRules{1000, methods_of, {"models.example"}};
const std::string kGet = "GET /read HTTP/1.1\r\nHost: a\r\n";
const std::string kPost = "POST /ask HTTP/1.1\r\nHost: localhost:8080\r\n";

/// What a reader says after `text`, which arrives in parts of `part` bytes.
struct Verdict {
  int status = 0;  // 200: the request is whole or its head accepted
  std::string message;
  HttpRequest request;
  State state = State::head;
  std::string rest;  // after the request
  bool operator==(const Verdict&) const = default;
};

Verdict read_in_parts(const HttpRules& rules, std::string_view text, size_t part) {
  HttpRequestReader reader(rules);
  size_t at = 0;
  while (at < text.size() && reader.state() != State::whole && reader.state() != State::failed) {
    std::string_view bytes = text.substr(at, part);
    size_t taken = reader.read(bytes);
    REQUIRE(taken <= bytes.size());
    if (taken < bytes.size())
      REQUIRE((reader.state() == State::whole || reader.state() == State::failed));
    at += taken;
  }
  Verdict verdict{200, {}, {}, reader.state(), {}};
  if (verdict.state == State::failed) {
    verdict.status = reader.error().status;
    verdict.message = reader.error().message;
    CHECK_FALSE(verdict.message.empty());
    CHECK((verdict.status == 405) == !reader.error().allow.empty());
  }
  if (verdict.state == State::whole) {
    verdict.request = reader.take();
    verdict.rest = text.substr(at);
  }
  return verdict;
}

/// The same for all ways to split `text`.
Verdict verdict(const std::string& text, const HttpRules& rules = kRules) {
  Verdict whole = read_in_parts(rules, text, text.size());
  for (size_t part : {size_t{1}, size_t{2}, size_t{3}, size_t{7}}) {
    INFO(text.substr(0, 300) << " in parts of " << part);
    CHECK((read_in_parts(rules, text, part) == whole));
  }
  return whole;
}

int status_of(const std::string& text) { return verdict(text).status; }
int post(const std::string& headers) { return status_of(kPost + headers + "\r\n"); }

int asked_as(const std::string& host) {
  return status_of("GET /read HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
}

int asked_by(const std::string& origin, const std::string& host = "localhost:8080") {
  return status_of("GET /read HTTP/1.1\r\nHost: " + host + "\r\nOrigin: " + origin + "\r\n\r\n");
}

std::string chunked(const std::string& chunks) {
  return kPost + "Transfer-Encoding: chunked\r\n\r\n" + chunks;
}

}  // namespace

TEST_CASE("a Content-Length is one plain number and excludes Transfer-Encoding") {
  CHECK(post("Content-Length: 0\r\n") == 200);
  CHECK(post("Content-Length: 1000\r\n") == 200);
  CHECK(post("Content-Length: 1001\r\n") == 413);
  CHECK(post("Content-Length: 5\r\nContent-Length: 5\r\n") == 200);
  CHECK(verdict(kPost + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n").message ==
        "there are two Content-Lengths that differ");
  for (const char* odd : {"abc", "-1", "+5", "5, 5", "5,", "0x5", "", "5 5", "99999999999999999999",
                          "18446744073709551617"}) {
    INFO(odd);
    Verdict read = verdict(kPost + "Content-Length: " + odd + "\r\n\r\n");
    CHECK(read.status == 400);
    CHECK(read.message == fmt::format("the Content-Length `{}` is not a number of bytes", odd));
  }
  for (const char* both : {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                           "Transfer-Encoding: gzip\r\nContent-Length: 5\r\n",
                           "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n"}) {
    INFO(both);
    Verdict read = verdict(kPost + both + "\r\n");
    CHECK(read.status == 400);
    CHECK(read.message == "Content-Length and Transfer-Encoding exclude each other");
  }
}

TEST_CASE("a body needs a known framing") {
  CHECK(post("") == 200);  // no body (RFC 9112, 6.3)
  CHECK(post("Transfer-Encoding: Chunked\r\n") == 200);
  for (const char* odd :
       {"gzip, chunked", "identity", "chunked, identity", "chunked;q=1", "x", "",
        "chunked\r\nTransfer-Encoding: chunked", "chunked\r\nTransfer-Encoding: gzip",
        "gzip\r\nTransfer-Encoding: chunked"}) {
    INFO(odd);
    CHECK(post(std::string("Transfer-Encoding: ") + odd + "\r\n") == 501);
  }
  CHECK(post("Content-Length: 5\r\nExpect: 100-continue\r\n") == 200);
  CHECK(post("Content-Length: 5\r\nExpect: tea\r\n") == 417);
  CHECK(status_of("POST /ask HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400);
  CHECK(status_of(kGet + "Content-Length: 5\r\n\r\n") == 400);
  CHECK(status_of(kGet + "Transfer-Encoding: chunked\r\n\r\n") == 400);
  CHECK(status_of(kGet + "Content-Length: 0\r\n\r\n") == 200);
}

TEST_CASE("the coding of the body is gzip, deflate or none") {
  auto coding = [](const std::string& fields) {
    Verdict read = verdict(kPost + "Content-Length: 1\r\n" + fields + "\r\nx");
    return read.status == 200 ? read.request.content_encoding : std::to_string(read.status);
  };
  CHECK(coding("") == "");
  CHECK(coding("Content-Encoding: Identity\r\n") == "");
  CHECK(coding("Content-Encoding: GZIP\r\n") == "gzip");
  CHECK(coding("Content-Encoding: x-gzip\r\n") == "gzip");
  CHECK(coding("content-encoding: deflate\r\n") == "deflate");
  CHECK(coding("Content-Encoding: br\r\n") == "415");
  CHECK(coding("Content-Encoding: gzip, gzip\r\n") == "415");
  CHECK(coding("Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n") == "415");
}

TEST_CASE("exactly one Host is needed, and it must not be an unknown domain") {
  CHECK(status_of("GET /read HTTP/1.1\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.0\r\n\r\n") == 200);
  CHECK(status_of(kGet + "Host: a\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n") == 400);
  for (const char* near : {"localhost", "LOCALHOST:8080", "127.0.0.1:80", "[::1]:80", "[::1]",
                           "10.0.0.7", "build-box", "a.localhost", "localhost.", "",
                           "models.example", "Models.Example:443", "models.example."}) {
    INFO(near);
    CHECK(asked_as(near) == 200);
  }
  for (const char* far :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil.example.", ".localhost.evil", "a.models.example", "models.example.evil"}) {
    INFO(far);
    CHECK(asked_as(far) == 403);
  }
  for (const char* odd : {"localhost:80:evil.example", "a b", "a@evil.example", "[::1", "[::1]x",
                          "a:b", "a:123456", "http://a", "a/b", "\xc3\xa4"}) {
    INFO(odd);
    CHECK(asked_as(odd) == 400);
  }
  CHECK(verdict("GET /read HTTP/1.1\r\nHost: evil.example\r\n\r\n").message ==
        "the Host `evil.example` is a domain: a service is asked as localhost, by its address, or "
        "by a name in its `hosts`");
}

TEST_CASE("a web page of another origin is rejected") {
  for (const char* own :
       {"http://localhost:8080", "HTTP://LOCALHOST:8080", "https://localhost:8080",
        "https://models.example", "http://models.example:3000"}) {
    INFO(own);
    CHECK(asked_by(own) == 200);
  }
  CHECK(asked_by("http://127.0.0.1", "127.0.0.1:80") == 200);
  CHECK(asked_by("https://a:443", "a") == 200);
  CHECK(asked_by("http://[::1]:80", "[::1]:80") == 200);
  for (const char* other :
       {"null", "", "http://localhost:3000", "http://localhost", "http://127.0.0.1:8080",
        "https://evil.example", "http://localhost:8080.evil.example", "http://localhost:8080/",
        "http://a@localhost:8080", "localhost:8080", "file://",
        "http://localhost:8080 http://evil.example", "https://b.models.example"}) {
    INFO(other);
    CHECK(asked_by(other) == 403);
  }
  CHECK(asked_by("http://", "") == 403);
  CHECK(status_of("GET /read HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n") == 403);
  CHECK(status_of(kGet + "Origin: http://a\r\nOrigin: http://a\r\n\r\n") == 400);
}

TEST_CASE("what a page of another site embeds is rejected, and its links are followed") {
  HttpRules rules = kRules;
  auto asked = [&](const std::string& fields) {
    return verdict("GET /read HTTP/1.1\r\nHost: a:8080\r\n" + fields + "\r\n", rules).status;
  };
  const std::string other = "Sec-Fetch-Site: cross-site\r\n";
  CHECK(asked(other + "Sec-Fetch-Mode: no-cors\r\n") == 200);  // of a name in `hosts`, maybe
  rules.hosts = {};
  CHECK(asked(other + "Sec-Fetch-Mode: no-cors\r\n") == 403);
  CHECK(asked(other) == 403);
  CHECK(asked(other + "Sec-Fetch-Mode: navigate\r\n") == 200);
  CHECK(asked(other + "Origin: http://a:8080\r\n") == 200);
  CHECK(asked(other + "Origin: http://b\r\n") == 403);
  for (const char* near : {"same-origin", "same-site", "none"}) {
    INFO(near);
    CHECK(asked("Sec-Fetch-Site: " + std::string(near) + "\r\n") == 200);
  }
}

TEST_CASE("a head has up to 256 fields") {
  auto asked = [](size_t fields) {
    std::string text = "GET /read HTTP/1.1\r\nHost: a\r\n";
    for (size_t i = 1; i < fields; i++) text += "a: b\r\n";
    return verdict(text + "\r\n");
  };
  CHECK(asked(kHeadFieldsMax).status == 200);
  Verdict refused = asked(kHeadFieldsMax + 1);
  CHECK(refused.status == 431);
  CHECK(refused.message == "the head has more than 256 fields");
}

TEST_CASE("a server with TLS takes web pages over https only") {
  HttpRules rules = kRules;
  auto asked = [&](const std::string& origin) {
    return verdict("GET /read HTTP/1.1\r\nHost: a:8443\r\nOrigin: " + origin + "\r\n\r\n", rules)
        .status;
  };
  CHECK(asked("ftp://a:8443") == 403);
  for (bool is_encrypted : {false, true}) {
    rules.is_encrypted = is_encrypted;
    CHECK(asked("https://a:8443") == 200);
    CHECK(asked("https://models.example") == 200);
    CHECK(asked("http://a:8443") == (is_encrypted ? 403 : 200));
    CHECK(asked("http://models.example") == (is_encrypted ? 403 : 200));
  }
}

TEST_CASE("a large or chunked body is given in parts while it arrives") {
  HttpRules rules{.body_max = 10,
                  .methods = [](std::string_view) { return kAnyMethod; },
                  .keeps_fields = true,
                  .streamed_above = 4};
  auto read = [&](const std::string& text, size_t part, std::optional<uint64_t>& length) {
    HttpRequestReader reader(rules);
    std::string body;
    bool has_head = false;
    for (size_t at = 0; at < text.size();) {
      size_t taken = reader.read(std::string_view(text).substr(at, part));
      at += taken;
      REQUIRE(reader.state() != State::failed);
      if (!has_head && reader.state() == State::body) {
        has_head = true;
        REQUIRE(reader.is_streamed());
        CHECK(text.substr(at - 4, 4) == "\r\n\r\n");  // not a byte of the body is taken
        CHECK(reader.take_head().target == "/a");
        length = reader.body_length();
      } else if (has_head) {
        body += reader.take_body();
      }
      if (reader.state() == State::whole) {
        CHECK(text.substr(at) == "GET");
        CHECK(reader.take().body.empty());
        CHECK(reader.state() == State::head);
        return body;
      }
    }
    FAIL("the request does not end");
    return body;
  };
  const std::string head = "PUT /a HTTP/1.1\r\nHost: a\r\n";
  for (size_t part : {1, 2, 3, 7, 1000}) {
    std::optional<uint64_t> length;
    CHECK(read(head + "Content-Length: 12\r\n\r\nabcdefghijklGET", part, length) == "abcdefghijkl");
    CHECK(length == 12);
    CHECK(read(head + "Transfer-Encoding: "
                      "chunked\r\n\r\n3\r\nabc\r\n9;x=\"y\"\r\ndefghijkl\r\n0\r\nT: t\r\n\r\nGET",
               part, length) == "abcdefghijkl");
    CHECK(length == std::nullopt);
  }
  // A small one is whole.
  CHECK(verdict(head + "Content-Length: 4\r\n\r\nabcd", rules).request.body == "abcd");
}

TEST_CASE("a quoted value of a chunk's extension ends in its line") {
  for (const char* good : {"1;a=\"b\"\r\nx\r\n0\r\n\r\n", "1;a=\"b\\\"\"\r\nx\r\n0\r\n\r\n"})
    CHECK(status_of(chunked(good)) == 200);
  for (const char* bad : {"1;a=\"\r\n", "1;a=\"b\r\nx\r\n0\r\n\r\n", "1\r\nx\r\n0;a=\"\r\n",
                          "1\r\nx\r\n0;a=\"b\\\"\r\n\r\n"}) {
    INFO(bad);
    CHECK(status_of(chunked(bad)) == 400);
  }
}

TEST_CASE("a path lists its methods") {
  HttpRequestReader reader(kRules);
  reader.read("BREW /ask HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
  REQUIRE(reader.state() == State::failed);
  CHECK(reader.error().status == 405);
  CHECK(reader.error().allow == "POST");
  CHECK(reader.error().message == "/ask supports POST, not BREW");
  CHECK(status_of("HEAD /read?x=1 HTTP/1.1\r\nHost: a\r\n\r\n") == 200);
  for (const char* method : {"get", "G", "ET", "EA", "HEADS", "GET,", "POST"}) {
    INFO(method);
    int expected = std::string_view(method).ends_with(',') ? 400 : 405;
    CHECK(status_of(std::string(method) + " /read HTTP/1.1\r\nHost: a\r\n\r\n") == expected);
  }
  CHECK(verdict("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n").message ==
        "there is no resource for GET /nowhere");
  CHECK(status_of("GET /" + std::string(kTargetBytesMax, 'a') + " HTTP/1.1\r\n\r\n") == 414);
  CHECK(status_of("GET /" + std::string(kTargetBytesMax - 1, 'a') + " HTTP/1.1\r\n\r\n") == 404);
}

TEST_CASE("the line syntax is strict") {
  for (const char* odd : {"GET /read", "GET", "GET  /read HTTP/1.1", "GET /read  HTTP/1.1",
                          "GET /read HTTP/1.1 ", "GET read HTTP/1.1", "GET /a b HTTP/1.1",
                          "GET /read HTTP", "GET /read h", "GET /read HTTP/1.1 HTTP/1.1",
                          "G(T /read HTTP/1.1", " GET /read HTTP/1.1", "GET\t/read HTTP/1.1",
                          "GET /re\x7f"
                          "ad HTTP/1.1",
                          "GET /read\r HTTP/1.1", "GET http://a/read HTTP/1.1", "GET * HTTP/1.1",
                          "GARBAGE", "\x16\x03\x01"}) {
    INFO(odd);
    Verdict read = verdict(std::string(odd) + "\r\nHost: a\r\n\r\n");
    CHECK(read.status == 400);
    CHECK(read.message == "the request line is not `METHOD /path HTTP/1.1`");
  }
  for (const char* version :
       {"HTTP/2.0", "HTTP/0.9", "HTTP/1.2", "HTTP/1.10", "HTTP/2", "HTTP/x"}) {
    INFO(version);
    CHECK(status_of(std::string("GET /read ") + version + "\r\nHost: a\r\n\r\n") == 505);
  }
  CHECK(verdict("GET /read HTTP/1.1\nHost: a\n\n").message == "lines end with CR LF");
  CHECK(verdict("GET /read HTTP/1.1\r\nHost: a\n").message == "lines end with CR LF");
  for (const char* odd :
       {"Host : a", "no colon", ": x", "A: b\rc", "A", "\rA: b", "(: b", "\xe4: b"}) {
    INFO(odd);
    Verdict read = verdict(kGet + odd + "\r\n\r\n");
    CHECK(read.status == 400);
    CHECK(read.message == fmt::format("the header `{}` is not `Name: value`", odd));
  }
  for (const char* odd : {" folded", "\tfolded", "A: b\r\n c", "A:\r\n\r\n c", "A: b\nc: d"}) {
    INFO(odd);
    bool ends = std::string_view(odd) == "A:\r\n\r\n c";  // the request ends before that space
    CHECK(status_of(kGet + odd + "\r\n\r\n") == (ends ? 200 : 400));
  }
  CHECK(status_of(kGet + "A: " + '\0' + "\r\n\r\n") == 400);
  CHECK(status_of(kGet + "A:\tb \r\nConnection:\r\n\r\n") == 200);
}

TEST_CASE("a head has at most 16 KiB") {
  std::string head = kGet + "A: ";
  std::string end = "\r\n\r\n";
  std::string fits = head + std::string(kHeadBytesMax - head.size() - end.size(), 'a') + end;
  CHECK(status_of(fits) == 200);
  Verdict larger = verdict(head + 'a' + fits.substr(head.size()));
  CHECK(larger.status == 431);
  CHECK(larger.message == "the head is larger than 16384 bytes");
  CHECK(status_of(std::string(kHeadBytesMax, 'a')) == 431);
  CHECK(verdict(std::string(kHeadBytesMax - 1, 'a')).state == State::head);
}

TEST_CASE("a few empty lines may come before a request, and they are not a part of it") {
  HttpRequestReader reader(kRules);
  CHECK(reader.read("\r\n\r") == 3);
  CHECK_FALSE(reader.has_begun());
  reader.end();
  CHECK(reader.state() == State::head);
  CHECK(reader.read("\nG") == 2);
  CHECK(reader.has_begun());
  CHECK(status_of("\r\n\r\n" + kGet + "\r\n") == 200);
  CHECK(status_of("\r" + kGet + "\r\n") == 400);
  CHECK(status_of("\n" + kGet + "\r\n") == 400);
  std::string lines;
  for (int i = 0; i < 8; i++) lines += "\r\n";
  CHECK(verdict(lines + kGet + "\r\n").state == State::whole);
  CHECK(verdict(lines + "\r\n").message == "more than 8 empty lines come before the request");
}

TEST_CASE("fields that may differ between two readers come once") {
  for (const char* name :
       {"Authorization", "X-Request-Timeout", "Content-Type", "Inference-Header-Content-Length"}) {
    std::string field = std::string(name) + ": 1\r\n";
    Verdict read = verdict(kPost + "Content-Length: 1\r\n" + field + field + "\r\nx");
    CHECK(read.status == 400);
    CHECK(read.message == std::string("there is more than one ") + name);
  }
  CHECK(status_of(kGet + "traceparent: 1\r\nTraceParent: 2\r\n\r\n") == 200);
}

TEST_CASE("the JSON at the begin of the body is a part of it") {
  auto json = [](const std::string& bytes, const std::string& rest) {
    return status_of(kPost + "Inference-Header-Content-Length: " + bytes + "\r\n" + rest);
  };
  CHECK(json("3", "Content-Length: 3\r\n\r\nabc") == 200);
  CHECK(json("4", "Content-Length: 3\r\n\r\n") == 400);
  CHECK(json("3", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n") == 200);
  CHECK(json("4", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n") == 400);
  for (const char* odd : {"", "-1", "x", "1.0", "9999999999999999999"})
    CHECK(json(odd, "Content-Length: 3\r\n\r\n") == 400);
  CHECK(status_of(kGet + "Inference-Header-Content-Length: 1\r\n\r\n") == 400);
  // Before it is decompressed nothing is known about the JSON of a compressed body.
  CHECK(json("4", "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc") == 200);
  CHECK(json("4",
             "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
             "0\r\n\r\n") == 200);
}

TEST_CASE("all that the server uses is read") {
  Verdict read = verdict(
      "POST /ask?a=1&b?c HTTP/1.1\r\nHost: localhost\r\nX-Client: x\r\nACCEPT-ENCODING: gzip\r\n"
      "content-type:  application/octet-stream \r\nX-Request-Timeout: 250ms\r\n"
      "traceparent: 00-ab-cd-01\r\nAuthorization: Bearer k\r\nAccept-Encoding:\r\n"
      "Accept-Encoding: br\r\nContent-Encoding: deflate\r\nInference-Header-Content-Length: "
      "2\r\nConnection: close\r\n"
      "Content-Length: 4\r\n\r\n{}\n\n" +
      kGet);
  HttpRequest expected;
  expected.method = "POST";
  expected.path = "/ask";
  expected.query = "a=1&b?c";
  expected.body = "{}\n\n";
  expected.close = true;
  expected.accept_encoding = "gzip, br";
  expected.content_encoding = "deflate";
  expected.timeout = "250ms";
  expected.json_bytes = 2;
  CHECK((read.request == expected));
  CHECK(read.rest == kGet);
}

TEST_CASE("a connection closes after a response if one side requests it") {
  auto closes = [](const std::string& text) {
    Verdict read = verdict(text);
    REQUIRE(read.state == State::whole);
    return read.request.close;
  };
  CHECK_FALSE(closes(kGet + "\r\n"));
  CHECK_FALSE(closes(kGet + "Connection: keep-alive\r\n\r\n"));
  CHECK(closes(kGet + "Connection: x, Close\r\n\r\n"));
  CHECK(closes(kGet + "Connection: keep-alive\r\nConnection: close\r\n\r\n"));
  CHECK(closes("GET /read HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  CHECK_FALSE(closes(kGet + "Connection: ,\r\n\r\n"));
  CHECK(verdict(kGet + "Connection: not close\r\n\r\n").message ==
        "the header `Connection: not close` is not a list of words");
}

TEST_CASE("chunks are joined to their body, and what follows stays") {
  Verdict read =
      verdict(chunked("3\r\nabc\r\nA;x=y ; z=\"q;\\\"\"\r\n0123456789\r\n00\r\nTrailer: t\r\n"
                      "X: y\r\n\r\nNEXT"));
  CHECK(read.state == State::whole);
  CHECK(read.request.body == "abc0123456789");
  CHECK(read.rest == "NEXT");
  CHECK(verdict(chunked("0\r\n\r\n")).state == State::whole);
}

TEST_CASE("trailers do not change a request") {
  Verdict read =
      verdict(chunked("1\r\na\r\n0\r\nAuthorization: k\r\nHost: evil.example\r\n"
                      "Connection: close\r\nX-Request-Timeout: 1\r\n\r\n"));
  CHECK(read.state == State::whole);
  CHECK(read.request.timeout.empty());
  CHECK_FALSE(read.request.close);
  CHECK(status_of(chunked("0\r\nContent-Length: 5\r\n\r\n")) == 400);
  CHECK(status_of(chunked("0\r\nTransfer-Encoding: chunked\r\n\r\n")) == 400);
}

TEST_CASE("malformed or oversized chunks are rejected before they are stored") {
  for (const char* odd :
       {"x\r\n", "-1\r\n", "\r\n", "0x3\r\nabc\r\n", "3\r\nabcd\r\n", "fffffffffffffffff\r\n",
        "1 2\r\n", " 1\r\n", "3\nabc", "3\r\nabc\n", "3;\r\n", "3;a=\r\n", "3;a=\"\x01\"\r\n",
        "3 \r\n", "0\r\nno colon\r\n\r\n", "0\r\nA: b\r\n c\r\n", "0\r\nA: b\n", "3\r\nabc\r\r\n",
        "+3\r\n"}) {
    INFO(odd);
    Verdict read = verdict(chunked(odd));
    CHECK(read.status == 400);
    CHECK(read.message == "the chunks of the body are broken");
  }
  CHECK(status_of(chunked(std::string(300, '1'))) == 400);
  CHECK(status_of(chunked("0\r\n" + std::string(300, 'a'))) == 400);
  CHECK(status_of(chunked("3e8\r\n")) == 200);
  CHECK(verdict(chunked("3e9\r\n")).message == "the body is larger than 1000 bytes");
  CHECK(status_of(chunked("3e7\r\n" + std::string(999, 'a') + "\r\n2\r\n")) == 413);
  CHECK(status_of(chunked("ffffffffffffffff\r\n")) == 413);
}

TEST_CASE("extensions and trailers are bounded") {
  auto repeated = [](const std::string& text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times; i++) all += text;
    return all;
  };
  const std::string trailer = "Trailer: " + std::string(91, 't') + "\r\n";
  CHECK(verdict(chunked("0\r\n" + repeated(trailer, 40) + "\r\n")).state == State::whole);
  CHECK(verdict(chunked("0\r\n" + repeated(trailer, 41) + "\r\n")).status == 400);
  // A chunk of this kind has 100 bytes too many.
  const std::string zeros = "1\r\na\r\n" + std::string(115, '0') + "1\r\na\r\n";
  CHECK(verdict(chunked(repeated(zeros, 40))).status == 200);
  CHECK(verdict(chunked(repeated(zeros, 41))).message ==
        "the heads of the chunks have more than 4096 bytes of extensions");
  CHECK(verdict(chunked(repeated("1\r\na\r\n", 1000) + "0\r\n\r\n")).state == State::whole);
}

TEST_CASE("pipelined requests are read one after another, however they are split") {
  const std::string text = kPost + "Content-Length: 3\r\n\r\nabc" + "\r\n" + kGet + "\r\n" +
                           chunked("2\r\nde\r\n1\r\nf\r\n0\r\n\r\n") + kGet + "\r\n";
  for (size_t part = 1; part <= text.size(); part++) {
    HttpRequestReader reader(kRules);
    std::string seen;
    for (size_t at = 0; at < text.size();) {
      at += reader.read(std::string_view(text).substr(at, part));
      REQUIRE(reader.state() != State::failed);
      if (reader.state() != State::whole) continue;
      CHECK(reader.read("GET") == 0);
      HttpRequest request = reader.take();
      CHECK(reader.state() == State::head);
      CHECK_FALSE(reader.has_begun());
      seen += request.method + request.path + request.body + " ";
    }
    CHECK(seen == "POST/askabc GET/read POST/askdef GET/read ");
  }
}

TEST_CASE("the state tells the server what to wait for") {
  HttpRequestReader reader(kRules);
  reader.read(kPost);
  CHECK(reader.state() == State::head);
  CHECK(reader.has_begun());
  reader.read("Expect: 100-continue\r\nContent-Length: 10\r\n\r\n");
  CHECK(reader.state() == State::body);
  CHECK(reader.expects_continue());
  CHECK(reader.body_bytes() == 10);
  reader.read("0123456789");
  CHECK(reader.state() == State::whole);
  reader.take();
  reader.read(chunked("4\r\nabcd\r\n"));
  CHECK(reader.state() == State::body);
  CHECK_FALSE(reader.expects_continue());
  CHECK(reader.body_bytes() == 4);
  HttpRequestReader old(kRules);
  old.read("POST /ask HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
  CHECK(old.state() == State::body);
  CHECK_FALSE(old.expects_continue());
}

TEST_CASE("a truncated request fails") {
  auto ended = [](const std::string& text) {
    HttpRequestReader reader(kRules);
    reader.read(text);
    reader.end();
    return reader.state() == State::failed ? reader.error().message : "";
  };
  CHECK(ended("").empty());
  CHECK(ended("GET /re") == "the request ends within its head");
  CHECK(ended(kPost + "Content-Length: 10\r\n\r\n{") == "the request ends within its body");
  CHECK(ended(chunked("3\r\nab")) == "the request ends within its body");
  CHECK(ended(kGet + "\r\n").empty());
  HttpRequestReader left(kRules);
  left.read(kPost + "Content-Length: 10\r\n\r\n{");
  left.end();
  CHECK(left.error().status == 499);
}

TEST_CASE("an error of a HEAD request has no body, also if its head is not whole") {
  auto is_head = [](const std::string& text) {
    HttpRequestReader reader(kRules);
    for (char byte : text) reader.read({&byte, 1});
    REQUIRE(reader.state() == State::failed);
    return reader.is_head();
  };
  CHECK(is_head("HEAD /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"));
  CHECK(is_head("HEAD /read HTTP/1.1\r\nHost: evil.example\r\n\r\n"));
  CHECK(is_head("HEAD /read HTTP/1.1\n"));
  CHECK(is_head("HEAD /" + std::string(kHeadBytesMax, 'a')));
  CHECK_FALSE(is_head("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"));
}

TEST_CASE("an announced body allocates as its bytes arrive") {
  HttpRules rules{64u << 20, methods_of, {}};
  HttpRequestReader reader(rules);
  reader.read(kPost + "Content-Length: 50000001\r\n\r\n");
  const std::string part(100'000, 'x');
  for (int i = 0; i < 500; i++) REQUIRE(reader.read(part) == part.size());
  REQUIRE(reader.state() == State::body);
  reader.read("y");
  REQUIRE(reader.state() == State::whole);
  HttpRequest request = reader.take();
  CHECK(request.body.size() == 50'000'001);
  CHECK(request.body.capacity() < 50'001'024);
  CHECK(request.body.capacity() >= request.body.size() + kBodyPadding);
  reader.read(kPost + "Content-Length: 50000001\r\n\r\nabc");
  CHECK(reader.body_bytes() == 50'000'001);
  CHECK(reader.body_capacity() < 100'000);
  for (int i = 0; i < 20; i++) reader.read(part);
  CHECK(reader.body_capacity() < 5'000'000);
}

TEST_CASE("a request for another server has any method and body, and keeps its fields") {
  const HttpRules rules{
      .body_max = 10,
      .methods =
          [](std::string_view path) {
            return path == "/metrics" ? std::string_view("GET") : kAnyMethod;
          },
      .authorize = [](std::string_view, std::string_view key) { return key == "Bearer k"; },
      .keeps_fields = true};
  auto asked = [&](const std::string& line, const std::string& rest) {
    return verdict(line + " HTTP/1.1\r\nHost: a\r\nauthorization: Bearer k\r\n" + rest, rules);
  };
  Verdict read =
      asked("GET /x?y=%20", "Content-Encoding: br\r\nContent-Length: 2\r\nA:  b \r\n\r\nhi");
  CHECK(read.state == State::whole);
  CHECK(read.request.target == "/x?y=%20");
  CHECK(read.request.body == "hi");
  CHECK((read.request.fields == std::vector<HttpField>{{"Host", "a"},
                                                       {"authorization", "Bearer k"},
                                                       {"Content-Encoding", "br"},
                                                       {"Content-Length", "2"},
                                                       {"A", "b"}}));
  CHECK(asked("POST /x", "\r\n").state == State::whole);
  CHECK(asked("BREW /x", "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n").request.body ==
        "a");
  CHECK(asked("PUT /x", "Content-Length: 11\r\n\r\n").status == 413);
  CHECK(asked("POST /metrics", "\r\n").status == 405);
  CHECK(asked("GET /x", "Origin: https://evil.example\r\n\r\n").status == 403);
  std::string elements;
  for (int i = 0; i < 64; i++) elements += ", a";
  CHECK(asked("GET /x", "Connection: , " + elements + "\r\n\r\n").state == State::whole);
  Verdict many = asked("GET /x", "Connection: b\r\nConnection: " + elements + "\r\n\r\n");
  CHECK(many.status == 400);
  CHECK(many.message == "`Connection` has more than 64 elements");
  CHECK(verdict("GET /x HTTP/1.1\r\nHost: a\r\n\r\n", rules).status == 401);
  CHECK(verdict("GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", rules).status == 403);
}
