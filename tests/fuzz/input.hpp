// A fuzzer's bytes, read one after the other; after their end, zeros and empty texts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace flow::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool is_empty() const { return at_ == end_; }
  uint8_t byte() { return is_empty() ? uint8_t{0} : *at_++; }
  std::string bytes(size_t size) {
    std::string taken;
    while (taken.size() < size && !is_empty()) taken += static_cast<char>(byte());
    return taken;
  }
  /// An integer of `bytes` bytes, or of as many as the next byte says, 0 to 8; most significant
  /// first.
  uint64_t number() { return number(byte() % 9); }
  uint64_t number(int count) {
    uint64_t number = 0;
    for (; count > 0; count--) number = number << 8 | byte();
    return number;
  }

 private:
  const uint8_t *at_, *end_;
};

}  // namespace flow::fuzz
