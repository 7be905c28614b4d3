// A pattern with captures and a path, separated by a newline: what matches gives as many texts as
// the pattern has names, each of them part of the path.
#include "lua/graph/path_captures.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t end = std::min(text.find('\n'), text.size());
  std::string_view path = text.substr(std::min(end + 1, text.size()));
  auto captures = flow::lua::PathCaptures::parse(text.substr(0, end));
  if (!captures.ok()) return 0;
  auto texts = captures->match(path);
  if (!texts) return 0;
  FLOW_CHECK(texts->size() == captures->names().size());
  for (const std::string& each : *texts) FLOW_CHECK(path.find(each) != std::string_view::npos);
  return 0;
}
