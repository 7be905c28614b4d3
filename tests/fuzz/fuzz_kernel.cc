// Kernel signatures, which survive printing; and entries of the cache of compiled kernels, which
// are complete or rejected.
#include <optional>

#include "kernels/jit/cache.hpp"
#include "kernels/jit/signature.hpp"
#include "kernels/jit/source.hpp"

namespace {

using namespace flow;
using namespace flow::jit;

void check_signature(std::string_view text) {
  auto signature = parse_signature(text);
  if (!signature.ok()) {
    FLOW_CHECK(!signature.error().message.empty());
    return;
  }
  std::string written = text_of(*signature);
  auto back = parse_signature(written);
  FLOW_CHECK(back.ok() && text_of(*back) == written);
  FLOW_CHECK(back->parameters.size() == signature->parameters.size());
  for (const KernelParameter& each : signature->parameters) {
    FLOW_CHECK(each.of < static_cast<int>(signature->parameters.size()));
    if (each.role == ParameterRole::size)
      FLOW_CHECK(each.of >= 0 && signature->parameters[static_cast<size_t>(each.of)].is_tensor());
  }
  KernelSource source;
  source.name = std::string("f");
  source.signature = std::move(*signature);
  FLOW_CHECK(!compiler_text(source).empty());
}

void check_image(std::string_view bytes) {
  Digest key = sha256("key");
  if (auto image = decode_image(key, bytes)) FLOW_CHECK(encode_image(key, *image) == bytes);
}

// With a correct checksum of these bytes, so that the parser is reached.
void check_summed(std::string_view bytes) {
  std::string whole("flow-kernel\1", 12);
  whole += sha256("key").view();
  whole += bytes;
  whole += sha256(whole).view();
  check_image(whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  check_signature(text);
  check_image(text);
  check_summed(text);
  KernelSource source;
  source.name = std::string("f");
  source.signature = *parse_signature("x: inout f32");
  FLOW_CHECK(error_text(source, std::string(text)).size() < (16u << 10) + 3 * size);
  (void)check_option(std::string(text));
  (void)check_includes(text);
  return 0;
}
