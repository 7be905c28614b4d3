// The values of messages.hpp.
#include "engine/client/messages.hpp"

#include <utility>

#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

Value event_to_value(const Event& event) {
  return Value::map({{"frame", "event"},
                     {"type", event.type},
                     {"run", event.run},
                     {"task", event.task},
                     {"attempt", event.attempt},
                     {"status", event.status},
                     {"cached", event.cached},
                     {"fraction", event.fraction},
                     {"text", event.text},
                     {"data", event.data},
                     {"at", event.at_ms}});
}

Event event_from_value(const Value& value) {
  Event event;
  event.type = text_field(value, "type");
  event.run = text_field(value, "run");
  event.task = text_field(value, "task");
  event.attempt = static_cast<uint32_t>(integer_field(value, "attempt"));
  event.status = text_field(value, "status");
  event.cached = flag_field(value, "cached");
  event.fraction = number_field(value, "fraction");
  event.text = text_field(value, "text");
  if (const Value* data = value.find("data")) event.data = *data;
  event.at_ms = integer_field(value, "at");
  return event;
}

Value error_to_value(const Error& error) {
  return Value::map({{"frame", "error"},
                     {"kind", int64_t{static_cast<uint8_t>(error.kind)}},
                     {"message", error.message}});
}

Error error_from_value(const Value& value) {
  int64_t kind = integer_field(value, "kind", int64_t{static_cast<uint8_t>(ErrorKind::internal)});
  bool known = kind >= 0 && kind <= static_cast<int64_t>(ErrorKind::internal);
  return {known ? static_cast<ErrorKind>(kind) : ErrorKind::internal, text_field(value, "message")};
}

namespace {

Value amounts_to_value(const std::vector<std::pair<std::string, double>>& amounts) {
  std::vector<std::pair<Value, Value>> fields;
  for (const auto& [name, amount] : amounts) fields.emplace_back(name, amount);
  return Value::map(std::move(fields));
}

Value pairs_to_value(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<Value> items;
  for (const auto& [name, value] : pairs) items.push_back(Value::list({name, value}));
  return Value::list(std::move(items));
}

std::vector<std::pair<std::string, std::string>> pairs_from_value(const Value* value) {
  std::vector<std::pair<std::string, std::string>> out;
  if (value == nullptr || value->kind() != Value::Kind::table) return out;
  for (const Value& item : value->as_table().list) {
    const Value* name = item.find(Value(1));
    const Value* text = item.find(Value(2));
    bool ok = name != nullptr && text != nullptr && name->kind() == Value::Kind::string &&
              text->kind() == Value::Kind::string;
    if (ok) out.emplace_back(name->as_string(), text->as_string());
  }
  return out;
}

}  // namespace

Value submission_to_value(const Submission& submission) {
  const RunOptions& o = submission.options;
  Value built = submission.built ? prebuilt_to_value(*submission.built) : Value();
  return Value::map({{"script", submission.script},
                     {"directory", submission.working_directory},
                     {"params", submission.params},
                     {"built", std::move(built)},
                     {"environment", pairs_to_value(*submission.environment)},
                     {"name", o.name},
                     {"request", o.request},
                     {"jobs", int64_t{o.jobs}},
                     {"fresh", o.fresh},
                     {"fail_fast", o.fail_fast},
                     {"grace_ms", o.grace_ms},
                     {"serve_for_ms", o.serve_for_ms},
                     {"text_params", pairs_to_value(o.text_params)},
                     {"params_json", o.params_json}});
}

Result<Submission> submission_from_value(const Value& value) {
  if (value.kind() != Value::Kind::table) return user_error("a request without a body");
  Submission submission;
  submission.script = text_field(value, "script");
  submission.working_directory = text_field(value, "directory");
  if (submission.working_directory.empty() || submission.working_directory[0] != '/')
    return user_error("a request without an absolute working directory");
  if (const Value* params = value.find("params")) submission.params = *params;
  if (const Value* prebuilt = value.find("built")) {
    auto built = prebuilt_from_value(*prebuilt);
    FLOW_TRY(built);
    submission.built = std::make_shared<const PrebuiltGraph>(std::move(*built));
  }
  submission.environment =
      std::make_shared<const Environment>(pairs_from_value(value.find("environment")));
  RunOptions& o = submission.options;
  o.name = text_field(value, "name");
  o.request = text_field(value, "request");
  o.jobs = static_cast<int32_t>(integer_field(value, "jobs"));
  o.fresh = flag_field(value, "fresh");
  o.fail_fast = flag_field(value, "fail_fast");
  o.grace_ms = integer_field(value, "grace_ms", o.grace_ms);
  o.serve_for_ms = integer_field(value, "serve_for_ms", -1);
  o.text_params = pairs_from_value(value.find("text_params"));
  o.params_json = text_field(value, "params_json");
  return submission;
}

Value counts_to_value(const Counts& c) {
  return Value::list({c.succeeded, c.cached, c.failed, c.skipped, c.cancelled, c.pending, c.ready,
                      c.running, c.waiting});
}

Counts counts_from_value(const Value& value) {
  Counts counts;
  uint32_t* fields[] = {&counts.succeeded, &counts.cached,    &counts.failed,
                        &counts.skipped,   &counts.cancelled, &counts.pending,
                        &counts.ready,     &counts.running,   &counts.waiting};
  int64_t index = 0;
  for (uint32_t* field : fields) {
    const Value* item = value.find(Value(++index));
    if (item != nullptr && item->kind() == Value::Kind::integer)
      *field = static_cast<uint32_t>(item->as_integer());
  }
  return counts;
}

Value plan_to_value(const PlanInfo& plan) {
  std::vector<Value> nodes;
  for (const PlanNode& node : plan.nodes) {
    nodes.push_back(Value::map({{"name", node.name},
                                {"task", node.task},
                                {"kind", node.kind},
                                {"verdict", node.verdict},
                                {"reason", node.reason},
                                {"needs", strings_to_value(node.needs)},
                                {"after", strings_to_value(node.after)}}));
  }
  return Value::map({{"pipeline", plan.pipeline},
                     {"nodes", Value::list(std::move(nodes))},
                     {"warnings", strings_to_value(plan.warnings)},
                     {"printed", strings_to_value(plan.printed)}});
}

PlanInfo plan_from_value(const Value& value) {
  PlanInfo plan;
  plan.pipeline = text_field(value, "pipeline");
  plan.warnings = strings_from_value(value.find("warnings"));
  plan.printed = strings_from_value(value.find("printed"));
  const Value* nodes = value.find("nodes");
  if (nodes == nullptr || nodes->kind() != Value::Kind::table) return plan;
  for (const Value& node : nodes->as_table().list) {
    plan.nodes.push_back({text_field(node, "name"), text_field(node, "task"),
                          text_field(node, "kind"), text_field(node, "verdict"),
                          text_field(node, "reason"), strings_from_value(node.find("needs")),
                          strings_from_value(node.find("after"))});
  }
  return plan;
}

namespace {

Value moved_to_value(const BlobTraffic& moved) {
  return Value::list({static_cast<int64_t>(moved.blobs), static_cast<int64_t>(moved.bytes)});
}

BlobTraffic moved_from_value(const Value* value) {
  if (value == nullptr || value->kind() != Value::Kind::table) return {};
  const auto& list = value->as_table().list;
  auto is_count = [](const Value& each) {
    return each.kind() == Value::Kind::integer && each.as_integer() >= 0;
  };
  if (list.size() != 2 || !std::all_of(list.begin(), list.end(), is_count)) return {};
  return {static_cast<uint64_t>(list[0].as_integer()), static_cast<uint64_t>(list[1].as_integer())};
}

Value gpu_to_value(const Gpu& gpu) {
  return Value::map({{"index", int64_t{gpu.index}},
                     {"uuid", gpu.uuid},
                     {"name", gpu.name},
                     {"memory", gpu.memory_bytes},
                     {"numa", int64_t{gpu.numa}},
                     {"is_mig", gpu.is_mig},
                     {"nvlink", int64_t{gpu.nvlink}},
                     {"fabric", gpu.fabric},
                     {"fault", gpu.fault}});
}

Value use_to_value(const GpuUse& use) {
  return Value::map({{"used", use.used},
                     {"memory_used", use.memory_used_bytes},
                     {"tasks", strings_to_value(use.tasks)}});
}

}  // namespace

Value nodes_to_value(const std::vector<NodeInfo>& nodes) {
  std::vector<Value> items;
  for (const NodeInfo& node : nodes) {
    std::vector<Value> gpus, uses;
    for (const Gpu& gpu : node.gpus) gpus.push_back(gpu_to_value(gpu));
    for (const GpuUse& use : node.gpu_uses) uses.push_back(use_to_value(use));
    items.push_back(Value::map({{"name", node.name},
                                {"status", node.status},
                                {"address", node.address},
                                {"note", node.note},
                                {"version", node.version},
                                {"cpus", node.cpus},
                                {"cpus_used", node.cpus_used},
                                {"memory", node.memory_bytes},
                                {"gpus", Value::list(std::move(gpus))},
                                {"gpu_uses", Value::list(std::move(uses))},
                                {"labels", pairs_to_value(node.labels)},
                                {"resources", amounts_to_value(node.resources)},
                                {"resources_used", amounts_to_value(node.resources_used)},
                                {"tasks", strings_to_value(node.tasks)},
                                {"from_head", moved_to_value(node.from_head)},
                                {"from_workers", moved_to_value(node.from_workers)},
                                {"to_workers", moved_to_value(node.to_workers)}}));
  }
  return Value::list(std::move(items));
}

namespace {

std::vector<std::pair<std::string, double>> amounts_from_value(const Value* value) {
  std::vector<std::pair<std::string, double>> amounts;
  if (value == nullptr || value->kind() != Value::Kind::table) return amounts;
  for (const auto& [name, amount] : value->as_table().fields) {
    if (name.kind() != Value::Kind::string) continue;
    amounts.emplace_back(name.as_string(), number_field(*value, name.as_string()));
  }
  return amounts;
}

Gpu gpu_from_value(const Value& value) {
  Gpu gpu;
  gpu.index = static_cast<uint32_t>(integer_field(value, "index"));
  gpu.uuid = text_field(value, "uuid");
  gpu.name = text_field(value, "name");
  gpu.memory_bytes = integer_field(value, "memory");
  gpu.numa = static_cast<int32_t>(integer_field(value, "numa", -1));
  gpu.is_mig = flag_field(value, "is_mig");
  gpu.nvlink = static_cast<int32_t>(integer_field(value, "nvlink", -1));
  gpu.fabric = text_field(value, "fabric");
  gpu.fault = text_field(value, "fault");
  return gpu;
}

GpuUse use_from_value(const Value& value) {
  return {number_field(value, "used"), integer_field(value, "memory_used"),
          strings_from_value(value.find("tasks"))};
}

}  // namespace

std::vector<NodeInfo> nodes_from_value(const Value& value) {
  std::vector<NodeInfo> nodes;
  if (value.kind() != Value::Kind::table) return nodes;
  for (const Value& item : value.as_table().list) {
    NodeInfo node;
    node.name = text_field(item, "name");
    node.status = text_field(item, "status");
    node.address = text_field(item, "address");
    node.note = text_field(item, "note");
    node.version = text_field(item, "version");
    node.cpus = number_field(item, "cpus");
    node.cpus_used = number_field(item, "cpus_used");
    node.memory_bytes = integer_field(item, "memory");
    const Value* gpus = item.find("gpus");
    if (gpus != nullptr && gpus->kind() == Value::Kind::table)
      for (const Value& gpu : gpus->as_table().list) node.gpus.push_back(gpu_from_value(gpu));
    const Value* uses = item.find("gpu_uses");
    if (uses != nullptr && uses->kind() == Value::Kind::table)
      for (const Value& use : uses->as_table().list) node.gpu_uses.push_back(use_from_value(use));
    node.labels = pairs_from_value(item.find("labels"));
    node.resources = amounts_from_value(item.find("resources"));
    node.resources_used = amounts_from_value(item.find("resources_used"));
    node.tasks = strings_from_value(item.find("tasks"));
    node.from_head = moved_from_value(item.find("from_head"));
    node.from_workers = moved_from_value(item.find("from_workers"));
    node.to_workers = moved_from_value(item.find("to_workers"));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace flow
