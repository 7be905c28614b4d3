// A hash table from cache keys to the units that hold them. It stores only the first bytes of each
// key: 12 bytes per entry, where a map of whole keys would need 64; a million ready tasks hold a
// million keys. Open addressing with linear probing; erasing closes the gap (Knuth, The Art of
// Computer Programming, 6.4, algorithm R).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/core/types.hpp"

namespace flow::core {

class KeyTable {
 public:
  using Holder = std::pair<uint32_t, UnitId>;  // run number, unit

  size_t size() const { return count_; }

  /// The holder of `key`, or null. `key_of` returns the whole key of a holder, because two keys may
  /// have the same first bytes.
  template <typename KeyOf>
  const Holder* find(const Digest& key, KeyOf&& key_of) const {
    if (slots_.empty()) return nullptr;
    uint32_t start = start_of(key);
    for (size_t at = home(start); !is_free(slots_[at]); at = next(at)) {
      const Slot& slot = slots_[at];
      if (slot.start == start && key_of(slot.holder) == key) return &slot.holder;
    }
    return nullptr;
  }

  /// The key must not have a holder.
  void insert(const Digest& key, Holder holder) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    put({start_of(key), holder});
    count_++;
  }

  /// Returns false if that unit does not hold the key.
  bool erase(const Digest& key, Holder holder) {
    if (slots_.empty()) return false;
    size_t hole = home(start_of(key));
    while (slots_[hole].holder != holder) {
      if (is_free(slots_[hole])) return false;
      hole = next(hole);
    }
    for (size_t at = next(hole); !is_free(slots_[at]); at = next(at)) {
      // The entry may move if its home is not between the hole and its slot.
      size_t from_home = (at - home(slots_[at].start)) & (slots_.size() - 1);
      size_t from_hole = (at - hole) & (slots_.size() - 1);
      if (from_home < from_hole) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = Slot{};
    count_--;
    return true;
  }

  void clear() { *this = {}; }

  /// All holders, sorted.
  std::vector<Holder> holders() const {
    std::vector<Holder> found;
    found.reserve(count_);
    for (const Slot& slot : slots_) {
      if (!is_free(slot)) found.push_back(slot.holder);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  static constexpr size_t kSlotsMin = 16;  // a power of two, as every size is
  struct Slot {
    uint32_t start = 0;  // the first bytes of the key
    Holder holder{0, kNoNode};
  };

  static bool is_free(const Slot& slot) { return slot.holder.second == kNoNode; }
  static uint32_t start_of(const Digest& key) {
    uint32_t start;
    std::memcpy(&start, key.bytes.data(), sizeof start);
    return start;
  }
  size_t home(uint32_t start) const { return start & (slots_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }

  void put(const Slot& slot) {
    size_t at = home(slot.start);
    while (!is_free(slots_[at])) at = next(at);
    slots_[at] = slot;
  }

  void grow() {
    std::vector<Slot> old(std::max(2 * slots_.size(), kSlotsMin));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (!is_free(slot)) put(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace flow::core
