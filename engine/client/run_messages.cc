// A run's info as the values of messages.hpp.
#include <algorithm>

#include "engine/client/messages.hpp"

namespace flow {

Value info_to_value(const RunInfo& info) {
  return Value::map({{"id", info.id},
                     {"name", info.name},
                     {"pipeline", info.pipeline},
                     {"status", info.status},
                     {"directory", info.directory},
                     {"script", info.script},
                     {"started", info.started_ms},
                     {"finished", info.finished_ms},
                     {"counts", counts_to_value(info.counts)},
                     {"result", info.result},
                     {"params", info.params},
                     {"url", info.url},
                     {"retried", static_cast<int64_t>(info.retried)}});
}

RunInfo info_from_value(const Value& value) {
  RunInfo info;
  info.id = text_field(value, "id");
  info.name = text_field(value, "name");
  info.pipeline = text_field(value, "pipeline");
  info.status = text_field(value, "status");
  info.directory = text_field(value, "directory");
  info.script = text_field(value, "script");
  info.started_ms = integer_field(value, "started");
  info.finished_ms = integer_field(value, "finished");
  if (const Value* counts = value.find("counts")) info.counts = counts_from_value(*counts);
  if (const Value* result = value.find("result")) info.result = *result;
  if (const Value* params = value.find("params")) info.params = *params;
  info.url = text_field(value, "url");
  info.retried = static_cast<uint64_t>(integer_field(value, "retried"));
  return info;
}

Value failed_to_value(const std::vector<FailedAttempt>& failed) {
  std::vector<Value> items;
  for (const FailedAttempt& each : failed)
    items.push_back(Value::map(
        {{"attempt", int64_t{each.attempt}}, {"worker", each.worker}, {"cause", each.cause}}));
  return Value::list(std::move(items));
}

std::vector<FailedAttempt> failed_from_value(const Value* value) {
  std::vector<FailedAttempt> failed;
  if (value == nullptr || value->kind() != Value::Kind::table) return failed;
  for (const Value& item : value->as_table().list)
    failed.push_back({static_cast<uint32_t>(integer_field(item, "attempt")),
                      text_field(item, "worker"), text_field(item, "cause")});
  return failed;
}

Value tasks_to_value(const std::vector<TaskInfo>& tasks, size_t from, size_t count) {
  std::vector<Value> items;
  for (size_t i = from; i < std::min(tasks.size(), from + count); i++) {
    const TaskInfo& task = tasks[i];
    items.push_back(Value::map({{"name", task.name},
                                {"key", task.key},
                                {"status", task.status},
                                {"worker", task.worker},
                                {"error", task.error},
                                {"attempts", int64_t{task.attempts}},
                                {"ranks", int64_t{task.ranks}},
                                {"grew_from", int64_t{task.grew_from}},
                                {"cached", task.cached},
                                {"started", task.started_ms},
                                {"finished", task.finished_ms},
                                {"gpus", strings_to_value(task.gpus)},
                                {"failed", failed_to_value(task.failed)},
                                {"waits_for", task.waits_for},
                                {"url", task.url},
                                {"fraction", task.fraction},
                                {"metrics", task.metrics}}));
  }
  return Value::list(std::move(items));
}

void add_tasks(const Value& value, std::vector<TaskInfo>& tasks) {
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) {
    TaskInfo task;
    task.name = text_field(item, "name");
    task.key = text_field(item, "key");
    task.status = text_field(item, "status");
    task.worker = text_field(item, "worker");
    task.error = text_field(item, "error");
    task.attempts = static_cast<uint32_t>(integer_field(item, "attempts"));
    task.ranks = static_cast<uint32_t>(integer_field(item, "ranks"));
    task.grew_from = static_cast<uint32_t>(integer_field(item, "grew_from"));
    task.cached = flag_field(item, "cached");
    task.started_ms = integer_field(item, "started");
    task.finished_ms = integer_field(item, "finished");
    task.gpus = strings_from_value(item.find("gpus"));
    task.failed = failed_from_value(item.find("failed"));
    task.waits_for = text_field(item, "waits_for");
    task.url = text_field(item, "url");
    task.fraction = number_field(item, "fraction");
    if (const Value* metrics = item.find("metrics")) task.metrics = *metrics;
    tasks.push_back(std::move(task));
  }
}

}  // namespace flow
