// JSON that is read survives printing, and its value survives its canonical bytes.
#include "flow/value.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto value = flow::from_json({reinterpret_cast<const char*>(data), size});
  if (!value.ok()) return 0;
  auto decoded = flow::decode_value(flow::encode_value(*value));
  FLOW_CHECK(decoded.ok() && *decoded == *value);
  for (int indent : {-1, 1}) {
    auto back = flow::from_json(flow::to_json(*value, indent));
    // A `$map` nests deeper in JSON than its table does.
    if (!back.ok()) FLOW_CHECK(back.error().message.find("nested deeper") != std::string::npos);
    if (back.ok()) FLOW_CHECK(*back == *value);
  }
  return 0;
}
