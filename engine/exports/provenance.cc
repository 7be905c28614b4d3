// Follows the handles in the arguments of each task. A file that a handle gives is looked for among
// the files that the tasks behind the handle returned, by content and name; a task that only passes
// a file on does not count as its maker.
#include "engine/exports/provenance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "engine/base/throwing.hpp"
#include "engine/exports/unique_names.hpp"
#include "engine/exports/wfformat_pipeline.hpp"
#include "engine/runs/run_info.hpp"

namespace flow {

namespace {

using core::UnitId;

/// Equal for files that are the same to a task that reads them.
std::string identity_of(const File& file) {
  return file.digest.hex() + (file.is_folder ? "/" : ":") + file.name;
}

void add_files(const Value& value, std::vector<File>& out) {
  if (value.kind() == Value::Kind::file) out.push_back(value.as_file());
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) add_files(item, out);
  for (const auto& [key, field] : value.as_table().fields) add_files(field, out);
}

/// Calls `visit` for each handle in the value.
template <typename Visit>
void for_each_handle(const Value& value, Visit&& visit) {
  if (value.kind() == Value::Kind::ref) return visit(value.as_ref());
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) for_each_handle(item, visit);
  for (const auto& [key, field] : value.as_table().fields) for_each_handle(field, visit);
}

std::string as_path(std::string name) {
  for (char& c : name)
    if (c == '\0' || c == '\n') c = '_';
  return name.empty() ? "unnamed" : name;
}

class ProvenanceReader {
 public:
  ProvenanceReader(Provenance& out, const CommandText& command_text)
      : out_(out),
        run_(*out.opened.loaded.run),
        command_text_(command_text),
        resolver_([this](const Digest& digest) { return out_.opened.blobs->get(digest); }) {}

  void read() {
    const LoadedRun& loaded = out_.opened.loaded;
    out_.info = info_of_run(run_, loaded.record, resolver_, loaded.state.get());
    out_.info.status = loaded.record.status;
    if (auto bytes = out_.opened.blobs->get(loaded.record.bundle_digest); bytes.ok())
      if (auto bundle = decode_bundle(*bytes); bundle.ok()) out_.bundle = std::move(*bundle);
    add_tasks();
    for (ProvenanceTask& task : out_.tasks) read_outputs(task);
    for (ProvenanceTask& task : out_.tasks) read_inputs(task);
    for (size_t i = 0; i < out_.tasks.size(); i++) number_outputs(i);
    for (size_t i = 0; i < out_.tasks.size(); i++) number_inputs(i);
    add_run_files();
  }

 private:
  /// A file that a task gets: an output of another one, or an input of the run.
  struct Source {
    int64_t task = -1;  // -1: `index` is that of a file
    size_t index = 0;
  };

  // ---- tasks

  void add_tasks() {
    std::unordered_map<std::string, const TaskInfo*> infos;
    for (const TaskInfo& info : out_.info.tasks) infos.emplace(info.name, &info);
    std::set<std::string> ids;
    task_of_.assign(run_.units.size(), -1);
    for (UnitId unit = 0; unit < run_.units.size(); unit++) {
      if (!core::is_counted(run_, unit) || run_.units[unit].dropped) continue;
      ProvenanceTask task;
      task.unit = unit;
      task.definition = core::def_of(run_, unit);
      if (task.definition == nullptr) continue;
      std::string name = core::unit_name(run_, unit);
      if (auto info = infos.find(name); info != infos.end()) task.info = *info->second;
      read_arguments(task);
      // The names of units are unique; ids of workflows and tags may not be.
      for (const std::string& each : {task.id, core::shown_name(run_, unit), name}) {
        task.id = each;
        if (!each.empty() && ids.insert(each).second) break;
      }
      task_of_[unit] = static_cast<int64_t>(out_.tasks.size());
      out_.tasks.push_back(std::move(task));
    }
    outputs_.resize(out_.tasks.size());
    sources_.resize(out_.tasks.size());
    known_sources_.resize(out_.tasks.size());
  }

  const TaskNode& node_of(UnitId unit) const { return run_.node(run_.units[unit].node); }

  std::optional<Value> arguments_of(UnitId unit) {
    if (run_.units[unit].key.is_zero()) return std::nullopt;  // its inputs are not known yet
    auto bytes = resolver_.arguments(run_, unit);
    if (!bytes.ok()) return std::nullopt;
    auto value = decode_value(*bytes);
    if (!value.ok()) return std::nullopt;
    return std::move(*value);
  }

  /// The command, and for a task of an imported workflow its id.
  void read_arguments(ProvenanceTask& task) {
    if (task.definition->kind != TaskKind::shell) return;
    std::optional<Value> arguments = arguments_of(task.unit);
    if (!arguments) return;
    Value named = named_arguments(*task.definition, *arguments, node_of(task.unit).named_args);
    auto text_of = [&](const char* name) {
      const Value* text = named.find(std::string_view(name));
      return text != nullptr && text->kind() == Value::Kind::string ? text->as_string() : "";
    };
    if (task.definition->shell.command.starts_with(kImportedMark)) {
      task.id = text_of("id");
      task.command = text_of("command");
    } else {
      task.command = command_text_(*task.definition, named);
    }
  }

  // ---- order

  /// The tasks whose results a handle gives. Sees through maps, whens and dynamic tasks.
  void add_sources(UnitId unit, const std::vector<PathStep>& path, std::set<UnitId>& out,
                   std::set<UnitId>& seen) {
    const core::Unit& u = run_.units[unit];
    const TaskNode& node = node_of(unit);
    if (node.kind == NodeKind::when) {
      if (!seen.insert(unit).second) return;
      add_sources_of(node.detail().condition, out, seen);
      if (u.branch == core::Branch::then_branch)
        add_sources_of(node.detail().then_value, out, seen);
      if (u.branch == core::Branch::else_branch)
        add_sources_of(node.detail().else_value, out, seen);
      return;
    }
    const std::vector<UnitId>& instances = core::instances_of(run_, unit);
    if (u.instance < 0 && node.kind == NodeKind::map && u.expanded) {
      if (const UnitId* one = instance_at(instances, path)) {
        out.insert(*one);
        return;
      }
      if (!seen.insert(unit).second) return;
      out.insert(instances.begin(), instances.end());
      if (instances.empty()) add_sources_of(node.detail().items, out, seen);
      return;
    }
    if (u.instance < 0 && !instances.empty()) {  // replicas of a service
      out.insert(instances.begin(), instances.end());
      return;
    }
    out.insert(unit);
    if (const Value* calls = core::dynamic_value(run_, unit); calls != nullptr)
      if (seen.insert(unit).second) add_sources_of(*calls, out, seen);
  }

  void add_sources_of(const Value& value, std::set<UnitId>& out, std::set<UnitId>& seen) {
    for_each_handle(value, [&](const Ref& ref) { add_sources(ref.node, ref.path, out, seen); });
  }

  bool has_gaps(const std::vector<UnitId>& instances) const {
    return std::ranges::any_of(instances,
                               [&](UnitId each) { return run_.units[each].gives_missing; });
  }

  /// The instance that `h[3]` selects; null if the handle gives more than one.
  const UnitId* instance_at(const std::vector<UnitId>& instances,
                            const std::vector<PathStep>& path) const {
    if (path.empty() || path[0].each || path[0].key.kind() != Value::Kind::integer) return nullptr;
    int64_t place = path[0].key.as_integer();
    bool is_inside = place >= 1 && static_cast<uint64_t>(place) <= instances.size();
    return is_inside && !has_gaps(instances) ? &instances[static_cast<size_t>(place) - 1] : nullptr;
  }

  /// The handles that give the item of an instance, with the part of a map that the item is.
  Value item_handles(UnitId unit) const {
    const Value& items = node_of(unit).detail().items;
    auto index = static_cast<size_t>(run_.units[unit].instance);
    if (items.kind() == Value::Kind::table)
      return index < items.as_table().list.size() ? items.as_table().list[index] : Value();
    if (items.kind() != Value::Kind::ref) return {};
    Ref ref = items.as_ref();
    bool is_each = std::ranges::all_of(ref.path, [](const PathStep& step) { return step.each; });
    if (!is_each) return items;
    // Item i of a list over a map is from its instance i.
    std::vector<PathStep> path = {{false, Value(static_cast<int64_t>(index) + 1)}};
    for (const PathStep& step : ref.path) path.push_back({false, step.key});
    ref.path = std::move(path);
    return Value(std::move(ref));
  }

  // ---- files

  void read_outputs(const ProvenanceTask& task) {
    const core::Unit& unit = run_.units[task.unit];
    if (unit.status != core::UnitStatus::succeeded || unit.result.is_zero()) return;
    auto value = resolver_.value(unit.result);
    if (!value.ok()) return;
    std::set<std::string> seen;
    auto index = static_cast<size_t>(task_of_[task.unit]);
    for (File& file : listed_files(**value)) {
      if (!seen.insert(identity_of(file)).second) continue;
      makers_.try_emplace(identity_of(file), Source{task_of_[task.unit], outputs_[index].size()});
      outputs_[index].push_back({std::move(file), -1});
    }
  }

  void read_inputs(ProvenanceTask& task) {
    const TaskNode& node = node_of(task.unit);
    std::set<UnitId> before;
    auto visit = [&](const Value& written) {
      for_each_handle(written, [&](const Ref& ref) {
        std::set<UnitId> sources, seen;
        add_sources(ref.node, ref.path, sources, seen);
        add_inputs(task, value_of(ref), sources);
        before.insert(sources.begin(), sources.end());
      });
      add_literals(task, written);
    };
    bool has_item = run_.units[task.unit].instance >= 0 && node.kind == NodeKind::map;
    if (has_item && node.detail().items.kind() == Value::Kind::ref) {
      std::set<UnitId> sources, seen;
      add_sources_of(item_handles(task.unit), sources, seen);
      std::optional<Value> arguments = arguments_of(task.unit);
      if (arguments && arguments->kind() == Value::Kind::table &&
          !arguments->as_table().list.empty())
        add_inputs(task, arguments->as_table().list[0], sources);
      before.insert(sources.begin(), sources.end());
    } else if (has_item) {
      visit(item_handles(task.unit));
    }
    visit(node.args.value());
    std::set<UnitId> seen;
    for (UnitId unit : node.detail().after) add_sources(unit, {}, before, seen);
    // A node of a branch follows the condition, and not what the branch returns: that may be
    // itself.
    for (UnitId when = node.guard.when; when != kNoNode; when = node_of(when).guard.when)
      add_sources_of(node_of(when).detail().condition, before, seen);
    for (UnitId unit : before)
      if (task_of_[unit] >= 0 && unit != task.unit)
        task.parents.push_back(static_cast<uint32_t>(task_of_[unit]));
    std::ranges::sort(task.parents);
    auto index = static_cast<uint32_t>(task_of_[task.unit]);
    for (uint32_t parent : task.parents) out_.tasks[parent].children.push_back(index);
  }

  Value value_of(const Ref& ref) {
    const core::Unit& unit = run_.units[ref.node];
    if (unit.result.is_zero()) return {};
    auto value = resolver_.value(unit.result);
    if (!value.ok()) return {};
    auto part = value_at(**value, ref.path);
    return part.ok() ? std::move(*part) : Value();
  }

  void add_inputs(const ProvenanceTask& task, const Value& value, const std::set<UnitId>& sources) {
    std::vector<File> files = listed_files(value);
    if (files.empty()) return;
    std::unordered_map<std::string, std::vector<Source>> candidates;
    for (UnitId unit : sources) {
      if (task_of_[unit] < 0) continue;
      const std::vector<Output>& outputs = outputs_[static_cast<size_t>(task_of_[unit])];
      for (size_t k = 0; k < outputs.size(); k++)
        candidates[identity_of(outputs[k].file)].push_back({task_of_[unit], k});
    }
    for (const File& file : files) {
      std::string identity = identity_of(file);
      auto near = candidates.find(identity);
      if (near == candidates.end()) {
        auto maker = makers_.find(identity);
        add_source(task, maker == makers_.end() ? external(file) : maker->second);
        continue;
      }
      // Equal files of several tasks: each is taken once.
      auto next = std::ranges::find_if(
          near->second, [&](const Source& source) { return !has_source(task, source); });
      if (next != near->second.end()) add_source(task, *next);
    }
  }

  /// Files in the arguments themselves: those of the script and of parameters, and in the calls of
  /// a dynamic task also those that it got.
  void add_literals(const ProvenanceTask& task, const Value& written) {
    bool is_late = run_.units[task.unit].node >= run_.plan->nodes.size();
    for (const File& file : listed_files(written)) {
      auto found = makers_.find(identity_of(file));
      add_source(task, is_late && found != makers_.end() ? found->second : external(file));
    }
  }

  bool has_source(const ProvenanceTask& task, const Source& source) const {
    return known_sources_[static_cast<size_t>(task_of_[task.unit])].contains(
        {source.task, source.index});
  }
  void add_source(const ProvenanceTask& task, const Source& source) {
    auto index = static_cast<size_t>(task_of_[task.unit]);
    if (known_sources_[index].insert({source.task, source.index}).second)
      sources_[index].push_back(source);
  }

  Source external(const File& file) {
    auto [found, is_new] = externals_.try_emplace(identity_of(file), out_.files.size());
    if (is_new) {
      out_.inputs.push_back(static_cast<uint32_t>(out_.files.size()));
      out_.files.push_back({unique("/inputs/" + as_path(file.name)), file, -1});
    }
    return {-1, found->second};
  }

  std::string unique(const std::string& wanted) {
    return ids_.add(wanted, [&](int n) {
      size_t slash = wanted.rfind('/') + 1;
      return fmt::format("{}{}-{}", wanted.substr(0, slash), n, wanted.substr(slash));
    });
  }

  /// The index of the file that the task's output is: a new one, or an input that it passes on.
  uint32_t file_of(size_t task, size_t k, int depth = 0) {
    constexpr int kDepthMax = 1000;
    Output& output = outputs_[task][k];
    if (output.file_index >= 0) return static_cast<uint32_t>(output.file_index);
    std::string identity = identity_of(output.file);
    for (const Source& source : sources_[task]) {
      if (depth > kDepthMax) break;
      const File& input = source.task < 0
                              ? out_.files[source.index].file
                              : outputs_[static_cast<size_t>(source.task)][source.index].file;
      bool is_itself = source.task == static_cast<int64_t>(task);
      if (is_itself || identity_of(input) != identity) continue;
      uint32_t index = source.task < 0
                           ? static_cast<uint32_t>(source.index)
                           : file_of(static_cast<size_t>(source.task), source.index, depth + 1);
      output.file_index = index;
      return index;
    }
    output.file_index = static_cast<int64_t>(out_.files.size());
    output.is_new = true;
    out_.files.push_back(
        {unique("/" + as_path(out_.tasks[task].id) + "/" + as_path(output.file.name)), output.file,
         static_cast<int64_t>(task)});
    return static_cast<uint32_t>(output.file_index);
  }

  void number_outputs(size_t task) {
    for (size_t k = 0; k < outputs_[task].size(); k++) {
      uint32_t index = file_of(task, k);
      if (outputs_[task][k].is_new) out_.tasks[task].outputs.push_back(index);
    }
  }

  void number_inputs(size_t task) {
    std::set<uint32_t> seen;
    for (const Source& source : sources_[task]) {
      uint32_t index = source.task < 0 ? static_cast<uint32_t>(source.index)
                                       : file_of(static_cast<size_t>(source.task), source.index);
      if (seen.insert(index).second) out_.tasks[task].inputs.push_back(index);
    }
  }

  void add_run_files() {
    for (const File& file : listed_files(out_.info.params)) external(file);
    std::set<uint32_t> seen;
    for (const File& file : listed_files(out_.info.result)) {
      auto found = makers_.find(identity_of(file));
      Source source = found == makers_.end() ? external(file) : found->second;
      uint32_t index = source.task < 0 ? static_cast<uint32_t>(source.index)
                                       : file_of(static_cast<size_t>(source.task), source.index);
      if (seen.insert(index).second) out_.results.push_back(index);
    }
  }

  struct Output {
    File file;
    int64_t file_index = -1;  // -1: not numbered yet
    bool is_new = false;      // the task made it
  };

  Provenance& out_;
  const core::Run& run_;
  const CommandText& command_text_;
  InputResolver resolver_;
  std::vector<int64_t> task_of_;              // per unit: index of its task, or -1
  std::vector<std::vector<Output>> outputs_;  // per task
  std::vector<std::vector<Source>> sources_;  // per task: where its input files are from
  std::vector<std::set<std::pair<int64_t, size_t>>> known_sources_;  // the same
  std::unordered_map<std::string, Source> makers_;                   // by identity: the first
  std::unordered_map<std::string, size_t> externals_;                // by identity
  UniqueNames ids_;                                                  // of files
};

}  // namespace

double ProvenanceTask::seconds() const {
  return has_run() ? static_cast<double>(info.finished_ms - info.started_ms) / 1000 : 0;
}

std::vector<std::pair<const char*, Value>> ProvenanceTask::figures() const {
  const TaskUsage& usage = info.usage;
  std::vector<std::pair<const char*, Value>> known;
  auto add = [&](const char* name, auto number) {
    if (number >= 0) known.emplace_back(name, Value(number));
  };
  // Rounded, because seconds are stored with about 7 digits.
  auto add_seconds = [&](const char* name, double seconds) {
    add(name, std::round(seconds * 1e6) / 1e6);
  };
  add("peak_memory", usage.peak_memory);
  add("read_bytes", usage.read_bytes);
  add("written_bytes", usage.written_bytes);
  add_seconds("cpu_s", usage.cpu_s);
  add_seconds("queue_s", usage.queue_s);
  add_seconds("stage_s", usage.stage_s);
  add_seconds("commit_s", usage.commit_s);
  add_seconds("gpu_s", usage.gpu_s);
  add_seconds("gpu_used_s", usage.gpu_used_s);
  add_seconds("gpu_measured_s", usage.gpu_measured_s);
  add_seconds("gpu_energy_j", usage.gpu_energy_j);
  return known;
}

std::vector<File> listed_files(const Value& value) {
  std::vector<File> files;
  add_files(value, files);
  return files;
}

Value named_arguments(const TaskDef& definition, const Value& arguments, bool are_named) {
  if (arguments.kind() != Value::Kind::table) return Value::map({});
  const std::vector<Value>& list = arguments.as_table().list;
  const std::vector<std::string>& names = definition.shell.args;
  bool is_table = list.size() == 1 && list[0].kind() == Value::Kind::table &&
                  !list[0].as_table().fields.empty();
  if (is_table && (are_named || names.size() != 1)) return list[0];
  std::vector<std::pair<Value, Value>> fields;
  for (size_t i = 0; i < list.size() && i < names.size(); i++)
    fields.emplace_back(Value(names[i]), list[i]);
  return Value::map(std::move(fields));
}

Provenance provenance_of(OpenedRun opened, const CommandText& command_text) {
  Provenance provenance;
  provenance.opened = std::move(opened);
  ProvenanceReader(provenance, command_text).read();
  return provenance;
}

}  // namespace flow
