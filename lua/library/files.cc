// Reads whole files, decompressed if their first bytes are gzip's. The only file here that uses
// zlib's streams.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>

#include "engine/base/files.hpp"
#include "lua/state/arguments.hpp"

namespace flow::lua {
namespace {

constexpr uint64_t kInputMax = uint64_t{16} << 30;  // bytes of one file, decompressed
constexpr size_t kBlock = 256 * 1024;
constexpr int kGzip = 15 + 16;  // the largest window, with gzip's header

struct Inflater {
  z_stream stream{};
  bool ready = inflateInit2(&stream, kGzip) == Z_OK;
  Inflater() = default;
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream); }
};

Error broken(const char* why) {
  return user_error(fmt::format("its gzip data is broken: {}", why));
}

}  // namespace

Result<std::string> gunzip(std::string_view compressed, uint64_t size_max) {
  Inflater inflater;
  if (!inflater.ready) return environment_error("zlib can't be started: out of memory");
  z_stream& stream = inflater.stream;
  std::string out;
  for (;;) {  // a file may have several gzip members
    if (stream.avail_in == 0) {
      if (compressed.empty()) return broken("it is truncated");
      size_t part = std::min<size_t>(compressed.size(), 1u << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
      stream.avail_in = static_cast<uInt>(part);
      compressed.remove_prefix(part);
    }
    size_t before = out.size();
    out.resize(before + kBlock);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    stream.avail_out = kBlock;
    int code = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
    if (out.size() > size_max)
      return user_error(fmt::format("it unpacks to more than {} bytes", size_max));
    if (code == Z_STREAM_END) {
      if (stream.avail_in == 0 && compressed.empty()) return out;
      if (inflateReset(&stream) != Z_OK) return broken("a later gzip member cannot be read");
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      return broken(stream.msg != nullptr ? stream.msg : "unknown block");
    }
  }
}

std::string gzip(std::string_view content) {
  z_stream stream{};
  FLOW_CHECK(deflateInit2(&stream, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out;
  int code = Z_OK;
  while (code != Z_STREAM_END) {
    if (stream.avail_in == 0 && !content.empty()) {
      size_t part = std::min<size_t>(content.size(), 1u << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
      stream.avail_in = static_cast<uInt>(part);
      content.remove_prefix(part);
    }
    size_t before = out.size();
    out.resize(before + kBlock);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    stream.avail_out = kBlock;
    code = deflate(&stream, content.empty() ? Z_FINISH : Z_NO_FLUSH);
    FLOW_CHECK(code == Z_OK || code == Z_STREAM_END);
    out.resize(out.size() - stream.avail_out);
  }
  deflateEnd(&stream);
  return out;
}

Result<std::string> read_input(const std::string& path) {
  auto content = read_file(path, kInputMax);
  if (!content.ok()) return content;
  if (!content->starts_with("\x1f\x8b")) return content;
  auto unpacked = gunzip(*content, kInputMax);
  if (!unpacked.ok()) return user_error(fmt::format("{}: {}", path, unpacked.error().message));
  return unpacked;
}

}  // namespace flow::lua
