#include "engine/fetch/object_version.hpp"

#include <charconv>

namespace flow::fetch {

namespace {

/// Removes a number from the begin of `text`.
bool take_number(std::string_view& text, uint64_t& out) {
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (failed != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view begin) {
  if (!text.starts_with(begin)) return false;
  text.remove_prefix(begin.size());
  return true;
}

}  // namespace

std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  if (!take(text, "bytes ") || !take_number(text, range.first) || !take(text, "-") ||
      !take_number(text, range.last) || !take(text, "/") || range.last < range.first)
    return std::nullopt;
  if (text == "*") return range;
  uint64_t total = 0;
  if (!take_number(text, total) || !text.empty() || total <= range.last) return std::nullopt;
  range.total = total;
  return range;
}

ObjectVersion version_of(const HttpResponse& response) {
  ObjectVersion version{response.header("etag"), response.header("x-amz-version-id"),
                        response.header("last-modified"), std::nullopt};
  if (response.status == 206) {
    if (auto range = parse_content_range(response.header("content-range")))
      version.size = range->total;
    return version;
  }
  std::string length = response.header("content-length");
  std::string_view rest = length;
  uint64_t size = 0;
  if (take_number(rest, size) && rest.empty()) version.size = size;
  return version;
}

}  // namespace flow::fetch
