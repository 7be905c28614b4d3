// Batches of the journal: what decodes survives encoding and decoding.
#include "engine/store/checksum.hpp"
#include "tests/fuzz/small_plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  flow::seal(bytes);  // a correct checksum, so that the parser is reached
  auto records = flow::decode_records(bytes, flow::small_plan, flow::small_fragment);
  if (!records.ok()) return 0;
  std::string again = flow::encode_records(*records);
  auto back = flow::decode_records(again, flow::small_plan, flow::small_fragment);
  FLOW_CHECK(back.ok() && flow::encode_records(*back) == again);
  return 0;
}
