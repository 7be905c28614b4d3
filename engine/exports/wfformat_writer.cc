#include "engine/exports/wfformat_writer.hpp"

#include <algorithm>
#include <map>

#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/exports/json_fields.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/json.hpp"

namespace flow {

namespace {

class WfFormatWriter {
 public:
  explicit WfFormatWriter(const Provenance& provenance) : provenance_(provenance) {}

  Value document() {
    std::vector<Value> tasks, executed;
    for (const ProvenanceTask& task : provenance_.tasks) {
      tasks.push_back(specification_of(task));
      if (task.has_run() || task.info.cached) executed.push_back(execution_of(task));
    }
    Value specification =
        Value::map({{"tasks", Value::list(std::move(tasks))}, {"files", Value::list(files())}});
    const RunInfo& info = provenance_.info;
    JsonFields execution = {{"makespanInSeconds", makespan()},
                            {"executedAt", format_time(info.started_ms)},
                            {"tasks", Value::list(std::move(executed))}};
    if (!machines_.empty()) execution.emplace_back("machines", Value::list(machines()));
    JsonFields workflow = {{"specification", std::move(specification)}};
    if (info.started_ms != 0) workflow.emplace_back("execution", Value::map(std::move(execution)));
    return Value::map({
        {"name", text_value(info.pipeline)},
        {"description",
         text_value("the run " + info.id + (info.name.empty() ? "" : " " + info.name) + ", " +
                    info.status)},
        {"createdAt", format_time(info.started_ms)},
        {"schemaVersion", "1.5"},
        {"runtimeSystem", Value::map({{"name", "flow"}, {"version", version()}})},
        {"workflow", Value::map(std::move(workflow))},
    });
  }

 private:
  double makespan() const {
    int64_t end = provenance_.info.finished_ms;
    for (const ProvenanceTask& task : provenance_.tasks) end = std::max(end, task.info.finished_ms);
    return static_cast<double>(std::max<int64_t>(end - provenance_.info.started_ms, 0)) / 1000;
  }

  std::vector<Value> files() const {
    std::vector<Value> files;
    for (const ProvenanceFile& file : provenance_.files)
      files.push_back(Value::map(
          {{"id", text_value(file.id)}, {"sizeInBytes", static_cast<int64_t>(file.file.size)}}));
    return files;
  }

  Value task_ids(const std::vector<uint32_t>& tasks) const {
    std::vector<Value> ids;
    for (uint32_t task : tasks) ids.push_back(text_value(provenance_.tasks[task].id));
    return Value::list(std::move(ids));
  }
  Value file_ids(const std::vector<uint32_t>& files) const {
    std::vector<Value> ids;
    for (uint32_t file : files) ids.push_back(text_value(provenance_.files[file].id));
    return Value::list(std::move(ids));
  }

  Value specification_of(const ProvenanceTask& task) const {
    return Value::map({{"id", text_value(task.id)},
                       {"name", text_value(task.definition->name)},
                       {"parents", task_ids(task.parents)},
                       {"children", task_ids(task.children)},
                       {"inputFiles", file_ids(task.inputs)},
                       {"outputFiles", file_ids(task.outputs)}});
  }

  Value execution_of(const ProvenanceTask& task) {
    JsonFields fields = {{"id", text_value(task.id)},
                         {"runtimeInSeconds", task.seconds()},
                         {"executedAt", format_time(task.info.started_ms)}};
    add_usage(task, fields);
    if (!task.command.empty())
      fields.emplace_back("command", Value::map({{"program", text_value(task.command)},
                                                 {"arguments", Value::list({})}}));
    const core::Run& run = *provenance_.opened.loaded.run;
    double cpus = core::resources_of(run, task.unit).cpus_milli / 1000.0;
    if (cpus > 0) fields.emplace_back("coreCount", cpus);
    std::vector<Value> names;
    for (core::WorkerId worker : core::workers_of(run.units[task.unit]))
      names.push_back(text_value(machine_of(worker)));
    if (!names.empty()) fields.emplace_back("machines", Value::list(std::move(names)));
    return Value::map(std::move(fields));
  }

  /// Only what the attempt was long enough to measure. A CPU that is busy all the time is 100.
  static void add_usage(const ProvenanceTask& task, JsonFields& fields) {
    constexpr double kPercent = 100;
    const TaskUsage& usage = task.info.usage;
    if (usage.cpu_s >= 0 && task.seconds() > 0)
      fields.emplace_back("avgCPU", usage.cpu_s / task.seconds() * kPercent);
    if (usage.read_bytes >= 0) fields.emplace_back("readBytes", usage.read_bytes);
    if (usage.written_bytes >= 0) fields.emplace_back("writtenBytes", usage.written_bytes);
    if (usage.peak_memory >= 0) fields.emplace_back("memoryInBytes", usage.peak_memory);
  }

  const std::string& machine_of(core::WorkerId worker) {
    const std::vector<core::WorkerState>& workers = provenance_.opened.loaded.state->workers;
    core::WorkerId known = worker < workers.size() ? worker : 0;
    const core::WorkerInfo& info = workers[known].info;
    std::string name = known == 0 || info.name.empty() ? kHeadWorkerName : info.name;
    auto [found, is_new] = machines_.try_emplace(name, &info);
    return found->first;
  }

  std::vector<Value> machines() const {
    std::vector<Value> machines;
    for (const auto& [name, info] : machines_) {
      JsonFields fields = {{"nodeName", text_value(name)}};
      if (info->cpus_milli >= 1000)
        fields.emplace_back("cpu", Value::map({{"coreCount", int64_t{info->cpus_milli / 1000}}}));
      if (info->memory_bytes > 0) fields.emplace_back("memoryInBytes", info->memory_bytes);
      machines.push_back(Value::map(std::move(fields)));
    }
    return machines;
  }

  const Provenance& provenance_;
  std::map<std::string, const core::WorkerInfo*> machines_;  // on which tasks ran
};

}  // namespace

std::string wfformat_of(const Provenance& provenance) {
  return to_plain_json(WfFormatWriter(provenance).document(), 2) + "\n";
}

}  // namespace flow
