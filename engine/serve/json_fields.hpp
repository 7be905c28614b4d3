// The fields of a JSON request, with the place of each in its error. simdjson's own errors are
// thrown (simdjson_error); others are returned.
#pragma once
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "engine/value/utf8.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

class JsonFields {
 public:
  using Value = simdjson::ondemand::value;
  using Type = simdjson::ondemand::json_type;
  using Names = std::span<const std::string_view>;

  /// The text of all values; it is padded.
  explicit JsonFields(std::string_view json) : json_(json) {}

  /// Calls `take(index, value)` for each field that `known` has, up to 32, and checks the others. A
  /// null counts as no field. A field that comes twice is an error, because servers and proxies
  /// differ in which one they take.
  template <typename Take>
  Status read(Value value, const std::string& place, Names known, const Take& take) const;
  /// Calls `take(name, value)` for each field but those that are null. The name is UTF-8, and comes
  /// once.
  template <typename Take>
  Status read_all(Value value, const std::string& place, size_t max, const Take& take) const;
  /// Calls `take(place, item)` for each item of an array.
  template <typename Take>
  Status read_items(Value value, const std::string& place, size_t max, const Take& take) const;

  Result<std::string> text(Value value, const std::string& place) const;
  Result<bool> boolean(Value value, const std::string& place) const;
  /// A whole number from 0 to `max`.
  Result<uint64_t> count(Value value, const std::string& place, uint64_t max) const;
  /// A boolean, a string or a number: an integer if it is written as one and has up to 64 bits,
  /// with or without a sign.
  Result<flow::Value> scalar(Value value, const std::string& place) const;
  /// The syntax of a value that is not used. simdjson alone would skip it.
  Status check(Value value, size_t depth = 0) const;

 private:
  std::string_view json_;
};

template <typename Take>
Status JsonFields::read(Value value, const std::string& place, Names known,
                        const Take& take) const {
  if (value.type() != Type::object) {
    FLOW_TRY(check(value));
    return user_error(place + " is not an object");
  }
  uint32_t seen = 0;  // a bit per known field
  for (simdjson::ondemand::field field : value.get_object()) {
    std::string_view key = field.unescaped_key();
    auto index = static_cast<size_t>(std::ranges::find(known, key) - known.begin());
    if (index == known.size()) {
      FLOW_TRY(check(field.value()));
      continue;
    }
    if ((seen >> index & 1) != 0)
      return user_error(fmt::format("{} has two fields `{}`", place, key));
    seen |= 1u << index;
    if (field.value().type() == Type::null) {
      FLOW_TRY(check(field.value()));
    } else {
      FLOW_TRY(take(index, field.value()));
    }
  }
  return {};
}

template <typename Take>
Status JsonFields::read_all(Value value, const std::string& place, size_t max,
                            const Take& take) const {
  if (value.type() != Type::object) {
    FLOW_TRY(check(value));
    return user_error(place + " is not an object");
  }
  std::set<std::string> seen;
  for (simdjson::ondemand::field field : value.get_object()) {
    std::string key(std::string_view(field.unescaped_key()));
    if (seen.size() == max)
      return user_error(fmt::format("{} has more than {} fields", place, max));
    if (!seen.insert(key).second)
      return user_error(fmt::format("{} has two fields `{}`", place, key));
    if (!is_utf8(key)) return user_error(place + " has a name that is not UTF-8");
    if (field.value().type() == Type::null) {
      FLOW_TRY(check(field.value()));
    } else {
      FLOW_TRY(take(key, field.value()));
    }
  }
  return {};
}

template <typename Take>
Status JsonFields::read_items(Value value, const std::string& place, size_t max,
                              const Take& take) const {
  if (value.type() != Type::array) {
    FLOW_TRY(check(value));
    return user_error(place + " is not an array");
  }
  size_t index = 0;
  for (Value item : value.get_array()) {
    if (index == max) return user_error(fmt::format("{} has more than {} items", place, max));
    FLOW_TRY(take(fmt::format("{}[{}]", place, index), item));
    index++;
  }
  return {};
}

}  // namespace flow
