// Which texts may be tags.
#pragma once
#include <string>
#include <string_view>

namespace flow {

constexpr size_t kTagMax = 100;  // bytes

/// Why the text cannot be a tag, as a clause ("it has 120 bytes, and a tag has 1 to 100"); "" if it
/// can be one.
std::string tag_problem(std::string_view tag);

}  // namespace flow
