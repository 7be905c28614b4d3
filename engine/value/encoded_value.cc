#include "engine/value/encoded_value.hpp"

#include <cstring>
#include <utility>

#include "engine/value/cbor.hpp"

namespace flow {

EncodedValue::EncodedValue(const Value& value) : EncodedValue(encode_value(value), {}) {}

EncodedValue::EncodedValue(std::string_view bytes, OfBytes) {
  FLOW_CHECK(bytes.size() <= UINT32_MAX);
  if (bytes.size() <= kInlineMax) {
    std::memcpy(inline_, bytes.data(), bytes.size());
    size_ = static_cast<uint8_t>(bytes.size());
    return;
  }
  char* copy = new char[bytes.size()];
  auto size = static_cast<uint32_t>(bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  std::memcpy(inline_, &copy, sizeof copy);
  std::memcpy(inline_ + sizeof copy, &size, sizeof size);
  size_ = kAllocated;
}

EncodedValue::~EncodedValue() {
  if (size_ == kAllocated) delete[] allocated();
}

void EncodedValue::swap(EncodedValue& other) noexcept {
  std::swap(inline_, other.inline_);
  std::swap(size_, other.size_);
}

char* EncodedValue::allocated() const {
  char* at = nullptr;
  std::memcpy(&at, inline_, sizeof at);
  return at;
}

std::string_view EncodedValue::bytes() const {
  if (size_ != kAllocated) return {inline_, size_};
  uint32_t size = 0;
  std::memcpy(&size, inline_ + sizeof(char*), sizeof size);
  return {allocated(), size};
}

Value EncodedValue::value() const {
  auto decoded = decode_value(bytes());
  FLOW_CHECK(decoded.ok());
  return std::move(*decoded);
}

bool EncodedValue::holds_tag() const { return flow::holds_tag(bytes()); }

}  // namespace flow
