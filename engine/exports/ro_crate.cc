#include "engine/exports/ro_crate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/size_units.hpp"
#include "engine/exports/crate_folder.hpp"
#include "engine/exports/json_fields.hpp"
#include "engine/query/code_diff.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/json.hpp"

namespace flow {

namespace {

using Ids = std::vector<std::string>;

constexpr const char* kMetadata = "ro-crate-metadata.json";
constexpr const char* kTerms = "https://w3id.org/ro/terms/workflow-run#";
constexpr const char* kUsage = "https://w3id.org/flow#";
constexpr const char* kSecond = "http://qudt.org/vocab/unit/SEC";
constexpr const char* kByte = "http://qudt.org/vocab/unit/BYTE";
struct Profile {
  const char *id, *name, *version;
};
constexpr Profile kProfiles[] = {
    {"https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"},
    {"https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"},
    {"https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5"},
    {"https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"}};
constexpr const char* kBioschemasWorkflow =
    "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE";
constexpr const char* kBioschemasParameter =
    "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE";

Value reference(const std::string& id) { return Value::map({{"@id", text_value(id)}}); }
Value references(const Ids& ids) {
  std::vector<Value> all;
  for (const std::string& id : ids) all.push_back(reference(id));
  return Value::list(std::move(all));
}

const char* media_type_of(const std::string& name) {
  static const std::map<std::string, const char*> types = {{".txt", "text/plain"},
                                                           {".log", "text/plain"},
                                                           {".md", "text/markdown"},
                                                           {".csv", "text/csv"},
                                                           {".tsv", "text/tab-separated-values"},
                                                           {".json", "application/json"},
                                                           {".html", "text/html"},
                                                           {".lua", "text/x-lua"},
                                                           {".png", "image/png"},
                                                           {".jpg", "image/jpeg"},
                                                           {".svg", "image/svg+xml"},
                                                           {".pdf", "application/pdf"},
                                                           {".gz", "application/gzip"},
                                                           {".zip", "application/zip"}};
  auto found = types.find(std::filesystem::path(name).extension().string());
  return found == types.end() ? "application/octet-stream" : found->second;
}

const char* action_status(const std::string& status) {
  if (status == "succeeded") return "http://schema.org/CompletedActionStatus";
  bool has_failed = status == "failed" || status == "cancelled" || status == "skipped";
  return has_failed ? "http://schema.org/FailedActionStatus"
                    : "http://schema.org/ActiveActionStatus";
}

/// The type of a parameter's values.
const char* additional_type(const ParamSpec& param, const Value* value) {
  if (param.type == "int") return "Integer";
  if (param.type == "number") return "Float";
  if (param.type == "boolean") return "Boolean";
  if (param.type == "path") {
    bool is_folder =
        value != nullptr && value->kind() == Value::Kind::file && value->as_file().is_folder;
    return is_folder ? "Dataset" : "File";
  }
  if (param.type == "files") return "File";
  return param.type == "list" ? "PropertyValue" : "Text";
}

class CrateWriter {
 public:
  CrateWriter(const Provenance& from, const std::string& directory, const std::string& agent)
      : provenance_(from),
        plan_(*from.opened.loaded.run->plan),
        folder_(*from.opened.blobs, directory),
        agent_("#agent/" + uri_of(agent)),
        agent_name_(agent) {}

  void write() {
    add("#flow", {"SoftwareApplication"}, {{"name", "flow"}, {"softwareVersion", version()}});
    add("#lua", {"ComputerLanguage"},
        {{"name", "Lua"}, {"url", reference("https://www.lua.org/")}, {"version", "5.4"}});
    add(agent_, {"Person"}, {{"name", text_value(agent_name_)}});
    for (const Profile& each : kProfiles)
      add(each.id, {"CreativeWork"}, {{"name", each.name}, {"version", each.version}});
    add_code();
    add_files();
    add_parameters();
    add_tools();
    for (const ProvenanceTask& task : provenance_.tasks) add_action(task);
    add_run();
    add_workflow();
    add_root();
    folder_.write(kMetadata, to_plain_json(document(), 2) + "\n");
  }

 private:
  void add(const std::string& id, const std::vector<std::string>& types, JsonFields fields) {
    std::vector<Value> listed;
    for (const std::string& type : types) listed.push_back(text_value(type));
    fields.emplace_back("@id", text_value(id));
    fields.emplace_back("@type", types.size() == 1 ? listed[0] : Value::list(listed));
    entities_.push_back(Value::map(std::move(fields)));
  }

  /// The terms of the profile are written out, so that a reader needs no other context than
  /// RO-Crate's.
  Value document() {
    JsonFields terms;
    for (const char* term :
         {"ContainerImage", "ParameterConnection", "connection", "containerImage", "environment",
          "registry", "resourceUsage", "sha256", "sourceParameter", "tag", "targetParameter"})
      terms.emplace_back(term, text_value(std::string(kTerms) + term));
    return Value::map({{"@context", Value::list({"https://w3id.org/ro/crate/1.1/context",
                                                 Value::map(std::move(terms))})},
                       {"@graph", Value::list(std::move(entities_))}});
  }

  // ---- code

  void add_code() {
    for (const auto& [name, content] : provenance_.bundle.files) {
      std::string path = folder_.place("workflow", "", name);
      folder_.write(path, content);
      std::string id = uri_of(path);
      parts_.push_back(id);
      JsonFields fields = {{"name", text_value(name)},
                           {"contentSize", std::to_string(content.size())},
                           {"encodingFormat", media_type_of(name)},
                           {"sha256", sha256(content).hex()},
                           {"programmingLanguage", reference("#lua")}};
      if (name == provenance_.bundle.main) {
        workflow_ = id;
        workflow_fields_ = std::move(fields);
      } else {
        add(id, {"File", "SoftwareSourceCode"}, std::move(fields));
        modules_.push_back(id);
      }
    }
    if (!workflow_.empty()) return;
    // The state lost the code: the crate says so.
    std::string path = folder_.place("workflow", "", "missing.lua");
    std::string note = "-- The state no longer has the code of this run.\n";
    folder_.write(path, note);
    workflow_ = uri_of(path);
    parts_.push_back(workflow_);
    workflow_fields_ = {{"name", text_value(provenance_.info.pipeline)},
                        {"encodingFormat", "text/x-lua"},
                        {"programmingLanguage", reference("#lua")}};
  }

  void add_workflow() {
    Ids steps, tools, inputs;
    for (const auto& [definition, name] : tools_) {
      steps.push_back("#step/" + name);
      tools.push_back("#task/" + name);
    }
    for (const ParamSpec& param : plan_.params_schema)
      inputs.push_back("#parameter/" + uri_of(param.name));
    for (const std::string& module : modules_) tools.push_back(module);
    JsonFields fields = workflow_fields_;
    fields.emplace_back("description", text_value("the pipeline " + provenance_.info.pipeline));
    fields.emplace_back("version",
                        text_value(provenance_.opened.loaded.record.bundle_digest.hex()));
    fields.emplace_back("conformsTo", reference(kBioschemasWorkflow));
    fields.emplace_back("step", references(steps));
    fields.emplace_back("hasPart", references(tools));
    fields.emplace_back("input", references(inputs));
    fields.emplace_back("output", references({"#output/result"}));
    add(workflow_, {"File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"},
        std::move(fields));
    add(kBioschemasWorkflow, {"CreativeWork"}, {{"name", "ComputationalWorkflow profile"}});
    add(kBioschemasParameter, {"CreativeWork"}, {{"name", "FormalParameter profile"}});
  }

  // ---- files

  void add_files() {
    for (const ProvenanceFile& file : provenance_.files) {
      std::string group =
          file.producer < 0 ? "" : provenance_.tasks[static_cast<size_t>(file.producer)].id;
      std::string path =
          folder_.place(file.producer < 0 ? "inputs" : "outputs", group, file.file.name);
      folder_.copy(file.file, path);
      std::string id = uri_of(path) + (file.file.is_folder ? "/" : "");
      file_ids_.push_back(id);
      parts_.push_back(id);
    }
    const Value& result = provenance_.info.result;
    if (result.is_nil()) return;
    result_json_ = folder_.place("result", "", "result.json");
    result_text_ = to_json(result, 2) + "\n";
    folder_.write(result_json_, result_text_);
    parts_.push_back(result_json_);
  }

  /// `parameter`: of which the file is a value; "" for none.
  void describe_file(size_t index, const std::string& parameter) {
    const File& file = provenance_.files[index].file;
    JsonFields fields = {{"name", text_value(file.name)},
                         {"contentSize", std::to_string(file.size)}};
    if (!parameter.empty()) fields.emplace_back("exampleOfWork", reference(parameter));
    if (!file.is_folder) {
      fields.emplace_back("sha256", file.digest.hex());
      fields.emplace_back("encodingFormat", media_type_of(file.name));
      return add(file_ids_[index], {"File"}, std::move(fields));
    }
    Ids entries;
    for (const File::Entry& entry : file.entries) {
      entries.push_back(file_ids_[index] + uri_of(entry.path));
      add(entries.back(), {"File"},
          {{"name", text_value(entry.path)},
           {"contentSize", std::to_string(entry.size)},
           {"encodingFormat", media_type_of(entry.path)},
           {"sha256", entry.digest.hex()}});
    }
    if (!entries.empty()) fields.emplace_back("hasPart", references(entries));
    add(file_ids_[index], {"Dataset"}, std::move(fields));
  }

  // ---- parameters

  int64_t input_index(const File& file) const {
    for (uint32_t index : provenance_.inputs) {
      const File& each = provenance_.files[index].file;
      if (each.digest == file.digest && each.name == file.name && each.is_folder == file.is_folder)
        return index;
    }
    return -1;
  }

  void add_parameters() {
    std::map<size_t, std::string> parameter_of;  // per file
    for (const ParamSpec& param : plan_.params_schema) {
      std::string id = "#parameter/" + uri_of(param.name);
      const Value* value = provenance_.info.params.find(param.name);
      Ids values;
      if (value != nullptr)
        for (const File& file : listed_files(*value)) {
          int64_t index = input_index(file);
          if (index < 0) continue;
          parameter_of[static_cast<size_t>(index)] = id;
          values.push_back(file_ids_[static_cast<size_t>(index)]);
        }
      if (value != nullptr && values.empty() && !value->is_nil()) {
        values.push_back("#value/" + uri_of(param.name));
        bool is_scalar = value->kind() == Value::Kind::boolean ||
                         value->kind() == Value::Kind::integer ||
                         value->kind() == Value::Kind::number;
        add(values.back(), {"PropertyValue"},
            {{"name", text_value(param.name)},
             {"exampleOfWork", reference(id)},
             {"value", is_scalar                              ? *value
                       : value->kind() == Value::Kind::string ? text_value(value->as_string())
                                                              : text_value(to_json(*value))}});
      }
      run_inputs_.insert(run_inputs_.end(), values.begin(), values.end());
      JsonFields fields = {{"name", text_value(param.name)},
                           {"additionalType", additional_type(param, value)},
                           {"conformsTo", reference(kBioschemasParameter)},
                           {"valueRequired", text_value(param.has_default ? "False" : "True")}};
      if (!param.help.empty()) fields.emplace_back("description", text_value(param.help));
      if (!values.empty()) fields.emplace_back("workExample", references(values));
      add(id, {"FormalParameter"}, std::move(fields));
    }
    for (uint32_t index : provenance_.inputs)
      if (!parameter_of.contains(index)) run_inputs_.push_back(file_ids_[index]);
    for (uint32_t index : provenance_.results) {
      parameter_of.try_emplace(index, "#output/result");
      run_results_.push_back(file_ids_[index]);
    }
    if (!result_json_.empty()) {
      add(result_json_, {"File"},
          {{"name", "result.json"},
           {"description", "the value that the pipeline returned"},
           {"contentSize", std::to_string(result_text_.size())},
           {"encodingFormat", "application/json"},
           {"sha256", sha256(result_text_).hex()},
           {"exampleOfWork", reference("#output/result")}});
      run_results_.push_back(result_json_);
    }
    JsonFields output = {{"name", "result"},
                         {"additionalType", "File"},
                         {"conformsTo", reference(kBioschemasParameter)}};
    if (!run_results_.empty()) output.emplace_back("workExample", references(run_results_));
    add("#output/result", {"FormalParameter"}, std::move(output));
    for (size_t i = 0; i < provenance_.files.size(); i++) {
      auto parameter = parameter_of.find(i);
      describe_file(i, parameter == parameter_of.end() ? "" : parameter->second);
    }
  }

  // ---- tasks

  /// The definition's text: its command, or the function's lines.
  std::string source_of(const TaskDef& definition) const {
    if (definition.kind == TaskKind::shell) return definition.shell.command;
    std::string source;
    for (const CodeComponent& component : definition.code_components) {
      if (component.source.empty()) continue;
      for (const std::string& line : source_lines(provenance_.bundle, component.source).lines)
        source += line + "\n";
      break;
    }
    return source;
  }

  void add_tools() {
    for (const ProvenanceTask& task : provenance_.tasks) {
      const TaskDef& definition = *task.definition;
      if (tools_.contains(&definition)) continue;
      std::string name = uri_of(definition.name);
      bool is_new = tool_names_.insert(name).second;
      if (!is_new) name += "-" + std::to_string(definition.ordinal);
      tools_.emplace(&definition, name);
      JsonFields fields = {{"name", text_value(definition.name)},
                           {"softwareVersion", definition.code.hex()}};
      std::string source = source_of(definition);
      if (!source.empty()) fields.emplace_back("description", text_value(source));
      add("#task/" + name, {"SoftwareApplication"}, std::move(fields));
      add("#step/" + name, {"HowToStep"},
          {{"name", text_value(definition.name)},
           {"position", std::to_string(tools_.size())},
           {"workExample", reference("#task/" + name)}});
    }
  }

  Ids file_references(const std::vector<uint32_t>& files) const {
    Ids ids;
    for (uint32_t file : files) ids.push_back(file_ids_[file]);
    return ids;
  }

  void add_times(JsonFields& fields, int64_t started_ms, int64_t finished_ms) const {
    if (started_ms != 0) fields.emplace_back("startTime", format_time(started_ms));
    if (finished_ms != 0) fields.emplace_back("endTime", format_time(finished_ms));
  }

  void add_action(const ProvenanceTask& task) {
    if (!task.has_run() && !task.info.cached) return;  // it did nothing
    std::string name = uri_of(task.id), tool = tools_.at(task.definition);
    std::string id = "#action/" + name;
    JsonFields fields = {{"name", text_value(task.id)},
                         {"agent", reference(agent_)},
                         {"instrument", reference("#task/" + tool)},
                         {"actionStatus", action_status(task.info.status)}};
    add_times(fields, task.info.started_ms, task.info.finished_ms);
    std::string description = task.info.cached ? "The result was in the cache: nothing ran."
                                               : fmt::format("{} attempt(s), the last on {}",
                                                             task.info.attempts, task.info.worker);
    if (!task.command.empty()) description += "\n" + task.command;
    fields.emplace_back("description", text_value(description));
    if (!task.info.error.empty() && task.info.status != "succeeded")
      fields.emplace_back("error", text_value(task.info.error));
    if (!task.inputs.empty())
      fields.emplace_back("object", references(file_references(task.inputs)));
    if (!task.outputs.empty())
      fields.emplace_back("result", references(file_references(task.outputs)));
    add_environment(*task.definition, tool, fields);
    Ids figures;
    for (auto& [figure, value] : task.figures()) {
      figures.push_back("#usage/" + name + "/" + figure);
      add(figures.back(), {"PropertyValue"},
          {{"name", figure},
           {"propertyID", std::string(kUsage) + figure},
           {"unitCode", std::string_view(figure).ends_with("_s") ? kSecond : kByte},
           {"value", std::move(value)}});
    }
    if (!figures.empty()) fields.emplace_back("resourceUsage", references(figures));
    add(id, {"CreateAction"}, std::move(fields));
    add("#control/" + name, {"ControlAction"},
        {{"name", text_value("orchestrate " + task.id)},
         {"instrument", reference("#step/" + tool)},
         {"object", reference(id)}});
    actions_.push_back(id);
    controls_.push_back("#control/" + name);
  }

  /// Variables of the script, and the container. The values of flow.env are not known, and may be
  /// secrets.
  void add_environment(const TaskDef& definition, const std::string& tool, JsonFields& fields) {
    Ids variables;
    for (const EnvEntry& entry : definition.env)
      if (!entry.from_submitter) variables.push_back("#env/" + tool + "/" + uri_of(entry.name));
    if (!variables.empty()) fields.emplace_back("environment", references(variables));
    const CommandEnvironment& environment = definition.shell.environment;
    std::string image = environment.container.empty() ? "" : "#image/" + tool;
    if (!image.empty()) fields.emplace_back("containerImage", reference(image));
    if (!described_.insert(tool).second) return;
    for (const EnvEntry& entry : definition.env)
      if (!entry.from_submitter)
        add("#env/" + tool + "/" + uri_of(entry.name), {"PropertyValue"},
            {{"name", text_value(entry.name)}, {"value", text_value(entry.value)}});
    if (image.empty()) return;
    bool is_sif = !environment.image_path.empty();
    JsonFields about = {
        {"name", text_value(environment.container)},
        {"additionalType", reference(std::string(kTerms) + (is_sif ? "SIFImage" : "DockerImage"))}};
    if (!environment.image.empty()) about.emplace_back("sha256", text_value(environment.image));
    add(image, {"ContainerImage"}, std::move(about));
  }

  // ---- the run

  void add_run() {
    const RunInfo& info = provenance_.info;
    std::string id = "#run/" + uri_of(info.id);
    JsonFields fields = {
        {"name", text_value("run " + info.id + (info.name.empty() ? "" : " " + info.name))},
        {"description", text_value(fmt::format("the run {} of the pipeline {} {}", info.id,
                                               info.pipeline, info.status))},
        {"agent", reference(agent_)},
        {"instrument", reference(workflow_)},
        {"actionStatus", action_status(info.status)}};
    add_times(fields, info.started_ms, info.finished_ms);
    for (const ProvenanceTask& task : provenance_.tasks) {
      if (info.status != "failed" || task.info.status != "failed" || task.info.error.empty())
        continue;
      fields.emplace_back("error", text_value(task.id + ": " + task.info.error));
      break;
    }
    if (!run_inputs_.empty()) fields.emplace_back("object", references(run_inputs_));
    if (!run_results_.empty()) fields.emplace_back("result", references(run_results_));
    add(id, {"CreateAction"}, std::move(fields));
    Ids all = {id};
    all.insert(all.end(), actions_.begin(), actions_.end());
    if (!controls_.empty()) {
      JsonFields organize = {{"name", text_value("orchestrate the run " + info.id)},
                             {"agent", reference(agent_)},
                             {"instrument", reference("#flow")},
                             {"object", references(controls_)},
                             {"result", reference(id)}};
      add_times(organize, info.started_ms, info.finished_ms);
      add("#organize/" + uri_of(info.id), {"OrganizeAction"}, std::move(organize));
    }
    actions_ = std::move(all);
  }

  void add_root() {
    const RunInfo& info = provenance_.info;
    Ids profiles;
    for (const Profile& each : kProfiles) profiles.emplace_back(each.id);
    int64_t date = info.finished_ms != 0 ? info.finished_ms : info.started_ms;
    add("./", {"Dataset"},
        {{"name", text_value("run " + info.id + " of " + info.pipeline)},
         {"description", text_value(fmt::format(
                             "The run {} of the pipeline {}: its code, the files that its tasks "
                             "read and made, and its result. It {}.",
                             info.id, info.pipeline, status_clause(info.status)))},
         {"datePublished", format_time(date)},
         {"license", "No license is stated for the content of this run."},
         {"author", reference(agent_)},
         {"conformsTo", references(profiles)},
         {"mainEntity", reference(workflow_)},
         {"mentions", references(actions_)},
         {"hasPart", references(parts_)}});
    add(kMetadata, {"CreativeWork"},
        {{"about", reference("./")},
         {"conformsTo", references({"https://w3id.org/ro/crate/1.1",
                                    "https://w3id.org/workflowhub/workflow-ro-crate/1.0"})}});
  }

  const Provenance& provenance_;
  const Plan& plan_;
  CrateFolder folder_;
  std::string agent_, agent_name_;  // id and name
  std::vector<Value> entities_;
  Ids parts_, modules_, actions_, controls_, run_inputs_, run_results_;
  Ids file_ids_;  // per file
  std::string workflow_;
  JsonFields workflow_fields_;
  std::string result_json_, result_text_;
  std::map<const TaskDef*, std::string> tools_;  // with the name in ids
  std::set<std::string> tool_names_, described_;
};

}  // namespace

std::string write_ro_crate(const Provenance& provenance, const std::string& directory,
                           const std::string& agent) {
  CrateWriter(provenance, directory, agent).write();
  return (std::filesystem::path(directory) / kMetadata).string();
}

}  // namespace flow
