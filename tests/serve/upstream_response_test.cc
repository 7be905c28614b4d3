// Responses of another server as bytes: where they end, what is read of them, and which are broken.
#include <catch2/catch.hpp>

#include "engine/serve/http/forwarded_fields.hpp"
#include "engine/serve/http/upstream_response.hpp"

using namespace flow;

namespace {

using ResponseState = UpstreamResponseReader::State;

/// What a reader says after a text, which arrives in parts.
struct Answer {
  ResponseState state = ResponseState::head;
  int status = 0;
  std::string body, error, fields, rest;
  bool keeps = false;
  bool operator==(const Answer&) const = default;
};

Answer read_answer(std::string_view text, bool is_head, bool ends, size_t part) {
  UpstreamResponseReader reader(is_head);
  Answer answer;
  size_t at = 0;
  auto is_open = [&] {
    return reader.state() == ResponseState::head || reader.state() == ResponseState::body;
  };
  while (at < text.size() && is_open()) {
    std::string_view bytes = text.substr(at, part);
    size_t taken = reader.read(bytes, answer.body);
    REQUIRE((taken == bytes.size() || !is_open()));
    at += taken;
  }
  if (ends && is_open()) reader.end();
  answer.state = reader.state();
  if (answer.state == ResponseState::failed) answer.error = reader.error();
  if (answer.state != ResponseState::whole) return answer;
  answer.status = reader.head().status;
  answer.fields = forwarded_fields(reader.head().fields);
  answer.keeps = reader.keeps_connection();
  answer.rest = text.substr(at);
  return answer;
}

/// The same for all ways to split `text`.
Answer answer(const std::string& text, bool is_head = false, bool ends = false) {
  Answer whole = read_answer(text, is_head, ends, text.size());
  for (size_t part : {1, 2, 3, 7}) {
    INFO(text.substr(0, 300) << " in parts of " << part);
    CHECK((read_answer(text, is_head, ends, part) == whole));
  }
  return whole;
}

std::string chunked(const std::string& lines) {
  return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + lines;
}

}  // namespace

TEST_CASE("an upstream's response ends by its length, its chunks, or its connection") {
  Answer length = answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP");
  CHECK((length == Answer{ResponseState::whole, 200, "abc", "", "", "HTTP", true}));
  Answer chunks = answer(chunked("3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nT: x\r\n\r\n"));
  CHECK((chunks == Answer{ResponseState::whole, 200, "abcdefg", "", "", "", true}));
  std::string open = "HTTP/1.1 200 \r\nA: b\r\n\r\nabc";
  CHECK(answer(open).state == ResponseState::body);
  CHECK((answer(open, false, true) ==
         Answer{ResponseState::whole, 200, "abc", "", "A: b\r\n", "", false}));
  for (const char* empty : {"204 No Content", "304 Not Modified"})
    CHECK(answer("HTTP/1.1 " + std::string(empty) + "\r\nContent-Length: 3\r\n\r\n").keeps);
  CHECK(answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true).keeps);
  CHECK(answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true).keeps);
  CHECK(answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").keeps);
}

TEST_CASE("a connection is used again only if the upstream keeps it") {
  auto keeps = [](const std::string& begin) {
    return answer("HTTP/1." + begin + "Content-Length: 0\r\n\r\n").keeps;
  };
  CHECK(keeps("1 200 OK\r\n"));
  CHECK_FALSE(keeps("1 200 OK\r\nConnection: x, Close\r\n"));
  CHECK_FALSE(keeps("0 200 OK\r\n"));
}

TEST_CASE("interim responses of an upstream are dropped") {
  Answer read = answer(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
  CHECK((read == Answer{ResponseState::whole, 200, "x", "", "", "", true}));
}

TEST_CASE("fields of an upstream's connection are dropped") {
  Answer read = answer(
      "HTTP/1.1 200 OK\r\nServer: a\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nkeep-alive: "
      "timeout=5\r\nProxy-Authenticate: b\r\nTrailer: T\r\nUpgrade: h2c\r\nSet-Cookie: "
      "a\r\nContent-Length: 0\r\nset-cookie: b\r\n\r\n");
  CHECK(read.fields == "Server: a\r\nSet-Cookie: a\r\nset-cookie: b\r\n");
}

TEST_CASE("a response may drop a limited number of fields") {
  auto with = [](int elements) {
    std::string list = ",, ,";
    for (int i = 0; i < elements; i++) list += " X-" + std::to_string(i) + ",";
    return answer("HTTP/1.1 200 OK\r\nX-62: 1\r\nA: b\r\nConnection: close\r\nConnection: " + list +
                  "\r\nContent-Length: 0\r\n\r\n");
  };
  CHECK(with(63).fields == "A: b\r\n");
  CHECK(with(64).error == "its Connection has too many elements");
}

TEST_CASE("a response with more than one reading is broken") {
  auto error = [](const std::string& fields) {
    return answer("HTTP/1.1 200 OK\r\n" + fields + "\r\n").error;
  };
  const std::string both = "it has both a Content-Length and a Transfer-Encoding";
  const std::string length = "its Content-Length is not one number of bytes";
  const std::string coding = "its Transfer-Encoding is not just `chunked`";
  const std::string head = "its head is not that of an HTTP/1.1 response";
  CHECK(error("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") == both);
  CHECK(error("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") == both);
  for (const char* odd : {"5, 5", "+5", "-1", "", "0x5", "99999999999999999999"})
    CHECK(error("Content-Length: " + std::string(odd) + "\r\n") == length);
  CHECK(error("Content-Length: 5\r\nContent-Length: 6\r\n") == length);
  CHECK(error("Transfer-Encoding: gzip, chunked\r\n") == coding);
  CHECK(error("Transfer-Encoding: identity\r\n") == coding);
  CHECK(error("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") == coding);
  CHECK(answer("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").error ==
        "HTTP/1.0 does not have Transfer-Encoding");
  for (const char* odd : {"A: b\nC: d\r\n", "A: b\r\n c\r\n", "A: b\rc\r\n", "A : b\r\n", "A\r\n"})
    CHECK(error(odd) == head);
  CHECK(error(std::string("A: b\0c\r\n", 8)) == head);
  for (const char* odd :
       {"HTTP/1.2 200 OK\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1  200\r\n\r\n"})
    CHECK(answer(odd).error == head);
  CHECK(answer("SSH-2.0").error == "it does not begin with `HTTP/1.`");
  CHECK(answer("HTTP/1.1 099 x\r\n\r\n").error == head);
  CHECK(answer("HTTP/1.1 101 x\r\n\r\n").error ==
        "it changes the protocol, which nobody asked for");
  std::string large = "HTTP/1.1 200 OK\r\nA: " + std::string(kUpstreamHeadMax, 'x') + "\r\n\r\n";
  CHECK(read_answer(large, false, false, 1000).error == "its head is larger than 65536 bytes");
}

TEST_CASE("a response that ends early is broken") {
  CHECK(answer("HTTP/1.1 200 OK\r\nA", false, true).error ==
        "the connection was closed before the end of its head");
  for (const char* part : {"", "3", "3\r\n", "3\r\nab", "3\r\nabc", "3\r\nabc\r\n", "0\r\n"})
    CHECK(answer(chunked(part), false, true).error == "the connection was closed within the body");
  CHECK(answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", false, true).error ==
        "the connection was closed within the body");
  for (const char* odd : {"x\r\n", "3\r\nabcd\r\n", "3\nabc", " 3\r\n", "-1\r\n",
                          "11111111111111111\r\n", "0\r\nT\r\n\r\n"})
    CHECK(answer(chunked(odd)).error == "the chunks of its body are broken");
}

TEST_CASE("a response may lack its reason") {
  for (const char* line : {"HTTP/1.1 207\r\n", "HTTP/1.1 207 \r\n", "HTTP/1.0 207\r\n"}) {
    INFO(line);
    Answer got = answer(std::string(line) + "Content-Length: 2\r\n\r\nok");
    CHECK(got.state == ResponseState::whole);
    CHECK(got.status == 207);
    CHECK(got.body == "ok");
  }
  CHECK(answer("HTTP/1.1 103\r\n\r\nHTTP/1.1 204\r\n\r\n").status == 204);
  for (const char* line : {"HTTP/1.1 20\r\n", "HTTP/1.1  20\r\n", "HTTP/1.1 2000\r\n",
                           "HTTP/1.1\r\n", "HTTP/1.1 20x\r\n", "HTTP/1.1 200\t\r\n"}) {
    INFO(line);
    CHECK(answer(std::string(line) + "Content-Length: 0\r\n\r\n").state == ResponseState::failed);
  }
}

TEST_CASE("a quote that does not end in the line of a chunk breaks the response") {
  CHECK(answer(chunked("1;a=\"b\"\r\nx\r\n0\r\n\r\n")).body == "x");
  CHECK(answer(chunked("1;a=\"b\r\nx\r\n0\r\n\r\n")).state == ResponseState::failed);
}
