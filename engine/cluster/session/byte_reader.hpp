// Encodes and decodes the numbers and texts of a frame: fixed sizes, little-endian.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow::cluster {

template <typename T>
void put_number(std::string& out, T number) {
  for (size_t i = 0; i < sizeof(T); i++) out += static_cast<char>(number >> (8 * i));
}

/// At most 255 bytes.
inline void put_text(std::string& out, std::string_view text) {
  put_number(out, static_cast<uint8_t>(text.size()));
  out += text;
}

/// Decodes them. After a read beyond the end every result is zero and `failed` is true.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(size_t size) {
    if (size > rest_.size()) failed_ = true;
    if (failed_) return {};
    std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <typename T>
  T number() {
    T number = 0;
    std::string_view bytes = take(sizeof(T));
    for (size_t i = 0; i < bytes.size(); i++)
      number = static_cast<T>(number | T{static_cast<uint8_t>(bytes[i])} << (8 * i));
    return number;
  }
  std::string_view text() { return take(number<uint8_t>()); }
  bool failed() const { return failed_; }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace flow::cluster
