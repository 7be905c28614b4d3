#include "engine/base/log_bound.hpp"

#include <algorithm>
#include <utility>

#include "engine/base/size_units.hpp"

namespace flow {

std::optional<LogBound::Entry> LogBound::add(Entry entry, bool ends_line) {
  size_t size = entry.text.size() + 1;  // with its newline: empty lines count too
  is_over_ = is_over_ || head_bytes_ + size > head_max_;
  if (!is_over_) {
    head_bytes_ += size;
    return entry;
  }
  auto lines = static_cast<uint64_t>(std::count(entry.text.begin(), entry.text.end(), '\n'));
  tail_bytes_ += size;
  tail_.push_back({std::move(entry), lines + (ends_line ? 1 : 0)});
  while (tail_bytes_ > tail_max_ && tail_.size() > 1) {
    const TailEntry& oldest = tail_.front();
    size_t oldest_size = oldest.entry.text.size() + 1;
    dropped_lines_ += oldest.lines;
    dropped_bytes_ += oldest_size;
    tail_bytes_ -= oldest_size;
    tail_.pop_front();
  }
  return std::nullopt;
}

std::vector<LogBound::Entry> LogBound::finish() {
  std::vector<Entry> rest;
  if (dropped_bytes_ > 0)
    rest.push_back({0,
                    std::to_string(dropped_lines_) + " lines (" + format_bytes(dropped_bytes_) +
                        ") dropped here: of an attempt's log the first " + format_bytes(head_max_) +
                        " and the last " + format_bytes(tail_max_) + " are kept",
                    tail_.front().entry.at_ms});
  for (TailEntry& tail_entry : tail_) rest.push_back(std::move(tail_entry.entry));
  tail_.clear();
  tail_bytes_ = 0;
  dropped_lines_ = dropped_bytes_ = 0;
  return rest;
}

}  // namespace flow
