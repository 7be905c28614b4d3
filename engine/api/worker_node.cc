// flow::WorkerNode: the process of a worker, on top of engine/cluster.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/api/cluster_transport.hpp"
#include "engine/base/address.hpp"
#include "engine/base/files.hpp"
#include "engine/base/log.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/throwing.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/cluster/worker/worker_process.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/workers.hpp"
#include "engine/log/log_output.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/relay/front_relay.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/telemetry/metrics_server.hpp"
#include "engine/telemetry/process_metrics.hpp"
#include "engine/worker/gpu_discovery.hpp"
#include "engine/worker/gpu_watch.hpp"

namespace flow {

namespace {

EngineOptions engine_options(const WorkerNodeOptions& options) {
  EngineOptions engine;
  engine.jobs = options.jobs;
  engine.executor = options.executor;
  return engine;
}

Result<core::WorkerInfo> worker_info_of(const WorkerNodeOptions& options, std::string& problems) {
  auto executor = find_executor(engine_options(options));
  FLOW_TRY(executor);
  core::WorkerInfo worker;
  worker.name = options.name.empty() ? machine_name() : options.name;
  if (worker.name == kHeadWorkerName)
    return user_error(fmt::format(
        "a worker cannot be named `{}`, the name under which the head itself is shown: give it "
        "another name with --name",
        kHeadWorkerName));
  worker.cpus_milli = jobs_of(engine_options(options)) * 1000;
  int32_t cpus = jobs_of({});
  constexpr int32_t kOftenMeant = 8;  // this many tasks per CPU are plausible if they mostly wait
  if (options.jobs / kOftenMeant > cpus)
    problems += fmt::format("--jobs {} is far more than the {} CPUs that this worker may use\n",
                            options.jobs, cpus);
  worker.memory_bytes = usable_memory_bytes();
  if (!options.memory.empty()) {
    auto memory = parse_bytes(options.memory);
    if (!memory.ok() || *memory <= 0)
      return user_error(
          fmt::format("`--memory {}` is not a size: write for example 64GiB", options.memory));
    if (*memory > worker.memory_bytes)
      problems += fmt::format("--memory {} is more than the {} that this machine has\n",
                              format_bytes(static_cast<uint64_t>(*memory)),
                              format_bytes(static_cast<uint64_t>(worker.memory_bytes)));
    worker.memory_bytes = *memory;
  }
  MachineGpus gpus = find_gpus(*executor);
  for (const std::string& problem : gpus.problems) problems += problem + "\n";
  worker.gpus = std::move(gpus.gpus);
  worker.labels = options.labels;
  std::sort(worker.labels.begin(), worker.labels.end());
  auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  auto twice = std::adjacent_find(worker.labels.begin(), worker.labels.end(), same);
  if (twice != worker.labels.end())
    return user_error(
        fmt::format("the label `{}` is given twice: a worker has one of a name", twice->first));
  if (!core::are_sound(worker.labels))
    return user_error(fmt::format("a worker has at most {} labels", core::kLabelsMax));
  auto custom_resources = quantities_of(options.resources);
  FLOW_TRY(custom_resources);
  worker.custom_resources = std::move(*custom_resources);
  return worker;
}

/// The default folder: on a local disk, and the same after a restart of the worker.
std::string directory_of(const WorkerNodeOptions& options, const std::string& name) {
  std::string dir = options.directory;
  if (dir.empty()) dir = fmt::format("/var/tmp/flow-worker-{}-{}", ::getuid(), name);
  return std::filesystem::absolute(dir).lexically_normal().string();
}

uint64_t content_max_of(const WorkerNodeOptions& options) {
  if (options.content_max.empty()) return 0;
  auto bytes = parse_bytes(options.content_max);
  if (!bytes.ok() || *bytes <= 0)
    throw Failed(user_error(fmt::format(
        "`--content-max {}` is not a size: write for example 200GiB", options.content_max)));
  return static_cast<uint64_t>(*bytes);
}

}  // namespace

struct WorkerNode::Impl {
  std::shared_ptr<void> log;  // first: it outlives all that log
  std::string name;
  std::unique_ptr<StateLock> lock;
  std::unique_ptr<Transport> transport;
  std::shared_ptr<FrontRelay> relay;
  std::unique_ptr<cluster::WorkerProcess> node;
  std::unique_ptr<GpuWatch> watch;
  std::unique_ptr<MetricsServer> metrics;  // last: it reads the others
};

NodeInfo describe_worker(const WorkerNodeOptions& options) {
  std::string problems;
  core::WorkerInfo worker = value_or_throw(worker_info_of(options, problems));
  NodeInfo info;
  info.name = worker.name;
  info.cpus = worker.cpus_milli / 1000.0;
  info.memory_bytes = worker.memory_bytes;
  info.gpus = worker.gpus;
  info.labels = worker.labels;
  info.resources = numbers_of(worker.custom_resources);
  info.status = "here";
  return info;
}

namespace {

std::unique_ptr<GpuWatch> watch_gpus(const std::string& executor, const std::vector<Gpu>& gpus,
                                     cluster::WorkerProcess& node,
                                     const std::function<void(std::string)>& on_note,
                                     std::shared_ptr<GpuSamples> samples) {
  auto note = [on_note](const std::string& text) {
    if (on_note) on_note(text);
  };
  auto on_error = [&node, gpus, note](const std::string& uuid, const GpuError& error) {
    node.gpu_failed(uuid, error.fault, error.is_dead);
    auto at = core::find_gpu(gpus, uuid);
    note(fmt::format("{} ({}) {}: it is not used until this worker starts again", uuid,
                     gpus[*at].name, error.fault));
  };
  return std::make_unique<GpuWatch>(executor, gpus, on_error, note, std::move(samples));
}

std::string metrics_text(const core::WorkerInfo& worker, const cluster::WorkerProcess& node,
                         const GpuSamples& gpus) {
  MetricText out;
  out.gauge("flow_worker_connected", "Whether the worker is connected to its head.");
  out.add(uint64_t{node.is_connected() ? 1u : 0u});
  out.gauge("flow_worker_attempts",
            "Attempts that run here or whose end the head has not acknowledged.");
  out.add(uint64_t{node.agent().attempts()});
  out.gauge("flow_cpu_slots", "CPU slots of this worker.");
  out.add(worker.cpus_milli / 1000.0);
  out.gauge("flow_slot_memory_bytes", "Memory of this worker for attempts.");
  out.add(static_cast<uint64_t>(worker.memory_bytes));
  out.gauge("flow_gpus", "GPUs of this worker.");
  out.add(uint64_t{worker.gpus.size()});
  cluster::Traffic traffic = node.agent().traffic();
  out.counter("flow_blob_bytes_total",
              "Bytes of blobs that this worker received or sent since it started.");
  out.add({{"way", "from_head"}}, traffic.from_head.bytes);
  out.add({{"way", "from_workers"}}, traffic.from_workers.bytes);
  out.add({{"way", "to_workers"}}, traffic.to_workers.bytes);
  add_gpu_metrics(gpus.all(), out);
  add_process_metrics(out);
  return out.text();
}

}  // namespace

WorkerNode::WorkerNode(WorkerNodeOptions options) : impl_(std::make_unique<Impl>()) {
  cluster::WorkerProcessOptions node;
  std::string problems;
  node.agent.worker = value_or_throw(worker_info_of(options, problems));
  node.session = value_or_throw(
      session_options(cluster::Role::worker, node.agent.worker.name, options.secret_file, false));
  node.head = options.head;
  if (options.on_note) node.agent.on_note = node.on_note = options.on_note;
  if (!problems.empty() && options.on_note) options.on_note(problems);
  std::string dir = directory_of(options, node.agent.worker.name);
  impl_->log = value_or_throw(log::open_log(options.log, dir));
  impl_->name = node.agent.worker.name;
  ok_or_throw(make_dirs(dir));
  ok_or_throw(own_state(dir));
  impl_->lock = value_or_throw(StateLock::acquire(dir));
  if (!impl_->lock)
    throw Failed(environment_error(
        fmt::format("the folder `{}` is in use by {}: give this worker another with --dir", dir,
                    lock_holder(dir))));
  node.agent.spool_dir = dir + "/spool";
  node.agent.store = value_or_throw(cluster::BlobCache::open(dir, content_max_of(options)));
  WorkerOptions worker;
  worker.state_dir = dir;
  worker.executor = value_or_throw(find_executor(engine_options(options)));
  worker.executors_max = jobs_of(engine_options(options));
  impl_->transport = value_or_throw(cluster_transport(options.head, node.session));
  impl_->relay = std::make_shared<FrontRelay>(
      node.session, value_or_throw(parse_address(options.head)).host,
      [note = options.on_note, name = impl_->name](const std::string& text) {
        log::warning("front of a service", {.worker = name, .detail = text});
        if (note) note(text);
      });
  worker.open_front = [relay = impl_->relay](const std::string& folder) {
    return relay->open(folder);
  };
  node.agent.on_front_port = [relay = impl_->relay](const std::string& front, uint16_t port) {
    relay->set_port(front, port);
  };
  auto make = [worker](Worker::OnReport on_report) {
    return make_worker(worker, std::move(on_report));
  };
  const core::WorkerInfo info = node.agent.worker;
  log::info("worker started", {.worker = impl_->name, .detail = "head " + options.head});
  impl_->node =
      value_or_throw(cluster::WorkerProcess::start(*impl_->transport, std::move(node), make));
  const bool has_metrics = !options.metrics.listen.empty();
  auto samples = std::make_shared<GpuSamples>(
      [&running = *impl_->node](const GpuSample& sample) { running.note_gpu_sample(sample); });
  if (!info.gpus.empty())
    impl_->watch = watch_gpus(worker.executor, info.gpus, *impl_->node, options.on_note, samples);
  if (!has_metrics) return;
  auto text = [info, samples, &running = *impl_->node] {
    return metrics_text(info, running, *samples);
  };
  impl_->metrics = value_or_throw(MetricsServer::open(options.metrics, std::move(text)));
}

WorkerNode::~WorkerNode() {
  impl_->metrics.reset();
  impl_->watch.reset();  // each before the members that it uses
  impl_->node.reset();
  log::info("worker stopped", {.worker = impl_->name});
}

void WorkerNode::drain(int64_t within_ms, const std::string& why) {
  log::info("worker draining", {.worker = impl_->name, .detail = why});
  constexpr int64_t kEndMs = 2'500;  // from SIGTERM to SIGKILL, including the final reports
  impl_->node->drain(std::max<int64_t>(0, within_ms - kEndMs), why);
}

bool WorkerNode::is_drained() const { return impl_->node->agent().attempts() == 0; }

int64_t WorkerNode::without_head_ms() const { return impl_->node->headless_ms(); }

bool WorkerNode::is_connected() const { return impl_->node->is_connected(); }

std::string WorkerNode::metrics_address() const {
  return impl_->metrics ? impl_->metrics->address() : "";
}

}  // namespace flow
