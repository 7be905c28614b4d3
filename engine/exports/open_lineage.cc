#include "engine/exports/open_lineage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/base/remote_url.hpp"
#include "engine/base/size_units.hpp"
#include "engine/exports/json_fields.hpp"
#include "engine/fetch/http_client.hpp"
#include "engine/fetch/retry_delay.hpp"
#include "engine/query/code_diff.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/value/json.hpp"

namespace flow {

namespace {

constexpr const char* kProducer = "https://w3id.org/flow";
constexpr const char* kSchema =
    "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent";

/// A facet with its two obligatory fields. `version` and `name` as in its schema's URL.
Value facet(const std::string& version, const std::string& name, JsonFields fields) {
  fields.emplace_back("_producer", kProducer);
  fields.emplace_back(
      "_schemaURL",
      text_value(fmt::format("https://openlineage.io/spec/facets/{0}/{1}.json#/$defs/{1}", version,
                             name)));
  return Value::map(std::move(fields));
}

/// A UUID of version 7: the time, and digits that are the same at each export.
std::string uuid_of(int64_t time_ms, const std::string& name) {
  Digest digest = sha256(name);
  std::array<uint8_t, 16> bytes{};
  for (size_t i = 0; i < 6; i++)
    bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(time_ms) >> (8 * (5 - i)));
  std::copy_n(digest.bytes.begin(), 10, bytes.begin() + 6);
  bytes[6] = static_cast<uint8_t>(0x70 | (bytes[6] & 0x0f));
  bytes[8] = static_cast<uint8_t>(0x80 | (bytes[8] & 0x3f));
  std::string uuid;
  for (size_t i = 0; i < bytes.size(); i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    uuid += fmt::format("{:02x}", bytes[i]);
  }
  return uuid;
}

/// The type of the last event; "" while the run is active.
std::string end_type(const std::string& status) {
  if (status == "succeeded") return "COMPLETE";
  if (status == "failed") return "FAIL";
  bool is_aborted = status == "cancelled" || status == "interrupted" || status == "skipped";
  return is_aborted ? "ABORT" : "";
}

class EventWriter {
 public:
  EventWriter(const Provenance& from, std::string name_space)
      : provenance_(from), name_space_(std::move(name_space)) {
    run_id_ = uuid_of(from.info.started_ms, from.info.id);
    auto inputs = inputs_of(*from.opened.store, from.info.id);
    if (!inputs.ok()) return;
    for (const File& file : inputs->files)
      if (file.origin.starts_with('/')) origins_.emplace(identity_of(file), file.origin);
  }

  std::vector<std::string> events() {
    const RunInfo& info = provenance_.info;
    add(info.started_ms, "START", run(), job(), provenance_.inputs, {});
    for (const ProvenanceTask& task : provenance_.tasks) add_task(task);
    std::string end = end_type(info.status);
    int64_t last = info.started_ms;
    for (const Event& event : events_) last = std::max(last, event.at_ms);
    if (!end.empty())
      add(std::max(info.finished_ms, last), end, run(), job(), provenance_.inputs,
          provenance_.results);
    std::ranges::stable_sort(events_, {}, &Event::at_ms);
    std::vector<std::string> lines;
    for (const Event& event : events_) lines.push_back(event.json);
    return lines;
  }

 private:
  struct Event {
    int64_t at_ms = 0;
    std::string json;
  };

  void add(int64_t at_ms, const std::string& type, Value run, Value job,
           const std::vector<uint32_t>& inputs, const std::vector<uint32_t>& outputs) {
    Value event = Value::map({{"eventType", text_value(type)},
                              {"eventTime", format_time(at_ms)},
                              {"run", std::move(run)},
                              {"job", std::move(job)},
                              {"inputs", datasets(inputs)},
                              {"outputs", datasets(outputs)},
                              {"producer", kProducer},
                              {"schemaURL", kSchema}});
    events_.push_back({at_ms, to_plain_json(event)});
  }

  // ---- the run

  Value run() const {
    JsonFields facets = {
        {"processing_engine",
         facet("1-1-1", "ProcessingEngineRunFacet", {{"name", "flow"}, {"version", version()}})},
        {"flow_run", facet("1-0-0", "FlowRunFacet",
                           {{"id", text_value(provenance_.info.id)},
                            {"name", text_value(provenance_.info.name)},
                            {"params", text_value(to_json(provenance_.info.params))}})}};
    if (provenance_.info.status == "failed") {
      for (const ProvenanceTask& task : provenance_.tasks) {
        if (task.info.status != "failed" || task.info.ignored) continue;
        facets.emplace_back("errorMessage", error_of(task, task.id + ": "));
        break;
      }
    }
    return Value::map({{"runId", text_value(run_id_)}, {"facets", Value::map(std::move(facets))}});
  }

  Value job_type(const char* type) const {
    return facet("2-0-3", "JobTypeJobFacet",
                 {{"processingType", "BATCH"}, {"integration", "FLOW"}, {"jobType", type}});
  }

  Value job() const {
    JsonFields facets = {{"jobType", job_type("DAG")}};
    std::string code;
    for (const auto& [name, content] : provenance_.bundle.files)
      if (name == provenance_.bundle.main) code = content;
    add_source(facets, "lua", code);
    if (!provenance_.info.script.empty())
      facets.emplace_back(
          "sourceCodeLocation",
          facet("1-0-1", "SourceCodeLocationJobFacet",
                {{"type", "file"}, {"url", text_value("file://" + provenance_.info.script)}}));
    return Value::map({{"namespace", text_value(name_space_)},
                       {"name", text_value(provenance_.info.pipeline)},
                       {"facets", Value::map(std::move(facets))}});
  }

  static void add_source(JsonFields& facets, const char* language, const std::string& code) {
    if (!code.empty())
      facets.emplace_back("sourceCode",
                          facet("1-0-1", "SourceCodeJobFacet",
                                {{"language", language}, {"sourceCode", text_value(code)}}));
  }

  // ---- tasks

  Value error_of(const ProvenanceTask& task, const std::string& before) const {
    bool is_shell = task.definition->kind == TaskKind::shell;
    std::string message = task.info.error, trace;
    if (size_t line = message.find('\n'); line != std::string::npos) {
      trace = message.substr(line + 1);
      message.resize(line);
    }
    JsonFields fields = {{"message", text_value(before + message)},
                         {"programmingLanguage", is_shell ? "bash" : "lua"}};
    if (!trace.empty()) fields.emplace_back("stackTrace", text_value(trace));
    return facet("1-0-1", "ErrorMessageRunFacet", std::move(fields));
  }

  Value job_of(const ProvenanceTask& task) const {
    const TaskDef& definition = *task.definition;
    JsonFields facets = {{"jobType", job_type("TASK")}};
    if (definition.kind == TaskKind::shell) {
      add_source(facets, "bash", task.command.empty() ? definition.shell.command : task.command);
    } else {
      std::string code;
      for (const CodeComponent& component : definition.code_components) {
        if (component.source.empty()) continue;
        for (const std::string& line : source_lines(provenance_.bundle, component.source).lines)
          code += line + "\n";
        break;
      }
      add_source(facets, "lua", code);
    }
    return Value::map({{"namespace", text_value(name_space_)},
                       {"name", text_value(provenance_.info.pipeline + "." + definition.name)},
                       {"facets", Value::map(std::move(facets))}});
  }

  Value run_of(const ProvenanceTask& task, int64_t started_ms, bool has_ended) const {
    Value parent_run = Value::map({{"runId", text_value(run_id_)}});
    Value parent_job = Value::map(
        {{"namespace", text_value(name_space_)}, {"name", text_value(provenance_.info.pipeline)}});
    JsonFields about = {{"task", text_value(task.id)},
                        {"attempts", task.info.attempts},
                        {"cached", task.info.cached},
                        {"worker", text_value(task.info.worker)},
                        {"key", text_value(task.info.key)}};
    if (has_ended)
      for (auto& [name, value] : task.figures()) about.emplace_back(name, std::move(value));
    JsonFields facets = {
        {"parent", facet("1-0-1", "ParentRunFacet",
                         {{"run", std::move(parent_run)}, {"job", std::move(parent_job)}})},
        {"flow_task", facet("1-0-0", "FlowTaskRunFacet", std::move(about))}};
    if (has_ended && task.info.status == "failed")
      facets.emplace_back("errorMessage", error_of(task, ""));
    return Value::map(
        {{"runId", text_value(uuid_of(started_ms, provenance_.info.id + "\n" + task.id))},
         {"facets", Value::map(std::move(facets))}});
  }

  /// None for a task that never began.
  void add_task(const ProvenanceTask& task) {
    const TaskInfo& info = task.info;
    if (!task.has_begun() && !info.cached) return;
    int64_t start = std::max(info.started_ms, provenance_.info.started_ms);
    add(start, "START", run_of(task, start, false), job_of(task), task.inputs, {});
    std::string end = end_type(info.status);
    if (end.empty()) return;
    add(std::max(info.finished_ms, start), end, run_of(task, start, true), job_of(task),
        task.inputs, task.outputs);
  }

  // ---- files

  Value datasets(const std::vector<uint32_t>& files) const {
    std::vector<Value> all;
    for (uint32_t index : files) {
      const ProvenanceFile& file = provenance_.files[index];
      std::string path = file.producer < 0 ? origin_of(file.file) : "";
      std::string name = path.empty() ? provenance_.info.pipeline + file.id : path;
      Value version = facet("1-0-1", "DatasetVersionDatasetFacet",
                            {{"datasetVersion", text_value("sha256:" + file.file.digest.hex())}});
      all.push_back(Value::map({{"namespace", text_value(path.empty() ? name_space_ : "file")},
                                {"name", text_value(name)},
                                {"facets", Value::map({{"version", std::move(version)}})}}));
    }
    return Value::list(std::move(all));
  }

  /// The path from which the run read an input; "" if that is not known.
  std::string origin_of(const File& file) const {
    if (file.origin.starts_with('/')) return file.origin;
    auto found = origins_.find(identity_of(file));
    return found == origins_.end() ? "" : found->second;
  }

  static std::string identity_of(const File& file) { return file.digest.hex() + file.name; }

  const Provenance& provenance_;
  std::string name_space_, run_id_;
  std::unordered_map<std::string, std::string> origins_;  // of inputs that a file has
  std::vector<Event> events_;
};

}  // namespace

std::vector<std::string> open_lineage_events(const Provenance& provenance,
                                             const std::string& name_space) {
  return EventWriter(provenance, name_space).events();
}

Status post_events(const std::vector<std::string>& events, const std::string& url,
                   const std::string& endpoint, const std::string& api_key,
                   const fetch::FetchOptions& options) {
  auto parsed = parse_url(url);
  FLOW_TRY(parsed);
  if (parsed->path.empty() || parsed->path == "/")
    parsed->path = endpoint.starts_with('/') ? endpoint : "/" + endpoint;
  fetch::HttpClient client(options);
  for (const std::string& event : events) {
    auto response = fetch::send_with_retries(client, options, [&] {
      fetch::HttpRequest request;
      request.method = "POST";
      request.url = *parsed;
      request.headers = {{"Content-Type", "application/json"}};
      if (!api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + api_key);
      request.body = event;
      request.follows_redirects = false;
      request.shown = display_url(url);
      return request;
    });
    FLOW_TRY(response);
    if (!response->ok())
      return environment_error(fmt::format("cannot post events to `{}`: {}", display_url(url),
                                           fetch::failure_text(*response)));
  }
  return {};
}

}  // namespace flow
