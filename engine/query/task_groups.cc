#include "engine/query/task_groups.hpp"

#include "flow/tags.hpp"

namespace flow {

void TaskGroups::add(const std::string& name, const std::string& cause, const std::string& text) {
  std::pair<std::string, std::string> key(each_task_ ? name : task_path(name), cause);
  auto [found, is_new] = by_cause_.emplace(std::move(key), groups_.size());
  if (is_new) groups_.push_back({{}, text, true});
  Group& group = groups_[found->second];
  group.names.push_back(name);
  group.is_same_text = group.is_same_text && group.text == text;
}

}  // namespace flow
