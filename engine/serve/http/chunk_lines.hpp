// The lines of a chunked body that are not data: sizes and trailers. Boost.Beast accepts more than
// one reading of some when it gets them in parts, so it gets whole lines that are checked before.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace flow {

class ChunkLines {
 public:
  static constexpr size_t kExtensionsMax = 4 * 1024;  // bytes, in all heads of chunks of a body
  enum class State { incomplete, complete, broken };

  /// Reads `bytes` up to the end of a line, and returns how many it took.
  size_t read(std::string_view bytes);
  State state() const { return state_; }
  /// For state complete: the parser gets the end of a chunk's data together with the next size, and
  /// the last size together with all trailers. If it needs more lines, they are read after these.
  std::string_view text() const { return kept_; }
  /// Whether a parser that has text() may need another line: after the end of data, and after the
  /// size of the last chunk.
  bool may_continue() const;
  /// The parser has taken text(). False if the chunks so far have too many extensions.
  bool clear();
  /// The data of a chunk has ended: an empty line follows.
  void end_data() { is_after_data_ = true; }

 private:
  bool is_valid_framing(std::string_view line) const;

  std::string kept_;
  size_t line_ = 0;        // bytes of the current line, at the end of kept_
  size_t extensions_ = 0;  // bytes
  bool is_after_data_ = false;
  State state_ = State::incomplete;
};

}  // namespace flow
