// Whether a type represents a number exactly.
#pragma once
#include <cstdint>

namespace flow::lua {

/// Whether the type represents the integer exactly: `float` represents all up to 2^24.
template <typename Float>
constexpr bool is_exact(int64_t integer) {
  auto number = static_cast<Float>(integer);
  return number < Float{0x1p63} && static_cast<int64_t>(number) == integer;
}

}  // namespace flow::lua
