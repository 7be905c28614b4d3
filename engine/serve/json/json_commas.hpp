// Where the commas of JSON text are. A reader of numbers that knows them need not wait for the end
// of one number to begin the next, so that the processor reads several at once.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "engine/serve/json/json_block.hpp"

namespace flow {

class JsonCommas {
 public:
  /// Of a text that ends there.
  explicit JsonCommas(const char* end) : end_(end) {}

  /// The first comma from `at` on; null if it is far away or not known. `at` must not be before the
  /// `at` of an earlier call.
  const char* next(const char* at) {
    while (commas_ != 0) {
      const char* comma = begin_ + std::countr_zero(commas_);
      commas_ &= commas_ - 1;
      if (comma >= at) return comma;
    }
    if (end_ - at < kJsonBlock) return nullptr;
    begin_ = at;
    commas_ = find_in_block(at, ',');
    if (commas_ == 0) return nullptr;
    const char* comma = begin_ + std::countr_zero(commas_);
    commas_ &= commas_ - 1;
    return comma;
  }

 private:
  const char* const end_;
  const char* begin_ = nullptr;
  uint64_t commas_ = 0;  // from begin_ on
};

}  // namespace flow
