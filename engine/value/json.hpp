// JSON for other programs: what flow.json and JSON lines write.
#pragma once
#include <string>

#include "flow/value.hpp"

namespace flow {

/// Like to_json, but a table with a single key that begins with `$` is written as that object
/// (`{"$ref":"#/x"}`), unless from_json would read that object as one of flow's own forms.
std::string to_plain_json(const Value& value, int indent = -1);

}  // namespace flow
