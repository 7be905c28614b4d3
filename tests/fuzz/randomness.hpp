// Replaces libsodium's random source in a fuzz target: an input must do the same each time.
#pragma once
#include <sodium.h>

#include <cstddef>
#include <cstdint>

namespace flow::fuzz {

inline uint64_t random_state = 0;

inline uint32_t next_random() {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(random_state >> 32);
}

inline void fill_random(void* data, size_t size) {
  for (size_t i = 0; i < size; i++)
    static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(next_random());
}

inline const char* random_name() { return "fuzz"; }

/// Call it once, before any randomness is used; returns true.
inline bool use_fixed_randomness() {
  static randombytes_implementation fixed{random_name, next_random, nullptr,
                                          nullptr,     fill_random, nullptr};
  return randombytes_set_implementation(&fixed) == 0;
}

}  // namespace flow::fuzz
