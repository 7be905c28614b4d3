#include "engine/value/value_fields.hpp"

#include <utility>

namespace flow {

std::string text_field(const Value& table, std::string_view name) {
  const Value* found = table.find(name);
  return found != nullptr && found->kind() == Value::Kind::string ? found->as_string() : "";
}

int64_t integer_field(const Value& table, std::string_view name, int64_t otherwise) {
  const Value* found = table.find(name);
  return found != nullptr && found->kind() == Value::Kind::integer ? found->as_integer()
                                                                   : otherwise;
}

double number_field(const Value& table, std::string_view name) {
  const Value* found = table.find(name);
  bool is_number = found != nullptr &&
                   (found->kind() == Value::Kind::number || found->kind() == Value::Kind::integer);
  return is_number ? found->as_number() : 0;
}

bool flag_field(const Value& table, std::string_view name) {
  const Value* found = table.find(name);
  return found != nullptr && found->kind() == Value::Kind::boolean && found->as_boolean();
}

Value strings_to_value(const std::vector<std::string>& strings) {
  std::vector<Value> items(strings.begin(), strings.end());
  return Value::list(std::move(items));
}

std::vector<std::string> strings_from_value(const Value* value) {
  std::vector<std::string> out;
  if (value == nullptr || value->kind() != Value::Kind::table) return out;
  for (const Value& item : value->as_table().list) {
    if (item.kind() == Value::Kind::string) out.push_back(item.as_string());
  }
  return out;
}

}  // namespace flow
