// An ordered set of units, one bit per unit: a million ready tasks take 128 KiB.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/types.hpp"

namespace flow::core {

class UnitSet {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  bool contains(UnitId unit) const {
    size_t word = unit / kBits;
    return word < words_.size() && (words_[word] >> unit % kBits & 1) != 0;
  }

  /// Returns false if the unit was in the set already.
  bool insert(UnitId unit) {
    if (contains(unit)) return false;
    size_t word = unit / kBits;
    if (word >= words_.size()) {
      words_.resize(word + 1);
      filled_.resize(word / kBits + 1);
    }
    words_[word] |= bit(unit);
    filled_[word / kBits] |= bit(word);
    if (count_ == 0 || unit < first_) first_ = unit;
    count_++;
    return true;
  }

  /// Returns false if the unit was not in the set.
  bool erase(UnitId unit) {
    if (!contains(unit)) return false;
    size_t word = unit / kBits;
    words_[word] &= ~bit(unit);
    if (words_[word] == 0) filled_[word / kBits] &= ~bit(word);
    count_--;
    if (unit == first_ && count_ > 0) first_ = after(unit);
    return true;
  }

  /// The lowest unit. The set must not be empty.
  UnitId first() const { return first_; }
  /// The lowest one above `unit`, or kNoNode.
  UnitId after(UnitId unit) const {
    size_t word = unit / kBits;
    if (word >= words_.size()) return kNoNode;
    if (uint64_t rest = words_[word] & above(unit); rest != 0) return at(word, rest);
    size_t group = word / kBits;
    uint64_t groups = filled_[group] & above(word);
    while (groups == 0) {
      if (++group == filled_.size()) return kNoNode;
      groups = filled_[group];
    }
    word = at(group, groups);
    return at(word, words_[word]);
  }

  /// Whether both hold the same units, whatever they held before.
  bool operator==(const UnitSet& other) const {
    if (count_ != other.count_) return false;
    UnitId unit = count_ > 0 ? first_ : kNoNode;
    for (; unit != kNoNode; unit = after(unit)) {
      if (!other.contains(unit)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kBits = 64;
  static uint64_t bit(size_t index) { return uint64_t{1} << index % kBits; }
  /// The bits of a word above the bit of `index`.
  static uint64_t above(size_t index) { return ~(bit(index) | (bit(index) - 1)); }
  /// The unit of the lowest bit of `bits` in the given word.
  static UnitId at(size_t word, uint64_t bits) {
    return static_cast<UnitId>(word * kBits + static_cast<size_t>(std::countr_zero(bits)));
  }

  std::vector<uint64_t> words_;   // one bit per unit
  std::vector<uint64_t> filled_;  // one bit per word of words_ that is not 0
  size_t count_ = 0;
  UnitId first_ = 0;
};

}  // namespace flow::core
