// A table of short bytes by digest.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "flow/digest.hpp"

namespace flow {

/// Keeps up to `size_max` bytes for a digest, each in the one place that it has among `places`,
/// where a later one may replace it.
template <size_t places, size_t size_max>
class ShortBytes {
 public:
  /// "" where they are not there.
  std::string_view find(const Digest& digest) const {
    if (all_.empty()) return {};
    const Place& place = all_[DigestHash()(digest) % places];
    if (place.digest != digest) return {};
    return {place.bytes.data(), place.size};
  }
  /// False where they are too long.
  bool keep(const Digest& digest, std::string_view bytes) {
    if (bytes.size() > size_max) return false;
    if (all_.empty()) all_.resize(places);
    Place& place = all_[DigestHash()(digest) % places];
    place.digest = digest;
    place.size = static_cast<uint8_t>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), place.bytes.begin());
    return true;
  }

 private:
  static_assert(size_max <= UINT8_MAX);
  struct Place {
    Digest digest;
    uint8_t size = 0;
    std::array<char, size_max> bytes;
  };
  std::vector<Place> all_;
};

}  // namespace flow
