// Tags: names that a script gives to nodes and to instances of maps (`h:tag("s3")`).
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// The name without the number of a repeated call or the index of an instance: "align" of
/// "align#2[3]", "sub#2/align" of "sub#2/align". A tag is unique among all that share it.
inline std::string task_path(std::string_view name) {
  size_t slash = name.rfind('/');
  size_t end = name.find_first_of("#[", slash == std::string_view::npos ? 0 : slash);
  return std::string(name.substr(0, end));
}

/// The name without any number of a call and any index or tag of an instance: "sub/align" of
/// "sub#2[3]/align#2[s1]".
inline std::string without_numbers(std::string_view name) {
  std::string path;
  path.reserve(name.size());
  bool is_number = false;
  for (char c : name) {
    if (c == '#' || c == '[') is_number = true;
    if (c == '/') is_number = false;
    if (!is_number) path += c;
  }
  return path;
}

/// The name to display: "align[s3]"; the name itself if there is no tag.
inline std::string tagged_name(const std::string& name, const std::string& tag) {
  return tag.empty() ? name : task_path(name) + "[" + tag + "]";
}

/// Names of nodes and instances as one text: "align[1..46]", "train, train#2..9",
/// "qc[a], qc[b], qc[c] and 43 more". Numbers are sorted; other names keep their order.
std::string joined_names(const std::vector<std::string>& names);

}  // namespace flow
