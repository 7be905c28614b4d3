// A stored plan that decodes is encoded to exactly the same bytes.
#include "engine/plan/plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto decoded = flow::decode_plan(bytes);
  if (!decoded.ok()) return 0;
  FLOW_CHECK(flow::encode_plan(*decoded) == bytes);
  flow::check_plan(*decoded);
  for (const flow::TaskNode& node : decoded->nodes) flow::data_dependencies(node);
  return 0;
}
