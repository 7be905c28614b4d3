// Runs, their tasks, plans and workers.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/client/messages.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace {

using Texts = google::protobuf::RepeatedPtrField<std::string>;

void put_texts(const std::vector<std::string>& texts, Texts& to) {
  to.Assign(texts.begin(), texts.end());
}

std::vector<std::string> get_texts(const Texts& from) { return {from.begin(), from.end()}; }

}  // namespace

void put_counts(const Counts& counts, client_protocol::TaskCounts& to) {
  to.set_succeeded(counts.succeeded);
  to.set_cached(counts.cached);
  to.set_failed(counts.failed);
  to.set_skipped(counts.skipped);
  to.set_cancelled(counts.cancelled);
  to.set_pending(counts.pending);
  to.set_ready(counts.ready);
  to.set_running(counts.running);
  to.set_waiting(counts.waiting);
  to.set_ignored(counts.ignored);
}

Counts get_counts(const client_protocol::TaskCounts& from) {
  return {from.succeeded(), from.cached(), from.failed(),  from.skipped(), from.cancelled(),
          from.pending(),   from.ready(),  from.running(), from.waiting(), from.ignored()};
}

void put_counted_task(const CountedTask& task, client_protocol::CountedTask& to) {
  to.set_name(task.name);
  put_counts(task.counts, *to.mutable_counts());
}

CountedTask get_counted_task(const client_protocol::CountedTask& from) {
  return {from.name(), get_counts(from.counts())};
}

void put_counted_tasks(const std::vector<CountedTask>& tasks, client_protocol::CountedTasks& to) {
  for (const CountedTask& task : tasks) put_counted_task(task, *to.add_tasks());
}

std::vector<CountedTask> get_counted_tasks(const client_protocol::CountedTasks& from) {
  std::vector<CountedTask> tasks;
  for (const auto& task : from.tasks()) tasks.push_back(get_counted_task(task));
  return tasks;
}

namespace {

void put_traffic(const ServiceTraffic& traffic, client_protocol::ServiceTraffic& to) {
  to.set_is_ready(traffic.is_ready);
  to.set_is_draining(traffic.is_draining);
  to.set_percent(traffic.percent);
  to.set_requests(traffic.requests);
  to.set_errors(traffic.errors);
  to.set_requests_per_second(traffic.requests_per_second);
  to.set_p50_us(traffic.p50_us);
  to.set_p99_us(traffic.p99_us);
  to.set_queued(traffic.queued);
  to.set_running(traffic.running);
  to.set_queue_us(traffic.queue_us);
  to.set_refused(traffic.refused);
  for (const LatencyBucket& bucket : traffic.latency) {
    client_protocol::LatencyBucket& each = *to.add_latency();
    each.set_up_to_us(bucket.up_to_us);
    each.set_requests(bucket.requests);
  }
}

ServiceTraffic get_traffic(const client_protocol::ServiceTraffic& from) {
  std::vector<LatencyBucket> latency;
  for (const auto& each : from.latency()) latency.push_back({each.up_to_us(), each.requests()});
  return {from.is_ready(),   from.is_draining(), from.percent(),
          from.requests(),   from.errors(),      from.requests_per_second(),
          from.p50_us(),     from.p99_us(),      from.queued(),
          from.running(),    from.queue_us(),    from.refused(),
          std::move(latency)};
}

void put_rollover(const RolloverInfo& rollover, client_protocol::RolloverInfo& to) {
  to.set_phase(rollover.phase);
  to.set_previous(rollover.previous);
  to.set_reason(rollover.reason);
  to.set_step(rollover.step);
  to.set_steps(rollover.steps);
  to.set_percent(rollover.percent);
}

RolloverInfo get_rollover(const client_protocol::RolloverInfo& from) {
  return {from.phase(), from.previous(), from.reason(), from.step(), from.steps(), from.percent()};
}

}  // namespace

void put_service(const ServiceInfo& service, client_protocol::ServiceInfo& to) {
  to.set_version(service.version);
  to.set_name(service.name);
  to.set_service(service.service);
  to.set_status(service.status);
  to.set_url(service.url);
  for (const ReplicaInfo& replica : service.replicas) {
    client_protocol::ReplicaInfo& each = *to.add_replicas();
    each.set_name(replica.name);
    each.set_status(replica.status);
    each.set_pid(replica.pid);
    each.set_worker(replica.worker);
    put_texts(replica.gpus, *each.mutable_gpus());
  }
  to.set_replicas_min(service.replicas_min);
  to.set_replicas_max(service.replicas_max);
  to.set_replicas_wanted(service.replicas_wanted);
  to.set_access_log(service.access_log);
  to.set_not_resumed(service.not_resumed);
  if (service.traffic) put_traffic(*service.traffic, *to.mutable_traffic());
}

ServiceInfo get_service(const client_protocol::ServiceInfo& from) {
  ServiceInfo service;
  service.version = from.version();
  service.name = from.name();
  service.service = from.service();
  service.status = from.status();
  service.url = from.url();
  for (const auto& each : from.replicas())
    service.replicas.push_back(
        {each.name(), each.status(), each.pid(), each.worker(), get_texts(each.gpus())});
  service.replicas_min = from.replicas_min();
  service.replicas_max = from.replicas_max();
  service.replicas_wanted = from.replicas_wanted();
  service.access_log = from.access_log();
  service.not_resumed = from.not_resumed();
  if (from.has_traffic()) service.traffic = get_traffic(from.traffic());
  return service;
}

void put_run_info(const RunInfo& info, client_protocol::RunInfo& to) {
  to.set_id(info.id);
  to.set_name(info.name);
  to.set_pipeline(info.pipeline);
  to.set_status(info.status);
  to.set_directory(info.directory);
  to.set_script(info.script);
  to.set_started_ms(info.started_ms);
  to.set_finished_ms(info.finished_ms);
  put_counts(info.counts, *to.mutable_counts());
  to.set_result(value_bytes(info.result));
  to.set_params(value_bytes(info.params));
  to.set_url(info.url);
  to.set_retried(info.retried);
  for (const ServiceInfo& service : info.services) put_service(service, *to.add_services());
  if (!info.rollover.phase.empty()) put_rollover(info.rollover, *to.mutable_rollover());
  to.set_not_resumed(info.not_resumed);
  for (const ActionInfo& action : info.actions) {
    client_protocol::ActionInfo& each = *to.add_actions();
    each.set_action(action.action);
    each.set_by(action.by);
    each.set_name(action.name);
    each.set_at_ms(action.at_ms);
  }
  if (!info.budget) return;
  client_protocol::BudgetInfo& budget = *to.mutable_budget();
  budget.set_currency(info.budget->currency);
  budget.set_limit(info.budget->limit);
  budget.set_used(info.budget->used);
  budget.set_is_spent(info.budget->is_spent);
}

Result<RunInfo> get_run_info(const client_protocol::RunInfo& from) {
  auto result = value_from_bytes(from.result());
  FLOW_TRY(result);
  auto params = value_from_bytes(from.params());
  FLOW_TRY(params);
  RunInfo info;
  info.id = from.id();
  info.name = from.name();
  info.pipeline = from.pipeline();
  info.status = from.status();
  info.directory = from.directory();
  info.script = from.script();
  info.started_ms = from.started_ms();
  info.finished_ms = from.finished_ms();
  info.counts = get_counts(from.counts());
  info.result = std::move(*result);
  info.params = std::move(*params);
  info.url = from.url();
  info.retried = from.retried();
  for (const auto& service : from.services()) info.services.push_back(get_service(service));
  info.rollover = get_rollover(from.rollover());
  info.not_resumed = from.not_resumed();
  for (const auto& action : from.actions())
    info.actions.push_back({action.action(), action.by(), action.name(), action.at_ms()});
  if (from.has_budget())
    info.budget = {from.budget().currency(), from.budget().limit(), from.budget().used(),
                   from.budget().is_spent()};
  return info;
}

namespace {

void put_usage(const TaskUsage& usage, client_protocol::TaskUsage& to) {
  if (usage.queue_s >= 0) to.set_queue_s(usage.queue_s);
  if (usage.stage_s >= 0) to.set_stage_s(usage.stage_s);
  if (usage.commit_s >= 0) to.set_commit_s(usage.commit_s);
  if (usage.cpu_s >= 0) to.set_cpu_s(usage.cpu_s);
  if (usage.gpu_s >= 0) to.set_gpu_s(usage.gpu_s);
  if (usage.gpu_used_s >= 0) to.set_gpu_used_s(usage.gpu_used_s);
  if (usage.gpu_measured_s >= 0) to.set_gpu_measured_s(usage.gpu_measured_s);
  if (usage.gpu_energy_j >= 0) to.set_gpu_energy_j(usage.gpu_energy_j);
  if (usage.peak_memory >= 0) to.set_peak_memory(static_cast<uint64_t>(usage.peak_memory));
  if (usage.read_bytes >= 0) to.set_read_bytes(static_cast<uint64_t>(usage.read_bytes));
  if (usage.written_bytes >= 0) to.set_written_bytes(static_cast<uint64_t>(usage.written_bytes));
}

TaskUsage get_usage(const client_protocol::TaskUsage& from) {
  TaskUsage usage;
  if (from.has_queue_s()) usage.queue_s = from.queue_s();
  if (from.has_stage_s()) usage.stage_s = from.stage_s();
  if (from.has_commit_s()) usage.commit_s = from.commit_s();
  if (from.has_cpu_s()) usage.cpu_s = from.cpu_s();
  if (from.has_gpu_s()) usage.gpu_s = from.gpu_s();
  if (from.has_gpu_used_s()) usage.gpu_used_s = from.gpu_used_s();
  if (from.has_gpu_measured_s()) usage.gpu_measured_s = from.gpu_measured_s();
  if (from.has_gpu_energy_j()) usage.gpu_energy_j = from.gpu_energy_j();
  if (from.has_peak_memory()) usage.peak_memory = static_cast<int64_t>(from.peak_memory());
  if (from.has_read_bytes()) usage.read_bytes = static_cast<int64_t>(from.read_bytes());
  if (from.has_written_bytes()) usage.written_bytes = static_cast<int64_t>(from.written_bytes());
  return usage;
}

void put_task(const TaskInfo& task, client_protocol::TaskInfo& to) {
  to.set_name(task.name);
  to.set_key(task.key);
  to.set_status(task.status);
  to.set_worker(task.worker);
  to.set_error(task.error);
  to.set_attempts(task.attempts);
  to.set_ranks(task.ranks);
  to.set_grew_from(task.grew_from);
  to.set_cached(task.cached);
  to.set_ignored(task.ignored);
  to.set_tag(task.tag);
  to.set_started_ms(task.started_ms);
  to.set_finished_ms(task.finished_ms);
  put_texts(task.gpus, *to.mutable_gpus());
  for (const FailedAttempt& failed : task.failed) {
    client_protocol::FailedAttempt& each = *to.add_failed();
    each.set_attempt(failed.attempt);
    each.set_worker(failed.worker);
    each.set_cause(failed.cause);
  }
  to.set_waits_for(task.waits_for);
  to.set_url(task.url);
  to.set_restarts(task.restarts);
  to.set_fraction(task.fraction);
  to.set_metrics(value_bytes(task.metrics));
  put_usage(task.usage, *to.mutable_usage());
  to.set_user(task.user);
}

Result<TaskInfo> get_task(const client_protocol::TaskInfo& from) {
  auto metrics = value_from_bytes(from.metrics());
  FLOW_TRY(metrics);
  TaskInfo task;
  task.name = from.name();
  task.key = from.key();
  task.status = from.status();
  task.worker = from.worker();
  task.error = from.error();
  task.attempts = from.attempts();
  task.ranks = from.ranks();
  task.grew_from = from.grew_from();
  task.cached = from.cached();
  task.ignored = from.ignored();
  task.tag = from.tag();
  task.started_ms = from.started_ms();
  task.finished_ms = from.finished_ms();
  task.gpus = get_texts(from.gpus());
  for (const client_protocol::FailedAttempt& each : from.failed())
    task.failed.push_back({each.attempt(), each.worker(), each.cause()});
  task.waits_for = from.waits_for();
  task.url = from.url();
  task.restarts = from.restarts();
  task.fraction = from.fraction();
  task.metrics = std::move(*metrics);
  task.usage = get_usage(from.usage());
  task.user = from.user();
  return task;
}

}  // namespace

void put_tasks(const std::vector<TaskInfo>& tasks, size_t begin, size_t count,
               client_protocol::TaskList& to) {
  for (size_t i = begin; i < std::min(tasks.size(), begin + count); i++)
    put_task(tasks[i], *to.add_tasks());
}

Status add_tasks(const client_protocol::TaskList& from, std::vector<TaskInfo>& tasks) {
  for (const client_protocol::TaskInfo& each : from.tasks()) {
    auto task = get_task(each);
    FLOW_TRY(task);
    tasks.push_back(std::move(*task));
  }
  return {};
}

void put_plan(const PlanInfo& plan, client_protocol::PlanPreview& to) {
  to.set_pipeline(plan.pipeline);
  for (const PlanNode& node : plan.nodes) {
    client_protocol::PlanNode& each = *to.add_nodes();
    each.set_name(node.name);
    each.set_task(node.task);
    each.set_kind(node.kind);
    each.set_tag(node.tag);
    each.set_verdict(node.verdict);
    each.set_reason(node.reason);
    each.set_cause(node.cause);
    put_texts(node.needs, *each.mutable_needs());
    put_texts(node.after, *each.mutable_after());
  }
  put_texts(plan.warnings, *to.mutable_warnings());
  put_texts(plan.printed, *to.mutable_printed());
}

PlanInfo get_plan(const client_protocol::PlanPreview& from) {
  PlanInfo plan;
  plan.pipeline = from.pipeline();
  for (const client_protocol::PlanNode& each : from.nodes())
    plan.nodes.push_back({each.name(), each.task(), each.kind(), each.tag(), each.verdict(),
                          each.reason(), each.cause(), get_texts(each.needs()),
                          get_texts(each.after())});
  plan.warnings = get_texts(from.warnings());
  plan.printed = get_texts(from.printed());
  return plan;
}

namespace {

using NamedAmounts = std::vector<std::pair<std::string, double>>;
using NamedAmountFields = google::protobuf::RepeatedPtrField<client_protocol::NamedAmount>;

void put_named_amounts(const NamedAmounts& amounts, NamedAmountFields& to) {
  for (const auto& [name, amount] : amounts) {
    client_protocol::NamedAmount& each = *to.Add();
    each.set_name(name);
    each.set_amount(amount);
  }
}

NamedAmounts get_named_amounts(const NamedAmountFields& from) {
  NamedAmounts amounts;
  for (const client_protocol::NamedAmount& each : from)
    amounts.emplace_back(each.name(), each.amount());
  return amounts;
}

void put_transferred(const BlobTraffic& moved, client_protocol::TransferredBlobs& to) {
  to.set_blobs(moved.blobs);
  to.set_bytes(moved.bytes);
}

BlobTraffic get_transferred(const client_protocol::TransferredBlobs& from) {
  return {from.blobs(), from.bytes()};
}

void put_reading(const GpuReading& reading, client_protocol::GpuReading& to) {
  to.set_uuid(reading.uuid);
  if (reading.utilisation) to.set_utilisation(*reading.utilisation);
  if (reading.memory_used_bytes) to.set_memory_used_bytes(*reading.memory_used_bytes);
  if (reading.temperature_celsius) to.set_temperature_celsius(*reading.temperature_celsius);
  if (reading.power_watts) to.set_power_watts(*reading.power_watts);
  to.set_age_s(reading.age_s);
}

GpuReading get_reading(const client_protocol::GpuReading& from) {
  GpuReading reading;
  reading.uuid = from.uuid();
  if (from.has_utilisation()) reading.utilisation = from.utilisation();
  if (from.has_memory_used_bytes()) reading.memory_used_bytes = from.memory_used_bytes();
  if (from.has_temperature_celsius()) reading.temperature_celsius = from.temperature_celsius();
  if (from.has_power_watts()) reading.power_watts = from.power_watts();
  reading.age_s = from.age_s();
  return reading;
}

void put_node(const NodeInfo& node, client_protocol::WorkerInfo& to) {
  to.set_name(node.name);
  to.set_status(node.status);
  to.set_address(node.address);
  to.set_note(node.note);
  to.set_version(node.version);
  to.set_cpus(node.cpus);
  to.set_cpus_used(node.cpus_used);
  to.set_memory_bytes(node.memory_bytes);
  for (const Gpu& gpu : node.gpus) put_gpu(gpu, *to.add_gpus());
  for (const GpuUse& use : node.gpu_uses) {
    client_protocol::GpuUse& each = *to.add_gpu_uses();
    each.set_used(use.used);
    each.set_memory_used_bytes(use.memory_used_bytes);
    put_texts(use.tasks, *each.mutable_tasks());
  }
  for (const GpuReading& reading : node.gpu_readings) put_reading(reading, *to.add_gpu_readings());
  for (const auto& [name, text] : node.labels) {
    client_protocol::NamedText& each = *to.add_labels();
    each.set_name(name);
    each.set_text(text);
  }
  put_named_amounts(node.resources, *to.mutable_resources());
  put_named_amounts(node.resources_used, *to.mutable_resources_used());
  put_texts(node.tasks, *to.mutable_tasks());
  put_transferred(node.from_head, *to.mutable_from_head());
  put_transferred(node.from_workers, *to.mutable_from_workers());
  put_transferred(node.to_workers, *to.mutable_to_workers());
}

NodeInfo get_node(const client_protocol::WorkerInfo& from) {
  NodeInfo node;
  node.name = from.name();
  node.status = from.status();
  node.address = from.address();
  node.note = from.note();
  node.version = from.version();
  node.cpus = from.cpus();
  node.cpus_used = from.cpus_used();
  node.memory_bytes = from.memory_bytes();
  for (const wire::Gpu& gpu : from.gpus()) node.gpus.push_back(get_gpu(gpu));
  for (const client_protocol::GpuUse& use : from.gpu_uses())
    node.gpu_uses.push_back({use.used(), use.memory_used_bytes(), get_texts(use.tasks())});
  for (const client_protocol::GpuReading& reading : from.gpu_readings())
    node.gpu_readings.push_back(get_reading(reading));
  for (const client_protocol::NamedText& each : from.labels())
    node.labels.emplace_back(each.name(), each.text());
  node.resources = get_named_amounts(from.resources());
  node.resources_used = get_named_amounts(from.resources_used());
  node.tasks = get_texts(from.tasks());
  node.from_head = get_transferred(from.from_head());
  node.from_workers = get_transferred(from.from_workers());
  node.to_workers = get_transferred(from.to_workers());
  return node;
}

}  // namespace

void put_nodes(const std::vector<NodeInfo>& nodes, client_protocol::WorkerList& to) {
  for (const NodeInfo& node : nodes) put_node(node, *to.add_workers());
}

std::vector<NodeInfo> get_nodes(const client_protocol::WorkerList& from) {
  std::vector<NodeInfo> nodes;
  for (const client_protocol::WorkerInfo& each : from.workers()) nodes.push_back(get_node(each));
  return nodes;
}

}  // namespace flow
