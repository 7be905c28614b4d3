// A body with a Content-Encoding: it gives an error or at most as many bytes as permitted; what
// gzip writes is read again.
#include "engine/serve/http/gzip.hpp"

#include "flow/result.hpp"

namespace {

constexpr size_t kMax = 256 * 1024;

void decode(const char* encoding, std::string_view body) {
  const auto [out, error] = flow::decompress(encoding, body, kMax);
  if (error) {
    FLOW_CHECK((error->status == 400 || error->status == 413) && !error->message.empty());
    return;
  }
  FLOW_CHECK(out.size() <= kMax);
  flow::PlainBody same = flow::decompress(encoding, body, out.size());
  FLOW_CHECK(!same.error && same.bytes == out);
  FLOW_CHECK(out.empty() || flow::decompress(encoding, body, out.size() - 1).error);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  decode("gzip", text);
  decode("deflate", text);
  flow::PlainBody out = flow::decompress("gzip", flow::gzip(text), size);
  FLOW_CHECK(!out.error && out.bytes == text);
  FLOW_CHECK(!flow::accepts_gzip(text) || text.find_first_of("pP*") != std::string_view::npos);
  return 0;
}
