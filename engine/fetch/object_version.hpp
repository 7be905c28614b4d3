// The version of an object that an answer describes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/fetch/http_client.hpp"

namespace flow::fetch {

struct ObjectVersion {
  std::string etag, version_id, last_modified;  // as the server wrote them; "" if it has none
  std::optional<uint64_t> size;
  bool operator==(const ObjectVersion&) const = default;

  /// An ETag that changes with every byte, so that ranges with it can be joined.
  bool has_strong_etag() const { return !etag.empty() && !etag.starts_with("W/"); }
  /// Whether the server can be asked whether this version is still current.
  bool can_be_asked_for() const { return !etag.empty() || !last_modified.empty(); }
};

struct ContentRange {
  uint64_t first = 0, last = 0;
  std::optional<uint64_t> total;
};
/// "bytes 0-9/100"; total is missing for "*".
std::optional<ContentRange> parse_content_range(std::string_view text);

/// From an answer with 200 or 206.
ObjectVersion version_of(const HttpResponse& response);

}  // namespace flow::fetch
