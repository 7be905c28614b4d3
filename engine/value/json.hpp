// JSON for other programs: what flow.json and JSON lines write.
#pragma once
#include <string>
#include <vector>

#include "flow/value.hpp"

namespace flow {

/// Like to_json, but a table with a single key that begins with `$` is written as that object
/// (`{"$ref":"#/x"}`), unless from_json would read that object as one of flow's own forms.
std::string to_plain_json(const Value& value, int indent = -1);

/// As to_json(value, indent); each file, in the order of lists and then fields, also has the `path`
/// of `file_paths`.
std::string to_json(const Value& value, int indent, const std::vector<std::string>& file_paths);

}  // namespace flow
