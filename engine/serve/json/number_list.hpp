// Lists of numbers, read by the vector instructions of the processor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace flow {

/// A vector begins at most this many characters before the number that it ends with.
constexpr std::ptrdiff_t kNumberReach = 33;

/// Where the numbers of a list go.
template <typename T>
struct NumberList {
  T* out;
  size_t room;
  /// Of integers: a value beyond them is left to the caller.
  int64_t min = static_cast<int64_t>(std::numeric_limits<T>::min());
  int64_t max = std::is_integral_v<T> ? static_cast<int64_t>(std::numeric_limits<T>::max()) : 0;
};

/// Reads the number at `at`, and those that follow it after a comma, into `list.out` and what is
/// behind it, adds them to `count` and returns the end of the last; null if it has read none. It
/// may stop anywhere: at the end of the list or the room, at a number that T cannot hold, at text
/// that is no number or has space before the comma, and when less than 64 characters are left. Each
/// value is that of read_json_number(). Precondition: kNumberReach characters before `at` can be
/// read, and those up to `end`.
template <typename T>
using ReadNumbers = const char* (*)(const char* at, const char* end, const NumberList<T>& list,
                                    size_t& count);

/// Of uint8_t, int32_t, int64_t, float, double. Null if the processor has no such instructions.
template <typename T>
ReadNumbers<T> vector_reader();

}  // namespace flow
