// A value as its canonical bytes (cbor.hpp), which take less memory than a Value.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/value/cbor_forms.hpp"
#include "flow/value.hpp"

namespace flow {

/// The arguments of most calls have a few bytes, which need no allocation.
class EncodedValue {
 public:
  EncodedValue() = default;  // nil
  EncodedValue(const Value& value);
  EncodedValue(const EncodedValue& other) : EncodedValue(other.bytes(), {}) {}
  EncodedValue(EncodedValue&& other) noexcept { swap(other); }
  EncodedValue& operator=(EncodedValue other) noexcept {
    swap(other);
    return *this;
  }
  ~EncodedValue();
  /// `bytes` must be as encode_value writes them; this is not checked.
  static EncodedValue of_bytes(std::string_view bytes) { return EncodedValue(bytes, {}); }

  std::string_view bytes() const;
  Value value() const;
  /// Whether it contains a tensor, a file or a ref.
  bool holds_tag() const;
  bool operator==(const EncodedValue& other) const { return bytes() == other.bytes(); }

 private:
  struct OfBytes {};
  EncodedValue(std::string_view bytes, OfBytes);
  void swap(EncodedValue& other) noexcept;
  char* allocated() const;

  static constexpr size_t kInlineMax = 15;
  static constexpr uint8_t kAllocated = 255;
  // The bytes, or the address and the size of allocated ones.
  alignas(char*) char inline_[kInlineMax] = {static_cast<char>(cbor::kUndefined)};
  uint8_t size_ = 1;  // or kAllocated
};
static_assert(sizeof(EncodedValue) == 16);

/// Calls `visit(node)` for every ref in the value, including duplicates.
template <typename Visit>
void for_each_ref(const EncodedValue& value, Visit&& visit) {
  std::string_view bytes = value.bytes();
  cbor::Head head;
  for (size_t at = 0; cbor::take_head(bytes, at, head);) {
    bool is_ref = head.major == cbor::kTag &&
                  (head.argument == cbor::kRefTag || head.argument == cbor::kPlacesRefTag);
    if (head.major == cbor::kBytes || head.major == cbor::kText) at += head.argument;
    if (!is_ref) continue;
    // The tag's list begins with the node.
    bool has_node = cbor::take_head(bytes, at, head) && cbor::take_head(bytes, at, head);
    if (has_node) visit(static_cast<uint32_t>(head.argument));
  }
}

}  // namespace flow
