#include "engine/query/export_folders.hpp"

#include <algorithm>
#include <span>

#include "flow/tags.hpp"

namespace flow {

namespace {

using Path = std::span<const PathStep>;

/// A name from a script or a value as one component of a path.
std::string component(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == '\0') c = '_';
  }
  return name.empty() || name == "." || name == ".." ? "unnamed" : name;
}

std::string text_of(const Value& key) {
  return component(key.kind() == Value::Kind::string ? key.as_string() : to_json(key));
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + "/" + name;
}

class FolderWalk {
 public:
  explicit FolderWalk(const core::Run& run) : run_(run) {}

  /// `made` is what the body or a branch returned, with refs; `value` is what became of it.
  void walk(const Value& made, const Value& value) {
    if (made.kind() == Value::Kind::ref) return walk_ref(made.as_ref(), value);
    bool are_tables = made.kind() == Value::Kind::table && value.kind() == Value::Kind::table;
    if (!are_tables) return add_all(value, "", false);
    const std::vector<Value>& items = value.as_table().list;
    for (size_t i = 0; i < items.size(); i++) {
      const Value* item = made.find(Value(static_cast<int64_t>(i) + 1));
      item == nullptr ? add_all(items[i], "", false) : walk(*item, items[i]);
    }
    for (const auto& [key, field] : value.as_table().fields) {
      const Value* item = made.find(key);
      item == nullptr ? add_all(field, "", false) : walk(*item, field);
    }
  }

  std::vector<std::string> folders;

 private:
  void walk_ref(const Ref& ref, const Value& value) {
    core::UnitId unit = ref.node;
    const TaskNode& node = run_.node(run_.units[unit].node);
    if (node.kind == NodeKind::when) {
      bool is_then = run_.units[unit].branch == core::Branch::then_branch;
      if (!ref.path.empty()) return add_all(value, "", false);
      return walk(is_then ? node.detail().then_value : node.detail().else_value, value);
    }
    if (node.kind == NodeKind::map) return walk_map(ref, value);
    const Value* calls = core::dynamic_value(run_, unit);
    if (calls != nullptr && node.detail().tag.empty() && ref.path.empty())
      return walk(*calls, value);
    walk_part(unit, Path(ref.path), value);
  }

  void walk_map(const Ref& ref, const Value& value) {
    std::vector<core::UnitId> instances = core::instances_of(run_, ref.node);
    if (!ref.keeps_places)
      std::erase_if(instances, [&](auto unit) { return run_.units[unit].gives_missing; });
    Path path(ref.path);
    if (!path.empty() && !path[0].each) {
      const Value& key = path[0].key;
      bool is_index = key.kind() == Value::Kind::integer && key.as_integer() >= 1 &&
                      static_cast<uint64_t>(key.as_integer()) <= instances.size();
      if (!is_index) return add_all(value, "", false);
      return walk_part(instances[static_cast<size_t>(key.as_integer() - 1)], path.subspan(1),
                       value);
    }
    bool is_list = value.kind() == Value::Kind::table && value.as_table().fields.empty() &&
                   value.as_table().list.size() == instances.size();
    if (!is_list || path.size() > 1) return add_all(value, "", false);
    for (size_t i = 0; i < instances.size(); i++)
      walk_part(instances[i], path, value.as_table().list[i]);
  }

  /// A part of the result of one task.
  void walk_part(core::UnitId unit, Path path, const Value& value) {
    const core::Unit& u = run_.units[unit];
    const TaskNode& node = run_.node(u.node);
    const std::string& tag = core::tag_of(run_, unit);
    if (tag.empty() && u.instance < 0) return add_all(value, "", false);
    std::string folder;
    std::string name = tag.empty() ? node.name : task_path(node.name);
    for (size_t at = 0; at <= name.size();) {
      size_t end = std::min(name.find('/', at), name.size());
      folder = joined(folder, component(name.substr(at, end - at)));
      at = end + 1;
    }
    folder = joined(folder, component(tag.empty() ? std::to_string(u.instance + 1) : tag));
    // The names of a command's files differ already.
    bool is_shell = core::def_of(run_, unit)->kind == TaskKind::shell;
    if (!is_shell) {
      for (const PathStep& step : path) folder = joined(folder, text_of(step.key));
    }
    add_all(value, folder, !is_shell);
  }

  void add_all(const Value& value, const std::string& folder, bool keeps_path) {
    if (value.kind() == Value::Kind::file) return folders.push_back(folder);
    if (value.kind() != Value::Kind::table) return;
    int64_t index = 0;
    for (const Value& item : value.as_table().list) {
      index++;
      add_all(item, keeps_path ? joined(folder, std::to_string(index)) : folder, keeps_path);
    }
    for (const auto& [key, field] : value.as_table().fields)
      add_all(field, keeps_path ? joined(folder, text_of(key)) : folder, keeps_path);
  }

  const core::Run& run_;
};

}  // namespace

std::vector<std::string> export_folders(const core::Run& run, const Value& result) {
  FolderWalk walk(run);
  walk.walk(run.plan->result, result);
  return std::move(walk.folders);
}

}  // namespace flow
