#include "engine/serve/http/gzip.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "engine/serve/http/field_text.hpp"
#include "flow/result.hpp"

namespace flow {

namespace {

constexpr int kZlib = 15;  // bits of the window, which select the format
constexpr int kGzip = kZlib + 16;
constexpr int kMemory = 8;  // zlib's default
// zlib's default, level 6, takes 6 times as long for tensors in JSON, and saves 7 percent.
constexpr int kLevel = Z_BEST_SPEED;
constexpr char kGzipBegin = 0x1f;
constexpr size_t kStep = 64 * 1024;  // bytes that zlib gives at a time

/// Whether `text`, what follows a coding, has a weight above 0: nothing or `q=0.5`.
bool is_positive(std::string_view text) {
  if (text.empty()) return true;
  if (!equal_names(text.substr(0, 2), "q=")) return false;
  text.remove_prefix(2);
  bool is_number = !text.empty() && text.size() <= 5 && (text[0] == '0' || text[0] == '1') &&
                   (text.size() == 1 || text[1] == '.') &&
                   text.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_number && text.find_first_of("123456789") != std::string_view::npos;
}

/// Gives zlib the next bytes of `in`, at most 1 GiB: it counts 32 bits. Whether there are any.
bool feed(z_stream& stream, std::string_view& in) {
  if (stream.avail_in > 0) return true;
  std::string_view next = in.substr(0, 1u << 30);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next.data()));
  stream.avail_in = static_cast<uInt>(next.size());
  in.remove_prefix(next.size());
  return !next.empty();
}

/// Calls `step` of zlib with place for the next bytes of output. Its state, and these bytes.
template <typename Step>
std::pair<int, std::string_view> next_part(z_stream& stream, char (&part)[kStep], Step step) {
  stream.next_out = reinterpret_cast<Bytef*>(part);
  stream.avail_out = sizeof part;
  int state = step();
  return {state, {part, sizeof part - stream.avail_out}};
}

PlainBody rejected(int status, std::string message) {
  return {{}, HttpError{status, std::move(message)}};
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  bool others = false;  // the element `*`
  while (!accept_encoding.empty()) {
    std::string_view element = next_element(accept_encoding);
    std::string_view coding = element.substr(0, element.find(';'));
    std::string_view weight = element.substr(std::min(coding.size() + 1, element.size()));
    coding = without_blanks(coding);
    bool is_accepted = is_positive(without_blanks(weight));
    if (equal_names(coding, "gzip") || equal_names(coding, "x-gzip")) return is_accepted;
    if (coding == "*") others = is_accepted;
  }
  return others;
}

std::string gzip(std::string_view body) {
  z_stream stream{};
  FLOW_CHECK(deflateInit2(&stream, kLevel, Z_DEFLATED, kGzip, kMemory, Z_DEFAULT_STRATEGY) == Z_OK);
  std::unique_ptr<z_stream, decltype(&deflateEnd)> owner(&stream, deflateEnd);
  std::string out;
  char part[kStep];
  for (int state = Z_OK; state != Z_STREAM_END;) {
    feed(stream, body);
    std::string_view got;
    std::tie(state, got) = next_part(
        stream, part, [&] { return deflate(&stream, body.empty() ? Z_FINISH : Z_NO_FLUSH); });
    FLOW_CHECK(state == Z_OK || state == Z_STREAM_END);
    out += got;
  }
  return out;
}

PlainBody decompress(std::string_view encoding, std::string_view body, size_t bytes_max) {
  const bool is_gzip = encoding == "gzip";
  FLOW_CHECK(is_gzip || encoding == "deflate");
  z_stream stream{};
  FLOW_CHECK(inflateInit2(&stream, is_gzip ? kGzip : kZlib) == Z_OK);
  std::unique_ptr<z_stream, decltype(&inflateEnd)> owner(&stream, inflateEnd);
  std::string out;
  char part[kStep];
  while (true) {
    feed(stream, body);
    auto [state, got] = next_part(stream, part, [&] { return inflate(&stream, Z_NO_FLUSH); });
    if (got.size() > bytes_max - out.size())
      return rejected(
          413,
          fmt::format("the body is larger than {} bytes after its Content-Encoding `{}` is undone",
                      bytes_max, encoding));
    out += got;
    if (state == Z_OK) continue;
    if (state == Z_BUF_ERROR)
      return rejected(400,
                      fmt::format("the body ends before its Content-Encoding `{}` does", encoding));
    if (state != Z_STREAM_END)
      return rejected(400,
                      fmt::format("the body is not of its Content-Encoding `{}`: {}", encoding,
                                  stream.msg == nullptr ? "it needs a dictionary" : stream.msg));
    if (!feed(stream, body)) return {std::move(out)};
    // A gzip file may have several members, one after another (RFC 1952).
    if (!is_gzip || *stream.next_in != kGzipBegin)
      return rejected(
          400, fmt::format("other bytes follow the end of the Content-Encoding `{}` in the body",
                           encoding));
    FLOW_CHECK(inflateReset(&stream) == Z_OK);
  }
}

}  // namespace flow
