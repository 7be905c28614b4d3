// SHA-256, the name of every blob.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace flow {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const Digest&) const = default;
  bool is_zero() const { return *this == Digest{}; }
  std::string hex() const;         // 64 lower-case digits
  std::string_view view() const {  // the 32 raw bytes
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static bool parse_hex(std::string_view hex, Digest& out);
  static bool from_bytes(std::string_view raw, Digest& out);  // exactly 32 bytes
};

struct DigestHash {
  size_t operator()(const Digest& d) const {
    size_t h;
    std::memcpy(&h, d.bytes.data(), sizeof h);
    return h;
  }
};

Digest sha256(std::string_view data);

/// Incremental SHA-256. One thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(std::string_view data);
  Digest finish();  // once

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow
