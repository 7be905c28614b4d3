// Tags: names that a script gives to nodes and to instances of maps (`h:tag("s3")`).
#pragma once
#include <string>
#include <string_view>

namespace flow {

/// The name without the number of a repeated call or the index of an instance: "align" of
/// "align#2[3]", "sub#2/align" of "sub#2/align". A tag is unique among all that share it.
inline std::string task_path(std::string_view name) {
  size_t slash = name.rfind('/');
  size_t end = name.find_first_of("#[", slash == std::string_view::npos ? 0 : slash);
  return std::string(name.substr(0, end));
}

/// What people see: "align[s3]"; the name itself if there is no tag.
inline std::string tagged_name(const std::string& name, const std::string& tag) {
  return tag.empty() ? name : task_path(name) + "[" + tag + "]";
}

}  // namespace flow
