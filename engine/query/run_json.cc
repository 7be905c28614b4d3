// The JSON of runs and events, as defined in docs/reference-cli.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/size_units.hpp"
#include "engine/value/json.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace {

std::string time_or_null(int64_t ms) { return ms == 0 ? "null" : text_to_json(format_time(ms)); }

std::string text_or_null(const std::string& text) {
  return text.empty() ? "null" : text_to_json(text);
}

std::string json_of(const Counts& c) {
  return fmt::format(
      R"({{"succeeded":{},"cached":{},"failed":{},"skipped":{},"cancelled":{},"pending":{},"ready":{},"running":{},"waiting":{},"ignored":{}}})",
      c.succeeded, c.cached, c.failed, c.skipped, c.cancelled, c.pending, c.ready, c.running,
      c.waiting, c.ignored);
}

/// Below 0: unknown.
std::string number_or_null(int64_t number) { return number < 0 ? "null" : std::to_string(number); }

/// Stored as a float: the fewest digits that give the same one. Below 0: unknown.
std::string seconds_or_null(double seconds) {
  return seconds < 0 ? "null" : fmt::format("{}", static_cast<float>(seconds));
}

/// Computed as a double: to the millionth. Below 0: unknown.
std::string millionths_or_null(double number) {
  return number < 0 ? "null" : fmt::format("{}", std::round(number * 1e6) / 1e6);
}

/// `"peak_memory":…,"cpu_s":…,…`
std::string fields_of(const TaskUsage& usage) {
  return fmt::format(
      R"("peak_memory":{},"cpu_s":{},"read_bytes":{},"written_bytes":{},"queue_s":{},"stage_s":{},"commit_s":{},"gpu_s":{},"gpu_used_s":{},"gpu_measured_s":{},"gpu_energy_j":{})",
      number_or_null(usage.peak_memory), seconds_or_null(usage.cpu_s),
      number_or_null(usage.read_bytes), number_or_null(usage.written_bytes),
      seconds_or_null(usage.queue_s), seconds_or_null(usage.stage_s),
      seconds_or_null(usage.commit_s), millionths_or_null(usage.gpu_s),
      millionths_or_null(usage.gpu_used_s), millionths_or_null(usage.gpu_measured_s),
      millionths_or_null(usage.gpu_energy_j));
}

/// What the newest attempts used together, of those whose figure is known.
TaskUsage total_usage(const std::vector<TaskInfo>& tasks) {
  TaskUsage total;
  auto add = [](auto& sum, auto figure) {
    if (figure >= 0) sum = std::max(sum, decltype(figure){0}) + figure;
  };
  for (const TaskInfo& task : tasks) {
    const TaskUsage& usage = task.usage;
    add(total.queue_s, usage.queue_s);
    add(total.stage_s, usage.stage_s);
    add(total.commit_s, usage.commit_s);
    add(total.cpu_s, usage.cpu_s);
    add(total.gpu_s, usage.gpu_s);
    add(total.gpu_used_s, usage.gpu_used_s);
    add(total.gpu_measured_s, usage.gpu_measured_s);
    add(total.gpu_energy_j, usage.gpu_energy_j);
    add(total.read_bytes, usage.read_bytes);
    add(total.written_bytes, usage.written_bytes);
    total.peak_memory = std::max(total.peak_memory, usage.peak_memory);
  }
  return total;
}

/// "" without tasks.
std::string usage_json(const std::vector<TaskInfo>& tasks) {
  if (tasks.empty()) return "";
  auto measured = std::ranges::count_if(tasks, [](const auto& t) { return t.usage.cpu_s >= 0; });
  return fmt::format(R"(,"usage":{{{},"cpu_tasks":{}}})", fields_of(total_usage(tasks)), measured);
}

std::string json_of(const TaskInfo& task) {
  std::string duration = "null";
  if (task.started_ms != 0 && task.finished_ms != 0) {
    duration =
        fmt::format("{:.3f}", static_cast<double>(task.finished_ms - task.started_ms) / 1000);
  }
  std::string json = fmt::format(
      R"({{"name":{},"tag":{},"key":{},"status":{},"attempts":{},"cached":{},"ignored":{},"ranks":{},"started":{},"finished":{},"duration_s":{},"worker":{},"error":{},{},"user":{})",
      text_to_json(task.name), text_or_null(task.tag), text_or_null(task.key),
      text_to_json(task.status), task.attempts, task.cached, task.ignored, task.ranks,
      time_or_null(task.started_ms), time_or_null(task.finished_ms), duration,
      text_or_null(task.worker), text_or_null(task.error), fields_of(task.usage),
      text_or_null(task.user));
  for (size_t i = 0; i < task.gpus.size(); i++)
    json += (i == 0 ? ",\"gpus\":[" : ",") + text_to_json(task.gpus[i]);
  if (!task.gpus.empty()) json += "]";
  if (task.grew_from > 0) json += fmt::format(",\"grew_from\":{}", task.grew_from);
  if (!task.url.empty()) json += ",\"url\":" + text_to_json(task.url);
  if (task.restarts > 0) json += fmt::format(",\"restarts\":{}", task.restarts);
  for (size_t i = 0; i < task.failed.size(); i++)
    json += fmt::format(R"({}{{"attempt":{},"worker":{},"cause":{}}})",
                        i == 0 ? ",\"failed_attempts\":[" : ",", task.failed[i].attempt,
                        text_to_json(task.failed[i].worker), text_to_json(task.failed[i].cause));
  if (!task.failed.empty()) json += "]";
  if (!task.waits_for.empty()) json += ",\"waits_for\":" + text_to_json(task.waits_for);
  return json + "}";
}

std::string listed_json(const std::vector<std::string>& texts) {
  std::string listed;
  for (const std::string& text : texts) listed += (listed.empty() ? "" : ",") + text_to_json(text);
  return listed;
}

std::string json_of(const ReplicaInfo& replica) {
  return fmt::format(R"({{"name":{},"status":{},"pid":{},"worker":{},"gpus":[{}]}})",
                     text_to_json(replica.name), text_to_json(replica.status),
                     replica.pid == 0 ? "null" : std::to_string(replica.pid),
                     text_or_null(replica.worker), listed_json(replica.gpus));
}

/// Null if the number of replicas is fixed.
std::string scaling_json(const ServiceInfo& service) {
  if (service.replicas_max == service.replicas_min) return "null";
  return fmt::format(R"({{"min":{},"max":{},"wanted":{}}})", service.replicas_min,
                     service.replicas_max, service.replicas_wanted);
}

/// `"service":…,"version":…,"url":…,"access_log":…,"scaling":…,"replicas":[…]`
std::string fields_of(const ServiceInfo& service) {
  std::string replicas;
  for (const ReplicaInfo& replica : service.replicas)
    replicas += (replicas.empty() ? "" : ",") + json_of(replica);
  return fmt::format(
      R"("service":{},"version":{},"url":{},"access_log":{},"scaling":{},"replicas":[{}])",
      text_to_json(service.service), text_to_json(service.version), text_or_null(service.url),
      text_or_null(service.access_log), scaling_json(service), replicas);
}

/// "" for nothing.
std::string not_resumed_json(const std::string& why) {
  return why.empty() ? "" : ",\"not_resumed\":" + text_to_json(why);
}

std::string milliseconds(int64_t us) { return fmt::format("{}", static_cast<double>(us) / 1000); }

std::string json_of(const RolloverInfo& rollover) {
  return fmt::format(
      R"({{"phase":{},"previous":{},"step":{},"steps":{},"percent":{},"reason":{}}})",
      text_to_json(rollover.phase), text_or_null(rollover.previous), rollover.step, rollover.steps,
      rollover.percent, text_or_null(rollover.reason));
}

/// "" for none.
std::string budget_json(const std::optional<BudgetInfo>& budget) {
  if (!budget) return "";
  return fmt::format(R"(,"budget":{{"currency":{},"limit":{},"used":{},"is_spent":{}}})",
                     text_to_json(budget->currency), budget->limit,
                     std::round(budget->used * 1e9) / 1e9, budget->is_spent);
}

/// "" for none.
std::string actions_json(const std::vector<ActionInfo>& actions) {
  std::string json;
  for (const ActionInfo& action : actions)
    json +=
        fmt::format(R"({}{{"action":{},"by":{},"name":{},"at":{}}})",
                    json.empty() ? ",\"actions\":[" : ",", text_to_json(action.action),
                    text_or_null(action.by), text_or_null(action.name), time_or_null(action.at_ms));
  return json.empty() ? "" : json + "]";
}

std::string latency_json(const std::vector<LatencyBucket>& latency) {
  std::string json;
  for (const LatencyBucket& bucket : latency)
    json +=
        fmt::format(R"({}{{"up_to_ms":{},"requests":{}}})", json.empty() ? "" : ",",
                    bucket.up_to_us == 0 ? "null" : milliseconds(bucket.up_to_us), bucket.requests);
  return "[" + json + "]";
}

}  // namespace

std::string ServiceInfo::json() const {
  std::string load =
      R"("ready":null,"draining":null,"percent":null,"requests":null,"errors":null,"refused":null,"requests_per_second":null,"p50_ms":null,"p99_ms":null,"queue_ms":null,"queued":null,"running":null,"latency":null)";
  if (traffic)
    load = fmt::format(
        R"("ready":{},"draining":{},"percent":{},"requests":{},"errors":{},"refused":{},"requests_per_second":{:.4g},"p50_ms":{},"p99_ms":{},"queue_ms":{},"queued":{},"running":{},"latency":{})",
        traffic->is_ready, traffic->is_draining, traffic->percent, traffic->requests,
        traffic->errors, traffic->refused, traffic->requests_per_second,
        milliseconds(traffic->p50_us), milliseconds(traffic->p99_us),
        milliseconds(traffic->queue_us), traffic->queued, traffic->running,
        latency_json(traffic->latency));
  return fmt::format(R"({{"name":{},"status":{},{},{}{}}})", text_or_null(name),
                     text_to_json(status), load, fields_of(*this), not_resumed_json(not_resumed));
}

std::string RunInfo::json() const {
  bool has_result = !result.is_nil();
  bool has_params = params.kind() == Value::Kind::table && !params.as_table().fields.empty();
  std::string served = url.empty() ? "" : ",\"url\":" + text_to_json(url);
  for (size_t i = 0; i < services.size(); i++)
    served += (i == 0 ? ",\"services\":[{" : ",{") + fields_of(services[i]) + "}";
  if (!services.empty()) served += "]";
  std::string json = fmt::format(
      R"({{"run":{},"name":{},"pipeline":{},"status":{},"started":{},"finished":{},"params":{},"result":{}{}{}{},"counts":{}{},"tasks":[)",
      text_to_json(id), text_or_null(name), text_to_json(pipeline), text_to_json(status),
      time_or_null(started_ms), time_or_null(finished_ms), has_params ? to_json(params) : "{}",
      has_result ? to_json(result) : "null", served,
      rollover.phase.empty() ? "" : ",\"rollover\":" + json_of(rollover),
      not_resumed_json(not_resumed) + budget_json(budget) + actions_json(actions), json_of(counts),
      usage_json(tasks));
  for (size_t i = 0; i < tasks.size(); i++) {
    if (i > 0) json += ',';
    json += json_of(tasks[i]);
  }
  return json + "]}";
}

namespace {

std::string moved_json(const BlobTraffic& moved) {
  return fmt::format(R"({{"pieces":{},"bytes":{}}})", moved.blobs, moved.bytes);
}

template <typename Number>
std::string known_or_null(const std::optional<Number>& number) {
  return number ? fmt::format("{}", *number) : "null";
}

std::string json_of(const GpuReading* reading) {
  if (reading == nullptr) return "null";
  return fmt::format(
      R"({{"utilisation":{},"memory_used":{},"temperature":{},"power":{},"age_s":{:.1f}}})",
      known_or_null(reading->utilisation), known_or_null(reading->memory_used_bytes),
      known_or_null(reading->temperature_celsius), known_or_null(reading->power_watts),
      reading->age_s);
}

std::string json_of(const Gpu& gpu, const GpuUse* use, const GpuReading* reading) {
  std::string json = fmt::format(
      R"({{"uuid":{},"name":{},"memory":{},"numa":{},"mig":{},"nvlink":{},"fabric":{},"fault":{},"reading":{})",
      text_or_null(gpu.uuid), text_to_json(gpu.name), gpu.memory_bytes, number_or_null(gpu.numa),
      gpu.is_mig, number_or_null(gpu.nvlink), text_or_null(gpu.fabric), text_or_null(gpu.fault),
      json_of(reading));
  if (use != nullptr)
    json += fmt::format(R"(,"used":{},"memory_used":{},"tasks":[{}])", use->used,
                        use->memory_used_bytes, listed_json(use->tasks));
  return json + "}";
}

}  // namespace

const GpuReading* NodeInfo::reading_of(const Gpu& gpu) const {
  auto found = std::ranges::find(gpu_readings, gpu.uuid, &GpuReading::uuid);
  return found == gpu_readings.end() ? nullptr : &*found;
}

std::string NodeInfo::json() const {
  std::string listed;
  for (size_t i = 0; i < gpus.size(); i++)
    listed += (i == 0 ? "" : ",") +
              json_of(gpus[i], i < gpu_uses.size() ? &gpu_uses[i] : nullptr, reading_of(gpus[i]));
  std::string named, amounts, amounts_used;
  for (const auto& [label, value] : labels)
    named +=
        fmt::format("{}{}:{}", named.empty() ? "" : ",", text_to_json(label), text_to_json(value));
  for (const auto& [name, amount] : resources)
    amounts += fmt::format("{}{}:{}", amounts.empty() ? "" : ",", text_to_json(name), amount);
  for (const auto& [name, amount] : resources_used)
    amounts_used +=
        fmt::format("{}{}:{}", amounts_used.empty() ? "" : ",", text_to_json(name), amount);
  return fmt::format(
      R"({{"node":{},"status":{},"note":{},"version":{},"address":{},"cpus":{},"cpus_used":{},"memory":{},"gpus":[{}],"labels":{{{}}},"resources":{{{}}},"resources_used":{{{}}},"tasks":[{}],"content":{{"from_head":{},"from_workers":{},"to_workers":{}}}}})",
      text_or_null(name), text_to_json(status), text_or_null(note), text_or_null(version),
      text_or_null(address), cpus, cpus_used, memory_bytes, listed, named, amounts, amounts_used,
      listed_json(tasks), moved_json(from_head), moved_json(from_workers), moved_json(to_workers));
}

std::string Event::json() const {
  std::string json = fmt::format(R"({{"event":{},"at":{},"run":{})", text_to_json(type),
                                 text_to_json(format_time(at_ms)), text_to_json(run));
  if (!task.empty()) json += ",\"task\":" + text_to_json(task);
  if (!tag.empty()) json += ",\"tag\":" + text_to_json(tag);
  if (attempt != 0) json += fmt::format(",\"attempt\":{}", attempt);
  if (type == "log") json += fmt::format(",\"rank\":{},\"stream\":{}", rank, text_to_json(status));
  if (!status.empty() && type != "log") json += ",\"status\":" + text_to_json(status);
  if (type == "task") json += fmt::format(",\"cached\":{}", cached);
  if (ignored) json += ",\"ignored\":true";
  if (type == "progress") json += fmt::format(",\"fraction\":{}", fraction);
  if (!text.empty()) {
    const char* name = "text";
    bool waits = status == "waiting" || status == "pending";
    if (type == "task") name = waits ? "waits_for" : "error";
    if (type == "serving") name = "url";
    if (type == "plan") name = "reason";
    // What a task wrote is a value: no byte of it is lost.
    json +=
        fmt::format(",\"{}\":{}", name, type == "log" ? to_json(Value(text)) : text_to_json(text));
  }
  if (!data.is_nil()) json += ",\"data\":" + to_json(data);
  return json + "}";
}

}  // namespace flow
