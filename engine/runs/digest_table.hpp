// A table of short bytes by digest.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "flow/digest.hpp"

namespace flow {

/// A cache of up to `size_max` bytes per digest. Each digest has one cell; a later entry may
/// replace it.
template <size_t cells, size_t size_max>
class DigestTable {
 public:
  /// The bytes of the digest, or "".
  std::string_view find(const Digest& digest) const {
    if (cells_.empty()) return {};
    const Cell& cell = cells_[DigestHash()(digest) % cells];
    if (cell.digest != digest) return {};
    return {cell.bytes.data(), cell.size};
  }
  /// Returns false if the bytes are too long.
  bool put(const Digest& digest, std::string_view bytes) {
    if (bytes.size() > size_max) return false;
    if (cells_.empty()) cells_.resize(cells);
    Cell& cell = cells_[DigestHash()(digest) % cells];
    cell.digest = digest;
    cell.size = static_cast<uint8_t>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), cell.bytes.begin());
    return true;
  }

 private:
  static_assert(size_max <= UINT8_MAX);
  struct Cell {
    Digest digest;
    uint8_t size = 0;
    std::array<char, size_max> bytes;
  };
  std::vector<Cell> cells_;
};

}  // namespace flow
