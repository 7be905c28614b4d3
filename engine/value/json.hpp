// JSON for other programs: what flow.json and JSON lines write.
#pragma once
#include <string>

#include "flow/value.hpp"

namespace flow {

/// As to_json, but a table with a single key that begins with `$` is the object it is
/// (`{"$ref":"#/x"}`), wherever from_json does not take that object for one of flow's own forms.
std::string to_plain_json(const Value& value, int indent = -1);

}  // namespace flow
