#include "engine/serve/json_fields.hpp"

#include <charconv>
#include <cmath>
#include <utility>

#include "engine/serve/json/json_number.hpp"
#include "engine/serve/json_fault.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kFieldDepthMax = 64;

}  // namespace

Result<std::string> JsonFields::text(Value value, const std::string& place) const {
  if (value.type() != Type::string) {
    FLOW_TRY(check(value));
    return user_error(place + " is not text");
  }
  std::string text(std::string_view(value.get_string()));
  if (!is_utf8(text)) return user_error(place + " is not UTF-8");
  return text;
}

Result<bool> JsonFields::boolean(Value value, const std::string& place) const {
  FLOW_TRY(check(value));
  std::string_view token = value.raw_json_token();
  if (token.starts_with("true")) return true;
  if (token.starts_with("false")) return false;
  return user_error(place + " is not true or false");
}

Result<uint64_t> JsonFields::count(Value value, const std::string& place, uint64_t max) const {
  FLOW_TRY(check(value));
  JsonNumber number = read_json_number(std::string_view(value.raw_json_token()).data());
  bool is_count = number.end != nullptr && number.is_whole && !number.is_long &&
                  (!number.is_negative || number.digits == 0) && number.digits <= max;
  if (!is_count)
    return user_error(fmt::format("{} is not a whole number from 0 to {}", place, max));
  return number.digits;
}

Result<flow::Value> JsonFields::scalar(Value value, const std::string& place) const {
  Type type = value.type();
  if (type == Type::string) {
    auto read = text(value, place);
    FLOW_TRY(read);
    return flow::Value(std::move(*read));
  }
  if (type == Type::boolean) {
    auto read = boolean(value, place);
    FLOW_TRY(read);
    return flow::Value(*read);
  }
  FLOW_TRY(check(value));
  if (type != Type::number) return user_error(place + " is not a text, a number, true or false");
  JsonNumber number = read_json_number(std::string_view(value.raw_json_token()).data());
  if (number.is_whole) {
    int64_t integer = 0;
    uint64_t natural = 0;
    if (std::from_chars(number.begin, number.end, integer).ec == std::errc())
      return flow::Value(integer);
    if (std::from_chars(number.begin, number.end, natural).ec == std::errc())
      return flow::Value(static_cast<int64_t>(natural));
  }
  double read = nearest_double(number);
  if (!std::isfinite(read)) return user_error(place + " is too large a number");
  return flow::Value(read);
}

Status JsonFields::check(Value value, size_t depth) const {
  if (depth == kFieldDepthMax)
    return user_error(fmt::format("the JSON is nested deeper than {}", kFieldDepthMax));
  switch (Type(value.type())) {
    case Type::object:
      for (simdjson::ondemand::field field : value.get_object()) {
        (void)std::string_view(field.unescaped_key());
        FLOW_TRY(check(field.value(), depth + 1));
      }
      return {};
    case Type::array:
      for (Value item : value.get_array()) FLOW_TRY(check(item, depth + 1));
      return {};
    case Type::string:
      (void)std::string_view(value.get_string());
      return {};
    default:
      break;
  }
  std::string_view token = value.raw_json_token();
  while (!token.empty() && is_json_space(token.back())) token.remove_suffix(1);
  bool is_name = token == "true" || token == "false" || token == "null";
  if (is_name || read_json_number(token.data()).end != nullptr) return {};
  return json_fault(json_, token.data(), "this is not a value");
}

}  // namespace flow
