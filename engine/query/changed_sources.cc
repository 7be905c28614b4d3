#include "engine/query/changed_sources.hpp"

#include <fmt/format.h>

#include "engine/query/code_diff.hpp"

namespace flow {

namespace {

/// "features.lua:12" of "features.lua:12-12"; else the source itself.
std::string place_text(const std::string& source) {
  size_t colon = source.rfind(':'), dash = source.rfind('-');
  bool is_one_line = colon != std::string::npos && dash != std::string::npos && colon < dash &&
                     source.substr(colon + 1, dash - colon - 1) == source.substr(dash + 1);
  return is_one_line ? source.substr(0, dash) : source;
}

}  // namespace

const Bundle& ChangedSources::bundle(const Digest& digest) {
  auto [found, is_new] = bundles_.try_emplace(digest);
  if (!is_new) return found->second;
  auto bytes = blobs_.get(digest);
  if (!bytes.ok()) return found->second;
  auto decoded = decode_bundle(*bytes);
  if (decoded.ok()) found->second = std::move(*decoded);
  return found->second;
}

std::string ChangedSources::text_of(const std::vector<KeyChange>& changes, const RunRecord& before,
                                    const RunRecord& now, const std::string& indent) {
  std::string text;
  for (const KeyChange& change : changes) {
    text += "\n" + indent + change.text;
    if (change.source_before.empty() || change.source_now.empty()) continue;
    std::vector<std::string> lines =
        line_diff(source_lines(bundle(before.bundle_digest), change.source_before),
                  source_lines(bundle(now.bundle_digest), change.source_now));
    if (lines.empty()) continue;
    text += fmt::format(" ({}):", place_text(change.source_now));
    for (const std::string& line : lines) text += "\n" + indent + "  " + line;
  }
  return text;
}

}  // namespace flow
