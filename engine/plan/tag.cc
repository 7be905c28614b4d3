#include "engine/plan/tag.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/value/utf8.hpp"

namespace flow {

std::string tag_problem(std::string_view tag) {
  if (tag.empty()) return fmt::format("it is empty, and a tag has 1 to {} bytes", kTagMax);
  if (tag.size() > kTagMax)
    return fmt::format("it has {} bytes, and a tag has 1 to {}", tag.size(), kTagMax);
  if (!is_utf8(tag)) return "it is not UTF-8";
  for (unsigned char c : tag) {
    if (c < 0x20 || c == 0x7f) return fmt::format("it has the control character {:#04x}", c);
  }
  // U+0080 to U+009F
  for (size_t i = 0; i + 1 < tag.size(); i++) {
    auto next = static_cast<unsigned char>(tag[i + 1]);
    if (tag[i] == '\xc2' && next < 0xa0) return "it has a control character";
  }
  size_t bad = tag.find_first_of("/[]@");
  if (bad != std::string_view::npos)
    return fmt::format("it has `{}`, and a tag has none of `/ [ ] @`", tag[bad]);
  if (tag == "." || tag == "..") return "it would be the name of a folder that exists";
  bool is_number = std::ranges::all_of(tag, [](char c) { return c >= '0' && c <= '9'; });
  if (is_number) return "it has only digits, as an index of a map: put a letter before them";
  return "";
}

}  // namespace flow
