// Every text of the workflow is data: it becomes a literal of Lua, or an argument of a command, and
// never a part of code.
#include "engine/exports/wfformat_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "engine/exports/unique_names.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

constexpr size_t kTaskNameMax = 100;  // as of engine/plan/check.cc
constexpr size_t kFileNameMax = 200;
constexpr size_t kScriptTasksMax = size_t{48} << 10;  // bytes; more tasks get a file of their own

// The same for all tasks, so that it is read once. `command` is empty in a stand-in.
constexpr const char* kCommand = R"lua(
-- In its folder a task finds its inputs under their names, and leaves its outputs there.
local COMMAND = [[
MARK
files=({files}) names=({names}) command={command}
if [ -n "$command" ]; then
  for i in "${!files[@]}"; do
    case "${names[i]}" in */*) mkdir -p -- "${names[i]%/*}" ;; esac
    ln -s -- "$PWD/${files[i]}" "${names[i]}"
  done
  eval "$command"
else
  printf 'a stand-in for the task %s: it sleeps %s s and writes files that say what they stand for\n' {id} {seconds}
  sum=$({ [ ${#files[@]} -eq 0 ] || find -L "${files[@]}" -type f -print0; } | sort -z | xargs -0r cat -- | sha256sum | cut -c1-16)
  sleep {seconds}
  for name in {writes}; do
    case "$name" in */*) mkdir -p -- "${name%/*}" ;; esac
    printf 'This file stands in for %s of the task %s. Its inputs: %s\n' "$name" {id} "$sum" > "./$name"
  done
fi
]]

local function name_of(id)
  local file = workflow.files[id]
  return file and file.name or id
end

local run = {}
for _, task in ipairs(workflow.tasks) do
  local outputs = {}
  for k, id in ipairs(task.writes) do outputs["o" .. k] = { name_of(id), glob = false } end
  run[task.id] = flow.shell(task.name or task.id, {
    args = { "id", "command", "seconds", "files", "names", "writes" },
    outputs = outputs, cpus = task.cpus, command = COMMAND,
  })
end

local function arguments_of(task, made, p)
  local files, names, writes, taken = {}, {}, {}, {}
  for k, id in ipairs(task.writes) do
    writes[k] = name_of(id)
    taken[writes[k]] = true
  end
  for k, id in ipairs(task.reads) do
    files[k] = made[id] or flow.file(workflow.files[id].input)
    names[k] = name_of(id)
    if taken[names[k]] then names[k] = "input" .. k .. "/" .. names[k] end  -- two files of one name
    taken[names[k]] = true
  end
  local command = not p.stand_ins and task.command or ""
  local seconds = command == "" and string.format("%.3f", (task.seconds or 0) * p.scale) or "0"
  return { id = task.id, command = command, seconds = seconds, files = files, names = names, writes = writes }
end
)lua";

constexpr const char* kBody = R"lua(function(p)
  local made, handles, results = {}, {}, {}
  for _, task in ipairs(workflow.tasks) do
    local handle = run[task.id](arguments_of(task, made, p))
    for _, id in ipairs(task.after or {}) do handle:after(handles[id]) end
    handles[task.id] = handle
    for k, id in ipairs(task.writes) do made[id] = handle["o" .. k] end
    if task.last then results[task.name or task.id] = handle end
  end
  return results
end)
)lua";

bool is_printable(const std::string& text) {
  return is_utf8(text) && std::ranges::all_of(text, [](char c) {
           auto byte = static_cast<unsigned char>(c);
           return byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7f);
         });
}

std::string quoted_literal(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + "\"";
}

/// The text on one line of ASCII, for a comment.
std::string comment_text(const std::string& text) {
  std::string out = text.substr(0, kFileNameMax);
  for (char& c : out) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return out;
}

/// The last bytes of the name, with up to 3 more, so that it begins with a whole character.
std::string last_bytes(const std::string& name, size_t size_max) {
  if (name.size() <= size_max) return name;
  return name.substr(character_begin(name, name.size() - size_max));
}

/// One component of a path: without characters that a pattern, a placeholder or a path would read.
std::string plain_component(std::string_view text) {
  std::string name = to_utf8(text);
  for (char& c : name) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || std::string_view("/{}").find(c) != std::string_view::npos)
      c = '_';
  }
  name = last_bytes(name, kFileNameMax);  // it may get a number before it
  return name.empty() || name == "." || name == ".." ? "unnamed" : name;
}

/// A name that is unique below one folder, and no longer than last_bytes gives it.
std::string unique_name(UniqueNames& names, const std::string& wanted, size_t size_max) {
  std::string name = last_bytes(wanted, size_max);
  return names.add(name, [&](int n) {
    std::string before = fmt::format("{}-", n);
    return before + last_bytes(name, size_max - before.size());
  });
}

/// The letters of a task's name.
std::string task_name(const std::string& id) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  std::string name = id;
  for (char& c : name)
    if (kLetters.find(c) == std::string_view::npos) c = '_';
  return name;
}

class PipelineWriter {
 public:
  PipelineWriter(const Workflow& workflow, std::string source, double scale)
      : workflow_(workflow), source_(std::move(source)), scale_(scale) {}

  PipelineFiles write() {
    prepare();
    std::string tasks = tasks_text();
    bool is_large = tasks.size() > kScriptTasksMax;
    PipelineFiles files;
    std::string table = is_large ? "require \"tasks\"\n" : tasks;
    std::string command = kCommand;
    command.replace(command.find("MARK"), 4, kImportedMark);
    files.script = heading() + "local flow = require \"flow\"\n\nlocal workflow = " + table +
                   command + "\n" + pipeline_line() + kBody;
    if (is_large)
      files.tasks = fmt::format("-- The tasks of the workflow in {}, for pipeline.lua.\nreturn {}",
                                comment_text(source_), tasks);
    files.inputs = inputs();
    return files;
  }

 private:
  void prepare() {
    producers_.assign(workflow_.files.size(), -1);
    is_last_.assign(workflow_.tasks.size(), true);
    is_used_.assign(workflow_.files.size(), false);
    for (size_t i = 0; i < workflow_.tasks.size(); i++) {
      const WorkflowTask& task = workflow_.tasks[i];
      for (uint32_t parent : task.parents) is_last_[parent] = false;
      for (uint32_t file : task.outputs) producers_[file] = static_cast<int64_t>(i);
      for (uint32_t file : task.inputs) is_used_[file] = true;
      names_.push_back(unique_name(task_names_, task_name(task.id), kTaskNameMax));
    }
    input_names_.resize(workflow_.files.size());
    for (size_t i = 0; i < workflow_.files.size(); i++) {
      if (!is_input(i)) continue;
      std::string local = local_name(workflow_.files[i].id);
      input_names_[i] =
          unique_name(taken_inputs_, local.substr(local.rfind('/') + 1), kFileNameMax);
    }
  }

  bool is_input(size_t file) const { return is_used_[file] && producers_[file] < 0; }

  size_t commands() const {
    return static_cast<size_t>(std::ranges::count_if(
        workflow_.tasks, [](const WorkflowTask& task) { return !task.command.empty(); }));
  }

  std::string heading() const {
    return fmt::format(
        "-- The workflow {} from {}, made by `flow import`: {} tasks, {} of them with a command.\n"
        "--\n"
        "-- A task with a command runs it. A task without one is a stand-in: it sleeps for the run "
        "time\n"
        "-- that the workflow gives, times `scale`, and writes small files in place of its "
        "outputs.\n"
        "--   flow run --param stand_ins=true --param scale=0.01    makes every task a stand-in\n"
        "-- The files in inputs/ stand in for those that the workflow reads: replace them.\n",
        comment_text(workflow_.name), comment_text(source_), workflow_.tasks.size(), commands());
  }

  std::string pipeline_line() const {
    std::string name = last_bytes(task_name(workflow_.name), kTaskNameMax);
    return fmt::format(
        "return flow.pipeline({}, {{\n"
        "  stand_ins = flow.param.boolean {{ default = false, help = \"run no command: every task "
        "is a stand-in\" }},\n"
        "  scale = flow.param.number {{ default = {}, min = 0, help = \"factor of the run times "
        "of stand-ins\" }},\n"
        "}}, ",
        quoted_literal(name.empty() ? "workflow" : name), number_text(scale_));
  }

  static std::string number_text(double number) { return to_json(Value(number)); }

  /// `{ files = { … }, tasks = { … } }`
  std::string tasks_text() const {
    std::string text = "{\n  files = {\n";
    for (size_t i = 0; i < workflow_.files.size(); i++) text += file_row(i);
    text += "  },\n  tasks = {\n";
    for (size_t i = 0; i < workflow_.tasks.size(); i++) text += task_row(i);
    return text + "  },\n}\n";
  }

  /// "" if the file's id is its name, and a task makes it.
  std::string file_row(size_t index) const {
    const std::string& id = workflow_.files[index].id;
    std::string name = local_name(id), fields;
    if (name != id) fields += " name = " + quoted_literal(name) + ",";
    if (is_input(index))
      fields += " input = " + quoted_literal("inputs/" + input_names_[index]) + ",";
    if (fields.empty()) return "";
    fields.back() = ' ';
    return fmt::format("    [{}] = {{{}}},\n", quoted_literal(id), fields);
  }

  std::string ids_of(const std::vector<uint32_t>& files) const {
    std::string text;
    for (uint32_t file : files)
      text += (text.empty() ? " " : ", ") + quoted_literal(workflow_.files[file].id);
    return "{" + text + (text.empty() ? "}" : " }");
  }

  std::string task_row(size_t index) const {
    const WorkflowTask& task = workflow_.tasks[index];
    std::string row = "    { id = " + quoted_literal(task.id) + ",";
    if (names_[index] != task.id) row += " name = " + quoted_literal(names_[index]) + ",";
    if (task.seconds > 0) row += " seconds = " + number_text(task.seconds) + ",";
    if (task.cpus > 0) row += " cpus = " + number_text(task.cpus) + ",";
    if (is_last_[index]) row += " last = true,";
    if (!task.command.empty()) row += "\n      command = " + lua_literal(task.command) + ",";
    row += "\n      reads = " + ids_of(task.inputs) + ", writes = " + ids_of(task.outputs);
    std::string after;
    for (uint32_t parent : parents_without_files(task))
      after += (after.empty() ? " " : ", ") + quoted_literal(workflow_.tasks[parent].id);
    if (!after.empty()) row += ",\n      after = {" + after + " }";
    return row + " },\n";
  }

  std::vector<uint32_t> parents_without_files(const WorkflowTask& task) const {
    std::set<uint32_t> rest(task.parents.begin(), task.parents.end());
    for (uint32_t file : task.inputs)
      if (producers_[file] >= 0) rest.erase(static_cast<uint32_t>(producers_[file]));
    return {rest.begin(), rest.end()};
  }

  std::vector<std::pair<std::string, std::string>> inputs() const {
    std::vector<std::pair<std::string, std::string>> files;
    for (size_t i = 0; i < workflow_.files.size(); i++) {
      if (!is_input(i)) continue;
      const WorkflowFile& file = workflow_.files[i];
      std::string size = file.size < 0 ? "" : fmt::format(" ({} bytes)", file.size);
      files.emplace_back(
          input_names_[i],
          fmt::format("This file stands in for {}{}: replace it with the real one.\n",
                      comment_text(file.id), size));
    }
    return files;
  }

  const Workflow& workflow_;
  std::string source_;
  double scale_;
  std::vector<int64_t> producers_;        // per file: its task, or -1
  std::vector<bool> is_last_;             // per task: no other one follows
  std::vector<bool> is_used_;             // per file: a task reads it
  std::vector<std::string> names_;        // per task
  std::vector<std::string> input_names_;  // per file that no task makes
  UniqueNames task_names_, taken_inputs_;
};

}  // namespace

std::string lua_literal(const std::string& text) {
  bool has_lines = text.find('\n') != std::string::npos;
  if (!has_lines || !is_printable(text)) return quoted_literal(text);
  std::string level;
  while (text.find("]" + level + "]") != std::string::npos || text.ends_with("]" + level))
    level += '=';
  return "[" + level + "[\n" + text + "]" + level + "]";
}

std::string local_name(const std::string& id) {
  bool is_relative = !id.starts_with('/') && id.find("://") == std::string::npos;
  std::vector<std::string> names;
  bool leads_up = false;
  for (size_t at = 0; at <= id.size();) {
    size_t end = std::min(id.find('/', at), id.size());
    std::string name = id.substr(at, end - at);
    leads_up = leads_up || name == "..";
    if (!name.empty() && name != ".") names.push_back(plain_component(name));
    at = end + 1;
  }
  if (names.empty()) return "unnamed";
  // In its working folder a task finds the folder `inputs` of flow itself.
  bool is_below_inputs = names.size() > 1 && names.front() == "inputs";
  bool keeps_folders = is_relative && !leads_up && !is_below_inputs && id.size() <= kFileNameMax;
  std::string path = names.back();
  if (keeps_folders)
    for (size_t i = names.size() - 1; i > 0; i--) path = names[i - 1] + "/" + path;
  return path == "inputs" ? "inputs_" : path;
}

PipelineFiles pipeline_of(const Workflow& workflow, const std::string& source, double scale) {
  return PipelineWriter(workflow, source, scale).write();
}

}  // namespace flow
