#include "engine/cli/display/result_text.hpp"

#include <algorithm>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/text_style.hpp"

namespace flow::cli {

namespace {

constexpr size_t kKeyColumnsMax = 32;
constexpr size_t kItemColumnsMax = 60;

Value outlined(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor: {
      std::string shape;
      for (int64_t extent : value.as_tensor().shape) {
        shape += (shape.empty() ? "" : "x") + std::to_string(extent);
      }
      return std::string("<") + dtype_name(value.as_tensor().dtype) + " " + shape + ">";
    }
    case Value::Kind::file:
      return "<" + value.as_file().name + ", " + format_bytes(value.as_file().size) + ">";
    case Value::Kind::table: {
      Value::Table table = value.as_table();
      for (Value& item : table.list) item = outlined(item);
      for (auto& [key, field] : table.fields) field = outlined(field);
      return table;
    }
    default:
      return value;
  }
}

bool is_long_list(const Value& value) {
  return value.kind() == Value::Kind::table && value.as_table().list.size() > 1 &&
         value.as_table().fields.empty();
}

/// "[120 items: 1, 2, …]": as many items as fit, at least one.
std::string list_text(const Value::Table& table, size_t columns_max) {
  std::string text = "[" + plural(table.list.size(), "item") + ": ";
  const std::string end = std::string(ellipsis()) + "]";
  for (size_t i = 0; i < table.list.size(); i++) {
    std::string item = outline_text(table.list[i], kItemColumnsMax) + ", ";
    if (i > 0 && columns_of(text) + columns_of(item) + columns_of(end) > columns_max) break;
    text += item;
  }
  return shortened(text + end, columns_max);
}

}  // namespace

std::string outline_text(const Value& value, size_t columns_max) {
  std::string json = to_json(outlined(value));
  if (columns_of(json) <= columns_max) return json;
  return is_long_list(value) ? list_text(value.as_table(), columns_max)
                             : shortened(json, columns_max);
}

namespace {

std::string key_text(const Value& key) {
  return shortened(key.kind() == Value::Kind::string ? key.as_string() : to_json(key),
                   kKeyColumnsMax);
}

std::vector<std::string> field_lines(const Value::Table& table, size_t columns_max) {
  size_t shown =
      table.fields.size() <= kResultLinesMax - 1 ? table.fields.size() : kResultLinesMax - 2;
  size_t key_columns = 0;
  for (size_t i = 0; i < shown; i++)
    key_columns = std::max(key_columns, columns_of(key_text(table.fields[i].first)));
  size_t room = columns_max - std::min(columns_max, key_columns + 4);
  std::vector<std::string> lines = {"result:"};
  for (size_t i = 0; i < shown; i++) {
    std::string key = key_text(table.fields[i].first);
    key.append(key_columns - columns_of(key), ' ');
    lines.push_back("  " + key + "  " + outline_text(table.fields[i].second, room));
  }
  if (size_t more = table.fields.size() - shown)
    lines.push_back(std::string("  ") + ellipsis() + " " + plural(more, "more field"));
  return lines;
}

}  // namespace

ResultText result_text(const Value& result, size_t columns_max) {
  const std::string label = "result: ";
  std::string json = to_json(outlined(result));
  if (columns_of(label + json) <= std::max(columns_max, kResultColumnsMax))
    return {{label + json}, false};
  bool has_fields = result.kind() == Value::Kind::table && result.as_table().list.empty() &&
                    result.as_table().fields.size() > 1;
  if (has_fields) return {field_lines(result.as_table(), columns_max), true};
  size_t room = columns_max - std::min(columns_max, label.size());
  return {{label + outline_text(result, room)}, true};
}

}  // namespace flow::cli
