// Values that become JSON of other programs: their strings are UTF-8.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

/// The fields of an object, for Value::map().
using JsonFields = std::vector<std::pair<Value, Value>>;

/// Any bytes as a string, with U+FFFD for what is not UTF-8.
inline Value text_value(const std::string& any) { return Value(to_utf8(any)); }

}  // namespace flow
