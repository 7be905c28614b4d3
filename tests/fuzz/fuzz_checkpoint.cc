// The database row of a checkpoint: what decodes survives encoding and decoding.
#include "engine/blobs/checkpoint.hpp"
#include "engine/value/cbor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto row = flow::decode_checkpoint_row({reinterpret_cast<const char*>(data), size});
  if (!row.ok()) return 0;
  std::string again = flow::encode_checkpoint_row(*row, flow::Value::list({}));
  auto back = flow::decode_checkpoint_row(again);
  FLOW_CHECK(back.ok() && back->file == row->file && back->digest == row->digest);
  FLOW_CHECK(back->state.has_value() == row->state.has_value());
  if (row->state) FLOW_CHECK(flow::encode_value(*back->state) == flow::encode_value(*row->state));
  return 0;
}
