// From JSON to a workflow whose tasks have unique ids, whose files have one producer each, and
// whose edges have no cycle.
#include "engine/exports/wfformat_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/throwing.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

constexpr size_t kIdBytesMax = 4096;
constexpr size_t kCommandBytesMax = size_t{16} << 20;
constexpr const char* kVersion = "1.5";

/// A text of the file in a message: on one line and short.
std::string shown(const std::string& text) {
  constexpr size_t kShownMax = 120;
  return "`" + cut_text(to_line(text), kShownMax) + "`";
}

class WorkflowReader {
 public:
  Result<Workflow> read(std::string_view text) {
    auto document = from_json(text);
    if (!document.ok()) return user_error("it is not JSON: " + document.error().message);
    try {
      read_document(*document);
      order_tasks();
    } catch (const Failed& failed) {
      return failed.error;
    }
    return std::move(workflow_);
  }

 private:
  using Ids = std::unordered_map<std::string, uint32_t>;

  [[noreturn]] static void fail(const std::string& message) { throw Failed(user_error(message)); }

  // ---- fields

  static bool is_object(const Value& value) {
    return value.kind() == Value::Kind::table && value.as_table().list.empty();
  }
  static bool is_absent(const Value* value) {
    return value == nullptr || value->is_nil() || value->kind() == Value::Kind::null;
  }

  /// Null if the field is absent.
  static const Value* object_at(const Value& parent, const std::string& where, const char* name) {
    const Value* value = parent.find(std::string_view(name));
    if (is_absent(value)) return nullptr;
    if (!is_object(*value)) fail(fmt::format("{}`{}` is not an object", where, name));
    return value;
  }
  static const Value& needed_object(const Value& parent, const std::string& where,
                                    const char* name) {
    const Value* value = object_at(parent, where, name);
    if (value == nullptr) fail(fmt::format("{}`{}` is missing", where, name));
    return *value;
  }
  /// Without items if the field is absent.
  static const std::vector<Value>& list_at(const Value& parent, const std::string& where,
                                           const char* name) {
    static const std::vector<Value> none;
    const Value* value = parent.find(std::string_view(name));
    if (is_absent(value)) return none;
    bool is_list = value->kind() == Value::Kind::table && value->as_table().fields.empty();
    if (!is_list) fail(fmt::format("{}`{}` is not a list", where, name));
    return value->as_table().list;
  }
  /// "" if the field is absent.
  static std::string text_at(const Value& parent, const std::string& where, const char* name,
                             size_t bytes_max) {
    const Value* value = parent.find(std::string_view(name));
    return is_absent(value) ? "" : text_of(*value, fmt::format("{}`{}`", where, name), bytes_max);
  }
  static std::string text_of(const Value& value, const std::string& what, size_t bytes_max) {
    if (value.kind() != Value::Kind::string) fail(what + " is not a string");
    const std::string& text = value.as_string();
    if (text.size() > bytes_max) fail(fmt::format("{} is longer than {} bytes", what, bytes_max));
    if (text.find('\0') != std::string::npos) fail(what + " has a NUL character");
    if (!is_utf8(text)) fail(what + " is not UTF-8");
    return text;
  }
  static std::string id_of(const Value& value, const std::string& what) {
    std::string id = text_of(value, what, kIdBytesMax);
    if (id.empty()) fail(what + " is empty");
    return id;
  }
  static std::string needed_id(const Value& parent, const std::string& where) {
    const Value* value = parent.find("id");
    if (is_absent(value)) fail(where + "`id` is missing");
    return id_of(*value, where + "`id`");
  }
  /// 0 if the field is absent.
  static double number_at(const Value& parent, const std::string& where, const char* name) {
    const Value* value = parent.find(std::string_view(name));
    if (is_absent(value)) return 0;
    bool is_number = value->kind() == Value::Kind::integer || value->kind() == Value::Kind::number;
    if (!is_number) fail(fmt::format("{}`{}` is not a number", where, name));
    double number = value->as_number();
    if (!std::isfinite(number) || number < 0)
      fail(fmt::format("{}`{}` is {}: expected 0 or more", where, name, number));
    return number;
  }

  // ---- the document

  void read_document(const Value& document) {
    if (!is_object(document)) fail("it is not a JSON object");
    std::string version = text_at(document, "", "schemaVersion", kIdBytesMax);
    if (version != kVersion)
      fail(version.empty()
               ? "`schemaVersion` is missing: it does not seem to be a workflow in WfFormat"
               : fmt::format("its `schemaVersion` is {}: flow reads WfFormat {}; wfcommons "
                             "converts older files",
                             shown(version), kVersion));
    workflow_.name = text_at(document, "", "name", kIdBytesMax);
    const Value& body = needed_object(document, "", "workflow");
    const Value& specification = needed_object(body, "workflow: ", "specification");
    read_files(specification);
    read_tasks(specification);
    if (const Value* execution = object_at(body, "workflow: ", "execution"))
      read_execution(*execution);
  }

  void read_files(const Value& specification) {
    const std::string where = "workflow.specification: ";
    size_t number = 0;
    for (const Value& file : list_at(specification, where, "files")) {
      std::string at = fmt::format("workflow.specification.files[{}]: ", number++);
      if (!is_object(file)) fail(at + "it is not an object");
      std::string id = needed_id(file, at);
      uint32_t known = static_cast<uint32_t>(workflow_.files.size());
      if (file_index(id) != known)
        fail(fmt::format("{}the file {} is listed twice", at, shown(id)));
      if (!is_absent(file.find("sizeInBytes"))) {
        double size = number_at(file, at, "sizeInBytes");
        workflow_.files.back().size = static_cast<int64_t>(std::min(size, 9e18));
      }
    }
  }

  uint32_t file_index(const std::string& id) {
    auto [found, is_new] = files_.emplace(id, static_cast<uint32_t>(workflow_.files.size()));
    if (is_new) workflow_.files.push_back({id, -1});
    return found->second;
  }

  void read_tasks(const Value& specification) {
    const std::vector<Value>& tasks = list_at(specification, "workflow.specification: ", "tasks");
    if (tasks.empty()) fail("workflow.specification: `tasks` is missing or empty");
    if (tasks.size() > kWorkflowTasksMax)
      fail(
          fmt::format("it has {} tasks: flow imports {} at most", tasks.size(), kWorkflowTasksMax));
    for (const Value& task : tasks) {
      std::string at = fmt::format("workflow.specification.tasks[{}]: ", workflow_.tasks.size());
      if (!is_object(task)) fail(at + "it is not an object");
      WorkflowTask read;
      read.id = needed_id(task, at);
      bool is_new = tasks_.emplace(read.id, static_cast<uint32_t>(workflow_.tasks.size())).second;
      if (!is_new) fail(fmt::format("{}another task has the id {} too", at, shown(read.id)));
      read.name = text_at(task, at, "name", kIdBytesMax);
      workflow_.tasks.push_back(std::move(read));
    }
    for (size_t i = 0; i < tasks.size(); i++) read_links(tasks[i], workflow_.tasks[i]);
    add_edges_of_files();
    for (size_t i = 0; i < tasks.size(); i++) check_children(tasks[i], static_cast<uint32_t>(i));
  }

  static std::string place_of(const WorkflowTask& task) {
    return fmt::format("the task {}: ", shown(task.id));
  }

  uint32_t task_at(const Value& id, const std::string& what) const {
    std::string text = id_of(id, what);
    auto found = tasks_.find(text);
    if (found == tasks_.end())
      fail(fmt::format("{} names {}, and there is no task with this id", what, shown(text)));
    return found->second;
  }

  void read_links(const Value& task, WorkflowTask& read) {
    std::string where = place_of(read);
    for (const Value& parent : list_at(task, where, "parents"))
      read.parents.push_back(task_at(parent, where + "`parents`"));
    read.inputs = files_at(task, where, "inputFiles");
    read.outputs = files_at(task, where, "outputFiles");
  }

  /// Each file once.
  std::vector<uint32_t> files_at(const Value& task, const std::string& where, const char* name) {
    std::vector<uint32_t> indices;
    std::unordered_set<uint32_t> seen;
    for (const Value& file : list_at(task, where, name)) {
      uint32_t index = file_index(id_of(file, fmt::format("{}`{}`", where, name)));
      if (seen.insert(index).second) indices.push_back(index);
    }
    return indices;
  }

  void add_edges_of_files() {
    std::vector<int64_t> producers(workflow_.files.size(), -1);
    for (uint32_t i = 0; i < workflow_.tasks.size(); i++) {
      for (uint32_t file : workflow_.tasks[i].outputs) {
        if (producers[file] >= 0)
          fail(fmt::format("{}`outputFiles` has {}, which the task {} makes too",
                           place_of(workflow_.tasks[i]), shown(workflow_.files[file].id),
                           shown(workflow_.tasks[static_cast<size_t>(producers[file])].id)));
        producers[file] = i;
      }
    }
    for (WorkflowTask& task : workflow_.tasks) {
      for (uint32_t file : task.inputs)
        if (producers[file] >= 0) task.parents.push_back(static_cast<uint32_t>(producers[file]));
      std::ranges::sort(task.parents);
      auto rest = std::ranges::unique(task.parents);
      task.parents.erase(rest.begin(), rest.end());
    }
  }

  void check_children(const Value& task, uint32_t index) const {
    const WorkflowTask& read = workflow_.tasks[index];
    std::string where = place_of(read);
    for (const Value& id : list_at(task, where, "children")) {
      const WorkflowTask& child = workflow_.tasks[task_at(id, where + "`children`")];
      if (!std::ranges::binary_search(child.parents, index))
        fail(fmt::format("{}`children` names {}, whose `parents` lacks this task", where,
                         shown(child.id)));
    }
  }

  void read_execution(const Value& execution) {
    std::vector<bool> is_read(workflow_.tasks.size());
    size_t number = 0;
    for (const Value& run : list_at(execution, "workflow.execution: ", "tasks")) {
      std::string at = fmt::format("workflow.execution.tasks[{}]: ", number++);
      if (!is_object(run)) fail(at + "it is not an object");
      const Value* id = run.find("id");
      if (is_absent(id)) fail(at + "`id` is missing");
      uint32_t index = task_at(*id, at + "`id`");
      WorkflowTask& task = workflow_.tasks[index];
      if (is_read[index]) fail(fmt::format("{}the task {} is listed twice", at, shown(task.id)));
      is_read[index] = true;
      std::string where = place_of(task);
      task.seconds = number_at(run, where, "runtimeInSeconds");
      task.cpus = number_at(run, where, "coreCount");
      if (const Value* command = object_at(run, where, "command"))
        task.command = command_of(*command, where + "`command`: ");
    }
  }

  /// WfFormat's arguments are pieces of a command line as a shell reads it: `2>`, `--percent 0.6`.
  static std::string command_of(const Value& command, const std::string& where) {
    std::string line = text_at(command, where, "program", kCommandBytesMax);
    const std::vector<Value>& arguments = list_at(command, where, "arguments");
    if (line.empty() && !arguments.empty()) fail(where + "it has `arguments` and no `program`");
    for (const Value& argument : arguments) {
      line += " " + text_of(argument, where + "`arguments`", kCommandBytesMax);
      if (line.size() > kCommandBytesMax)
        fail(fmt::format("{}it is longer than {} bytes", where, kCommandBytesMax));
    }
    return line;
  }

  // ---- order

  /// Puts parents before their children, and otherwise keeps the order of the file.
  void order_tasks() {
    std::vector<WorkflowTask>& tasks = workflow_.tasks;
    std::vector<std::vector<uint32_t>> children(tasks.size());
    std::vector<size_t> missing(tasks.size());
    std::vector<uint32_t> order;
    order.reserve(tasks.size());
    for (uint32_t i = 0; i < tasks.size(); i++) {
      missing[i] = tasks[i].parents.size();
      for (uint32_t parent : tasks[i].parents) children[parent].push_back(i);
      if (missing[i] == 0) order.push_back(i);
    }
    for (size_t next = 0; next < order.size(); next++)
      for (uint32_t child : children[order[next]])
        if (--missing[child] == 0) order.push_back(child);
    if (order.size() < tasks.size()) fail_with_cycle(missing);
    std::vector<uint32_t> place(tasks.size());
    std::vector<WorkflowTask> ordered;
    ordered.reserve(tasks.size());
    for (uint32_t i = 0; i < order.size(); i++) place[order[i]] = i;
    for (uint32_t old : order) {
      ordered.push_back(std::move(tasks[old]));
      for (uint32_t& parent : ordered.back().parents) parent = place[parent];
      std::ranges::sort(ordered.back().parents);
    }
    tasks = std::move(ordered);
  }

  /// Each task that misses a parent has one that misses a parent too: following them leads into a
  /// cycle.
  [[noreturn]] void fail_with_cycle(const std::vector<size_t>& missing) const {
    constexpr size_t kNamedMax = 8;
    const std::vector<WorkflowTask>& tasks = workflow_.tasks;
    auto waits = [&](uint32_t task) { return missing[task] > 0; };
    uint32_t at = 0;
    while (!waits(at)) at++;
    std::vector<uint32_t> path;
    std::vector<int64_t> seen(tasks.size(), -1);
    while (seen[at] < 0) {
      seen[at] = static_cast<int64_t>(path.size());
      path.push_back(at);
      at = *std::ranges::find_if(tasks[at].parents, waits);
    }
    std::string named;
    for (size_t i = static_cast<size_t>(seen[at]), count = 0; i < path.size(); i++, count++) {
      if (count == kNamedMax) {
        named += fmt::format(" after … ({} more)", path.size() - i);
        break;
      }
      named += (count == 0 ? "" : " after ") + shown(tasks[path[i]].id);
    }
    fail(fmt::format("its tasks wait for each other: {} after {}", named, shown(tasks[at].id)));
  }

  Workflow workflow_;
  Ids tasks_, files_;
};

}  // namespace

Result<Workflow> read_wfformat(std::string_view text) { return WorkflowReader().read(text); }

}  // namespace flow
