// URLs, profile files and answers of S3 are parsed or are an error. A URL that is sent can be
// parsed again and is shown without its secrets. The first byte selects the parser.
#include "engine/fetch/aws_config.hpp"
#include "engine/fetch/object_version.hpp"
#include "engine/fetch/s3_client.hpp"
#include "engine/fetch/s3_xml.hpp"

using namespace flow;
using namespace flow::fetch;

namespace {

void check_url(std::string_view text) {
  std::string shown = display_url(text);
  auto url = parse_url(text);
  (void)file_name_of(text);
  (void)url_secrets(text);
  if (is_s3_url(text)) {
    auto location = parse_s3_url(text);
    if (location.ok()) FLOW_CHECK(*parse_s3_url(to_text(*location)) == *location);
  }
  if (!url.ok()) return;
  std::string sent = request_text(*url);
  auto again = parse_url(sent);
  FLOW_CHECK(again.ok() && request_text(*again) == sent);
  for (char c : sent) FLOW_CHECK(0x20 < c && c < 0x7f);
  FLOW_CHECK(shown.find('@', 0) == std::string::npos || url->path.find('@') != std::string::npos);
  size_t query = shown.find('?');
  FLOW_CHECK(query == std::string::npos || shown.substr(query) == "?…");
  for (std::string_view location : {"../x", "/y?z", "//h/"})
    FLOW_CHECK(resolve_url(*url, location).ok());
}

void check_profiles(std::string_view text) {
  auto sections = parse_profiles(text);
  if (!sections.ok()) return;
  for (const auto& [name, settings] : *sections) {
    for (const auto& [key, value] : settings) FLOW_CHECK(value.find('\n') == std::string::npos);
  }
}

void check_pattern(std::string_view text) {
  size_t newline = std::min(text.find('\n'), text.size());
  constexpr size_t kLongest = 300;
  std::string_view pattern = text.substr(0, std::min(newline, kLongest));
  std::string_view key = text.substr(std::min(newline + 1, text.size()));
  (void)matches_key(pattern, key.substr(0, kLongest));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'u':
      check_url(text);
      break;
    case 'p':
      check_profiles(text);
      break;
    case 'l': {
      auto page = parse_listing(text);
      if (page.ok())
        for (const S3Object& object : page->objects) FLOW_CHECK(!object.key.empty());
      break;
    }
    case 'q':
      (void)parse_parts(text);
      break;
    case 'e':
      (void)parse_s3_failure(text);
      break;
    case 'g':
      check_pattern(text);
      break;
    case 'r': {
      auto range = parse_content_range(text);
      if (range)
        FLOW_CHECK(range->first <= range->last && (!range->total || range->last < *range->total));
      break;
    }
    default:
      break;
  }
  return 0;
}
