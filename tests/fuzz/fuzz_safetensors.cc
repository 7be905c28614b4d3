// Foreign safetensors files: tensors have the bytes that their shapes need, without gaps up to the
// file's end, and survive writing of the header.
#include "engine/blobs/safetensors.hpp"

namespace {

using namespace flow;

bool same(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  if (a.tensors.size() != b.tensors.size() || a.metadata != b.metadata) return false;
  for (size_t i = 0; i < a.tensors.size(); i++) {
    const SafetensorsEntry &x = a.tensors[i], &y = b.tensors[i];
    if (x.name != y.name || x.dtype != y.dtype || x.shape != y.shape) return false;
    if (x.begin != y.begin || x.end != y.end) return false;
  }
  return true;
}

void check(std::string_view text, uint64_t size) {
  auto header = read_safetensors(text, size);
  if (!header.ok()) {
    FLOW_CHECK(!header.error().message.empty());
    return;
  }
  bool has_foreign = false;
  uint64_t at = header->tensors.empty() ? size : header->tensors.front().begin;
  for (const SafetensorsEntry& tensor : header->tensors) {
    FLOW_CHECK(tensor.begin == at && tensor.end >= tensor.begin && tensor.end <= size);
    at = tensor.end;
    has_foreign = has_foreign || !tensor.foreign_type.empty();
    if (!tensor.foreign_type.empty()) continue;
    uint64_t bytes = dtype_size(tensor.dtype);
    for (int64_t length : tensor.shape) bytes *= static_cast<uint64_t>(length);
    FLOW_CHECK(tensor.end - tensor.begin == bytes);
  }
  FLOW_CHECK(at == size);
  if (has_foreign) return;  // no such file is written
  SafetensorsHeader again = *header;
  auto written = lay_out_safetensors(again);
  FLOW_CHECK(written.ok());
  uint64_t data = at - (header->tensors.empty() ? at : header->tensors.front().begin);
  auto back = read_safetensors(*written, written->size() + data);
  FLOW_CHECK(back.ok() && same(*back, again));
  auto twice = lay_out_safetensors(*back);
  FLOW_CHECK(twice.ok() && *twice == *written);
}

}  // namespace

// As a file; and, because valid lengths are rare in random input, as the header of a file without
// data.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, size);
  if (size < 2) return 0;
  std::string file;
  for (size_t i = 0; i < 8; i++) file += static_cast<char>((size - 2) >> (8 * i) & 0xFF);
  file += text.substr(2);
  check(file, file.size() + data[0] + 256u * data[1]);
  return 0;
}
