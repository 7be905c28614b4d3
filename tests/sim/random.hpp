// A small generator whose sequence is the same on every machine.
#pragma once
#include <cstdint>

namespace flow::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  uint32_t below(uint32_t n) { return n == 0 ? 0 : static_cast<uint32_t>(next() % n); }
  bool one_in(uint32_t n) { return n != 0 && below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace flow::sim
