// Parses TOML, with the line of each entry.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

constexpr size_t kTomlBytesMax = 1 << 20;

/// An entry of a document, or the document itself: a table without a key.
struct TomlNode {
  enum class Kind : uint8_t { boolean, integer, number, text, date, list, table };
  std::string key;    // "" in a list
  uint32_t line = 0;  // of the key
  Kind kind = Kind::table;
  Value value;                  // of a boolean, integer, number or text
  std::vector<TomlNode> items;  // of a list, and of a table in the order of lines
};

/// "a boolean", "an integer", "a table": for messages.
const char* kind_text(TomlNode::Kind kind);
/// Error (user) with `path` and the line if the text is no TOML, or has more than kTomlBytesMax
/// bytes.
Result<TomlNode> read_toml(std::string_view text, const std::string& path);
/// A list or a table as a Value, without its lines; a date is nil.
Value value_of(const TomlNode& node);

}  // namespace flow
