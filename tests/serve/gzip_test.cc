// Bodies with a Content-Encoding: what is written is read again, and what is damaged is an error.
#include <zlib.h>

#include <catch2/catch.hpp>

#include "engine/serve/http/gzip.hpp"

using namespace flow;
using Catch::Contains;

namespace {

constexpr size_t kMax = 1 << 20;

/// In zlib's format.
std::string deflated(const std::string& body) {
  uLongf size = compressBound(body.size());
  std::string out(size, 0);
  REQUIRE(compress(reinterpret_cast<Bytef*>(out.data()), &size,
                   reinterpret_cast<const Bytef*>(body.data()), body.size()) == Z_OK);
  out.resize(size);
  return out;
}

std::string numbers(int count) {
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < count; i++)
    text += std::to_string(state = state * 1664525 + 1013904223) + ",";
  return text;
}

std::string decoded(const std::string& encoding, const std::string& body, size_t bytes_max = kMax) {
  PlainBody out = decompress(encoding, body, bytes_max);
  if (!out.error) return out.bytes;
  bool is_large = out.error->message.find("is larger than") != std::string::npos;
  CHECK(out.error->status == (is_large ? 413 : 400));
  return "error: " + out.error->message;
}

}  // namespace

TEST_CASE("what gzip writes is read again") {
  for (const std::string& body :
       {std::string(), std::string("a"), numbers(10), numbers(60'000), std::string(kMax, '\0')}) {
    CHECK((decoded("gzip", gzip(body)) == body));
    CHECK((decoded("deflate", deflated(body)) == body));
  }
  CHECK(gzip(numbers(60'000)).size() < numbers(60'000).size() * 6 / 10);
}

TEST_CASE("the members of a gzip body are joined") {
  CHECK(decoded("gzip", gzip("one ") + gzip("") + gzip("two")) == "one two");
  CHECK_THAT(decoded("gzip", gzip("one") + "x"), Contains("other bytes follow"));
  CHECK_THAT(decoded("gzip", gzip("one") + '\0'), Contains("other bytes follow"));
  CHECK_THAT(decoded("gzip", gzip("one") + "\x1f"), Contains("ends before"));
  CHECK_THAT(decoded("gzip", gzip("one") + "\x1fx"), Contains("incorrect header"));
  CHECK_THAT(decoded("deflate", deflated("one") + deflated("two")), Contains("other bytes follow"));
}

TEST_CASE("a body that ends early is an error") {
  const std::string body = numbers(20), packed = gzip(body), zlib = deflated(body);
  for (size_t size = 0; size < packed.size(); size++)
    CHECK_THAT(decoded("gzip", packed.substr(0, size)), Contains("ends before"));
  for (size_t size = 0; size < zlib.size(); size++)
    CHECK_THAT(decoded("deflate", zlib.substr(0, size)), Contains("ends before"));
}

TEST_CASE("a damaged body is an error") {
  const std::string body = numbers(20), packed = gzip(body);
  for (size_t at = 0; at < packed.size(); at++) {
    INFO("byte " << at);
    std::string damaged = packed;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    std::string out = decoded("gzip", damaged);
    // Time, level and system are not protected.
    if (at >= 4 && at <= 9)
      CHECK(out == body);
    else
      CHECK_THAT(out, Catch::StartsWith("error: "));
  }
  CHECK_THAT(decoded("gzip", deflated(body)), Contains("incorrect header"));
  CHECK_THAT(decoded("deflate", packed), Contains("incorrect header"));
  CHECK_THAT(decoded("deflate", "{\"inputs\":[]}"),
             Contains("the body is not of its Content-Encoding `deflate`"));
  CHECK_THAT(decoded("deflate", std::string("\x78\xbb\1\2\3\4\5\6", 8)), Contains("dictionary"));
}

TEST_CASE("the output is bounded") {
  const std::string packed = gzip(std::string(1000, 'a'));
  CHECK(decoded("gzip", packed, 1000) == std::string(1000, 'a'));
  CHECK(decoded("gzip", packed, 999) ==
        "error: the body is larger than 999 bytes after its Content-Encoding `gzip` is undone");
  CHECK_THAT(decoded("gzip", packed + packed, 1999), Contains("larger than 1999"));
  CHECK(decoded("gzip", gzip(""), 0).empty());
  CHECK_THAT(decoded("gzip", gzip("a"), 0), Contains("larger than 0"));
}

TEST_CASE("a bomb stops at the bound") {
  // 1 GiB of zeros, as 1024 members. The second bound is larger than one of them.
  const std::string packed = gzip(std::string(1 << 20, '\0'));
  std::string bomb;
  for (int i = 0; i < 1024; i++) bomb += packed;
  CHECK(bomb.size() < 8 << 20);
  CHECK_THAT(decoded("gzip", bomb, 1000), Contains("larger than 1000 bytes"));
  CHECK_THAT(decoded("gzip", bomb, 3 << 20), Contains("larger than 3145728 bytes"));
}

TEST_CASE("a client accepts gzip if a list names it or everything") {
  for (const char* list : {"gzip", "GZip", "br, gzip", "deflate,gzip;q=1.0", "gzip;q=0.001",
                           "gzip ; q=1", "*", "x-gzip", "br;q=1, *;q=0.1", ",gzip", "gzip;Q=0.5",
                           "*;q=0, gzip", "identity;q=1, gzip;q=0.5"}) {
    INFO(list);
    CHECK(accepts_gzip(list));
  }
  for (const char* list : {"", "br", "identity", "gzip;q=0", "gzip;q=0.000", "*;q=0", "gzip;q=0, *",
                           "*, gzip;q=0", "gzipped", "gzi", "br;gzip", "gzip;q=", "gzip;q=2",
                           "gzip;q=x", "gzip;level=9", "gzip;q=0.0001"}) {
    INFO(list);
    CHECK_FALSE(accepts_gzip(list));
  }
}
