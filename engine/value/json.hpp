// JSON for other programs: what flow.json and JSON lines write.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "flow/value.hpp"

namespace flow {

/// Like to_json, but a table with a single key that begins with `$` is written as that object
/// (`{"$ref":"#/x"}`), unless from_json would read that object as one of flow's own forms.
std::string to_plain_json(const Value& value, int indent = -1);

/// Names, errors and addresses are text for people, also where a task made them of other bytes:
/// readers get a string in any case, never the `{"$bytes":…}` of values.
std::string text_to_json(std::string_view text);

/// As to_json(value, indent); each file, in the order of lists and then fields, also has the `path`
/// of `file_paths`.
std::string to_json(const Value& value, int indent, const std::vector<std::string>& file_paths);

}  // namespace flow
