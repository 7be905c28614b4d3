// How much of an attempt's log is kept: its beginning as it arrives, its end once it is known, and
// the number of lines between the two that were dropped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

namespace flow {

class LogBound {
 public:
  struct Entry {
    uint32_t stream = 0;  // as the log row has it
    std::string text;     // one line or several, without the last newline
    int64_t at_ms = 0;
  };
  static constexpr size_t kHeadMax = 63 << 20, kTailMax = 1 << 20;  // bytes

  explicit LogBound(size_t head_max = kHeadMax, size_t tail_max = kTailMax)
      : head_max_(head_max), tail_max_(tail_max) {}

  /// The entry back if it belongs to the beginning and is to be logged now. Otherwise it is held as
  /// part of the end. `ends_line` is false for the first parts of a line that is logged in several.
  std::optional<Entry> add(Entry entry, bool ends_line = true);
  /// The kept end of the log, preceded by a note that counts the dropped lines if there are any.
  /// A second call returns nothing until add() is called again.
  std::vector<Entry> finish();

 private:
  struct TailEntry {
    Entry entry;
    uint64_t lines = 0;
  };
  size_t head_max_, tail_max_;
  size_t head_bytes_ = 0, tail_bytes_ = 0;
  bool is_over_ = false;       // the beginning is full
  std::list<TailEntry> tail_;  // bounded by tail_max_ bytes, or one entry
  uint64_t dropped_lines_ = 0, dropped_bytes_ = 0;
};

}  // namespace flow
