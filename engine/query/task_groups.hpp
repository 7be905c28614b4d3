// Tasks that are described alike are described once: `align[1..46]`.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace flow {

class TaskGroups {
 public:
  struct Group {
    std::vector<std::string> names;  // with tags
    std::string text;                // of the first task
    bool is_same_text = true;        // for all tasks
  };
  /// With `each_task` every task is a group.
  explicit TaskGroups(bool each_task) : each_task_(each_task) {}
  /// Tasks of one definition with the same `cause` are a group. `text` follows the name.
  void add(const std::string& name, const std::string& cause, const std::string& text);
  /// In the order of their first tasks.
  const std::vector<Group>& groups() const { return groups_; }

 private:
  const bool each_task_;
  std::vector<Group> groups_;
  std::map<std::pair<std::string, std::string>, size_t> by_cause_;  // task path and cause
};

}  // namespace flow
