#include "engine/serve/http/chunk_lines.hpp"

#include <algorithm>

#include "engine/serve/http/field_text.hpp"

namespace flow {

namespace {

constexpr size_t kChunkLineMax = 256 + 2;  // bytes with CR LF; also of a trailer
constexpr size_t kChunkHead = 20;          // bytes: CR LF of the data before, 16 digits, CR LF
constexpr size_t kTrailersMax = 4 * 1024;  // bytes

bool begins_with_size(std::string_view line) {
  size_t digits = line.find_first_not_of("0123456789abcdefABCDEF");
  return digits > 0 && std::string_view("\r; \t").find(line[digits]) != std::string_view::npos;
}

/// A quoted value of an extension ends in its line.
bool has_closed_quotes(std::string_view line) {
  bool is_open = false;
  for (size_t i = 0; i < line.size(); i++) {
    if (is_open && line[i] == '\\')
      i++;
    else if (line[i] == '"')
      is_open = !is_open;
  }
  return !is_open;
}

}  // namespace

size_t ChunkLines::read(std::string_view bytes) {
  bytes = bytes.substr(0, kChunkLineMax - line_);
  size_t newline = bytes.find('\n');
  bytes = bytes.substr(0, newline == std::string_view::npos ? newline : newline + 1);
  kept_.append(bytes);
  line_ += bytes.size();
  if (newline == std::string_view::npos) {
    state_ = line_ == kChunkLineMax ? State::broken : State::incomplete;
    return bytes.size();
  }
  bool is_valid = is_valid_framing(std::string_view(kept_).substr(kept_.size() - line_));
  state_ = is_valid ? State::complete : State::broken;
  line_ = 0;
  is_after_data_ = false;
  return bytes.size();
}

/// Whether the chunked coding permits the line at this place (RFC 9112, section 7.1).
bool ChunkLines::is_valid_framing(std::string_view line) const {
  if (kept_.size() > kTrailersMax || !line.ends_with("\r\n") || is_blank(line[0])) return false;
  if (!is_printable(line.substr(0, line.size() - 2))) return false;
  if (is_after_data_) return line == "\r\n";
  // A size is the first line, or follows the CR LF after data. All others are trailers.
  bool is_size = kept_.size() - line.size() <= 2;
  return !is_size || (begins_with_size(line) && has_closed_quotes(line));
}

bool ChunkLines::may_continue() const {
  std::string_view text = kept_;
  if (text.substr(0, 2) == "\r\n") text.remove_prefix(2);
  size_t digits = text.find_first_not_of('0');
  return text.empty() ||
         (digits > 0 && std::string_view("\r; \t").find(text[digits]) != std::string_view::npos);
}

bool ChunkLines::clear() {
  extensions_ += kept_.size() - std::min(kept_.size(), kChunkHead);
  kept_.clear();
  return extensions_ <= kExtensionsMax;
}

}  // namespace flow
