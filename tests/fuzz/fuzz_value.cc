// Bytes that decode equal the encoding of their value, and the JSON of every value can be read.
#include "flow/value.hpp"

#include "engine/value/cbor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool has_tag = flow::holds_tag(bytes);
  auto value = flow::decode_value(bytes);
  if (!value.ok()) return 0;
  FLOW_CHECK(flow::encode_value(*value) == bytes);
  FLOW_CHECK(*flow::decode_value(bytes) == *value);
  FLOW_CHECK(!flow::encode_value_for_key(*value).empty());
  std::vector<flow::Digest> blobs;
  flow::collect_blobs(*value, blobs);
  FLOW_CHECK(has_tag || (blobs.empty() && flow::encode_value_for_key(*value) == bytes));
  auto back = flow::from_json(flow::to_json(*value));
  // A `$map` nests deeper in JSON than its table does.
  FLOW_CHECK(back.ok() || back.error().message.find("nested deeper") != std::string::npos);
  return 0;
}
