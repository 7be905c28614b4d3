// Reading the fields of a table that another process sent.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/value.hpp"

namespace flow {

// The value of the field, or a default if the field is missing or has another type: "",
// `otherwise`, 0, false.
std::string text_field(const Value& table, std::string_view name);
int64_t integer_field(const Value& table, std::string_view name, int64_t otherwise = 0);
/// An integer is accepted too.
double number_field(const Value& table, std::string_view name);
bool flag_field(const Value& table, std::string_view name);

Value strings_to_value(const std::vector<std::string>& strings);
/// The strings of a list; items of other types are left out. Empty for null and for what is not a
/// list.
std::vector<std::string> strings_from_value(const Value* value);

}  // namespace flow
