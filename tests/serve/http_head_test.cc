// Heads and chunks as text: which are accepted, and the status of the rejected ones.
#include <catch2/catch.hpp>

#include "engine/serve/http_head.hpp"

using namespace flow;

namespace {

constexpr uint64_t kBodyMax = 1000;

std::string_view methods_of(std::string_view path) {
  if (path == "/read") return "GET, HEAD";
  return path == "/ask" ? "POST" : "";
}

std::variant<RequestHead, HttpError> verdict(const std::string& text) {
  return read_head(text, kBodyMax, methods_of);
}

int status_of(const std::string& text) {
  auto read = verdict(text);
  auto* error = std::get_if<HttpError>(&read);
  if (error == nullptr) return 200;
  CHECK_FALSE(error->message.empty());
  return error->status;
}

int post(const std::string& headers) {
  return status_of("POST /ask HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
}

int asked_as(const std::string& host) {
  return status_of("GET /read HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
}

std::pair<ChunkedDecoder::State, std::string> chunked(std::string in, std::string* rest = nullptr) {
  ChunkedDecoder chunks(kBodyMax);
  std::string body;
  ChunkedDecoder::State state = chunks.decode(in, body);
  if (rest != nullptr) *rest = in;
  return {state, body};
}

}  // namespace

TEST_CASE("a Content-Length is one plain number and excludes Transfer-Encoding") {
  CHECK(post("Content-Length: 0\r\n") == 200);
  CHECK(post("Content-Length: 1000\r\n") == 200);
  CHECK(post("Content-Length: 1001\r\n") == 413);
  CHECK(post("Content-Length: 5\r\nContent-Length: 5\r\n") == 200);
  CHECK(post("Content-Length: 5\r\nContent-Length: 6\r\n") == 400);
  for (const char* odd : {"abc", "-1", "+5", "5, 5", "0x5", "", "5 5", "99999999999999999999",
                          "18446744073709551617"}) {
    INFO(odd);
    CHECK(post(std::string("Content-Length: ") + odd + "\r\n") == 400);
  }
  CHECK(post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") == 400);
}

TEST_CASE("a body needs a known framing") {
  CHECK(post("") == 411);
  CHECK(post("Transfer-Encoding: Chunked\r\n") == 200);
  CHECK(post("Transfer-Encoding: gzip, chunked\r\n") == 501);
  CHECK(post("Transfer-Encoding: identity\r\n") == 501);
  CHECK(post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") == 501);
  CHECK(post("Content-Length: 5\r\nContent-Encoding: gzip\r\n") == 415);
  CHECK(post("Content-Length: 5\r\nExpect: 100-continue\r\n") == 200);
  CHECK(post("Content-Length: 5\r\nExpect: tea\r\n") == 417);
  CHECK(status_of("POST /ask HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n") == 200);
}

TEST_CASE("exactly one Host is needed, and it must not be a domain") {
  CHECK(status_of("GET /read HTTP/1.1\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.0\r\n\r\n") == 200);
  CHECK(status_of("GET /read HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n") == 400);
  for (const char* near : {"localhost", "LOCALHOST:8080", "127.0.0.1:80", "[::1]:80", "10.0.0.7",
                           "build-box", "a.localhost", "localhost.", ""}) {
    INFO(near);
    CHECK(asked_as(near) == 200);
  }
  for (const char* far : {"evil.example", "evil.example:8080", "127.0.0.1.evil.example",
                          "localhost.evil.example", "evil.example."}) {
    INFO(far);
    CHECK(asked_as(far) == 403);
  }
}

TEST_CASE("a path lists its methods") {
  auto read = verdict("BREW /ask HTTP/1.1\r\nHost: a\r\n\r\n");
  REQUIRE(std::holds_alternative<HttpError>(read));
  CHECK(std::get<HttpError>(read).status == 405);
  CHECK(std::get<HttpError>(read).allow == "POST");
  CHECK(std::get<HttpError>(read).message == "/ask supports POST, not BREW");
  CHECK(status_of("HEAD /read?x=1 HTTP/1.1\r\nHost: a\r\n\r\n") == 200);
  CHECK(status_of("get /read HTTP/1.1\r\nHost: a\r\n\r\n") == 405);
  CHECK(status_of("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n") == 404);
  CHECK(status_of("GET /" + std::string(kTargetBytesMax, 'a') + " HTTP/1.1\r\n\r\n") == 414);
}

TEST_CASE("the line syntax is strict") {
  CHECK(status_of("GET /read\r\n\r\n") == 400);
  CHECK(status_of("GET  /read HTTP/1.1\r\nHost: a\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/2.0\r\nHost: a\r\n\r\n") == 505);
  CHECK(status_of("GET read HTTP/1.1\r\nHost: a\r\n\r\n") == 400);
  CHECK(status_of("GET /read HTTP/1.1\nHost: a\n\n") == 400);
  for (const char* odd : {"Host : a", " folded", "no colon", ": x", "A: b\rc", "A: b\nc: d"}) {
    INFO(odd);
    CHECK(status_of(std::string("GET /read HTTP/1.1\r\nHost: a\r\n") + odd + "\r\n\r\n") == 400);
  }
  CHECK(status_of(std::string("GET /read HTTP/1.1\r\nHost: a\r\nA: ") + '\0' + "\r\n\r\n") == 400);
}

TEST_CASE("a connection closes after a response if one side requests it") {
  auto closes = [](const std::string& text) { return std::get<RequestHead>(verdict(text)).close; };
  CHECK_FALSE(closes("GET /read HTTP/1.1\r\nHost: a\r\n\r\n"));
  CHECK(closes("GET /read HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n"));
  CHECK(closes("GET /read HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST_CASE("chunks are joined to their body, however they are split") {
  const std::string text = "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\nNEXT";
  std::string rest;
  CHECK(chunked(text, &rest) ==
        std::pair(ChunkedDecoder::State::whole, std::string("abc0123456789")));
  CHECK(rest == "NEXT");
  ChunkedDecoder chunks(kBodyMax);
  std::string in, body;
  auto state = ChunkedDecoder::State::more;
  for (char c : text.substr(0, text.size() - 4)) {
    REQUIRE(state == ChunkedDecoder::State::more);
    in += c;
    state = chunks.decode(in, body);
  }
  CHECK(state == ChunkedDecoder::State::whole);
  CHECK(body == "abc0123456789");
}

TEST_CASE("malformed or oversized chunks are rejected before they are stored") {
  for (const char* odd : {"x\r\n", "-1\r\n", "\r\n", "0x3\r\nabc\r\n", "3\r\nabcd\r\n",
                          "fffffffffffffffff\r\n", "1 2\r\n"}) {
    INFO(odd);
    CHECK(chunked(odd).first == ChunkedDecoder::State::broken);
  }
  CHECK(chunked(std::string(300, '1')).first == ChunkedDecoder::State::broken);
  CHECK(chunked("0\r\n" + std::string(300, 'a')).first == ChunkedDecoder::State::broken);
  CHECK(chunked("3e8\r\n").first == ChunkedDecoder::State::more);
  CHECK(chunked("3e9\r\n").first == ChunkedDecoder::State::too_large);
  CHECK(chunked("3e7\r\n" + std::string(999, 'a') + "\r\n2\r\n").first ==
        ChunkedDecoder::State::too_large);
  CHECK(chunked("ffffffffffffffff\r\n").first == ChunkedDecoder::State::too_large);
}
