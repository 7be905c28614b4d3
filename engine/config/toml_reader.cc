#include "engine/config/toml_reader.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

namespace flow {

namespace {

TomlNode node_of(const toml::node& from, std::string key, uint32_t line);

void add_items(const toml::table& table, TomlNode& to) {
  for (auto&& [key, item] : table)
    to.items.push_back(node_of(item, std::string(key.str()), key.source().begin.line));
  std::ranges::stable_sort(to.items, {}, &TomlNode::line);
}

TomlNode node_of(const toml::node& from, std::string key, uint32_t line) {
  TomlNode node;
  node.key = std::move(key);
  node.line = line;
  if (const auto* table = from.as_table()) {
    node.kind = TomlNode::Kind::table;
    add_items(*table, node);
  } else if (const auto* list = from.as_array()) {
    node.kind = TomlNode::Kind::list;
    for (const toml::node& item : *list)
      node.items.push_back(node_of(item, "", item.source().begin.line));
  } else if (const auto* text = from.as_string()) {
    node.kind = TomlNode::Kind::text;
    node.value = Value(text->get());
  } else if (const auto* integer = from.as_integer()) {
    node.kind = TomlNode::Kind::integer;
    node.value = Value(int64_t{integer->get()});
  } else if (const auto* number = from.as_floating_point()) {
    node.kind = TomlNode::Kind::number;
    node.value = Value(number->get());
  } else if (const auto* boolean = from.as_boolean()) {
    node.kind = TomlNode::Kind::boolean;
    node.value = Value(boolean->get());
  } else {
    node.kind = TomlNode::Kind::date;
  }
  return node;
}

}  // namespace

const char* kind_text(TomlNode::Kind kind) {
  switch (kind) {
    case TomlNode::Kind::boolean:
      return "a boolean";
    case TomlNode::Kind::integer:
      return "a whole number";
    case TomlNode::Kind::number:
      return "a number with a fraction";
    case TomlNode::Kind::text:
      return "a string";
    case TomlNode::Kind::date:
      return "a date or a time";
    case TomlNode::Kind::list:
      return "a list";
    case TomlNode::Kind::table:
      return "a table";
  }
  return "a table";
}

Result<TomlNode> read_toml(std::string_view text, const std::string& path) {
  if (text.size() > kTomlBytesMax)
    return user_error(fmt::format("{}: the file has more than {} bytes", path, kTomlBytesMax));
  toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return user_error(fmt::format("{}:{}: the file is not TOML: {}", path,
                                  error.source().begin.line, error.description()));
  }
  TomlNode root;
  add_items(parsed.table(), root);
  return root;
}

Value value_of(const TomlNode& node) {
  if (node.kind == TomlNode::Kind::list) {
    std::vector<Value> items;
    for (const TomlNode& item : node.items) items.push_back(value_of(item));
    return Value::list(std::move(items));
  }
  if (node.kind != TomlNode::Kind::table) return node.value;
  std::vector<std::pair<Value, Value>> fields;
  for (const TomlNode& item : node.items) fields.emplace_back(Value(item.key), value_of(item));
  return Value::map(std::move(fields));
}

}  // namespace flow
