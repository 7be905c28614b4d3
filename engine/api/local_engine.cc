// Opens a state with its engine loop, workers and listeners, and closes it.
#include "engine/api/local_engine.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "engine/api/cluster_transport.hpp"
#include "engine/api/monitoring.hpp"
#include "engine/base/clock.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/worker/gpu_discovery.hpp"

namespace flow {

Result<std::unique_ptr<LocalEngine>> LocalEngine::open(const EngineOptions& options,
                                                       const std::string& dir,
                                                       std::unique_ptr<StateLock> lock) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine());
  engine->options_ = options;
  engine->lock_ = std::move(lock);
  EngineLoopOptions loop_options;
  loop_options.state_dir = dir;
  auto executor = find_executor(options);
  FLOW_TRY(executor);
  loop_options.executor = *executor;
  loop_options.leads_cluster = leads_cluster(options);
  loop_options.encrypts = options.encrypt;
  loop_options.has_successor = options.resume_detached && !options.listen.empty();
  loop_options.is_closed = options.workers > 0 && options.listen.empty() && !options.slurm;
  auto custom_resources = quantities_of(options.resources);
  FLOW_TRY(custom_resources);
  if (options.slurm)
    loop_options.requested_nodes = requested_nodes_of(*options.slurm, *custom_resources);
  loop_options.announced = announced_workers(options);
  if (options.workers > 0 || options.slurm) {
    loop_options.jobs = 0;  // all CPU slots belong to the workers
  } else {
    loop_options.custom_resources = std::move(*custom_resources);
    loop_options.jobs = loop_options.leads_cluster ? options.jobs : jobs_of(options);
  }
  auto grow_after = grow_after_ms();
  FLOW_TRY(grow_after);
  loop_options.grow_after_ms = *grow_after;
  loop_options.gpu_samples = engine->gpu_samples_;
  loop_options.span_exporter = engine->span_exporter_ = open_span_exporter(
      engine->unsaid_warning_, [&to = *engine](const std::string& why) { to.warn_all(why); });
  loop_options.builder = std::make_shared<Builder>(loop_options.executor);
  loop_options.builder->prefork();  // in parallel with opening the state
  auto store = open_store(dir);
  FLOW_TRY(store);
  loop_options.on_run_ended = [&to = *engine](const RunId& run, auto environment) {
    if (Notifier* notifier = to.active_notifier_) notifier->add(run, std::move(environment));
  };
  auto started = EngineLoop::start(loop_options, std::move(*store));
  FLOW_TRY(started);
  engine->engine_loop_ = std::move(*started);
  auto metrics = open_metrics(options.metrics, *engine->engine_loop_);
  FLOW_TRY(metrics);
  engine->metrics_ = std::move(*metrics);
  FLOW_TRY(engine->start_notifier());
  FLOW_TRY(engine->lead(dir));
  engine->resume_left_runs();  // before a client can start a version of what they serve
  auto server = Server::start(*engine, dir);
  FLOW_TRY(server);
  engine->server_ = std::move(*server);
  if (engine->cluster_)
    engine->cluster_->serve_clients(
        [&to = *engine->server_](std::shared_ptr<cluster::SessionChannel> channel,
                                 const std::string& host) {
          to.accept(std::make_shared<SessionConnection>(std::move(channel), host));
        });
  return engine;
}

Result<std::unique_ptr<detail::EngineImpl>> LocalEngine::open_writer(
    const EngineOptions& options, const std::string& dir, std::unique_ptr<StateLock> lock) {
  auto engine = open(options, dir, std::move(lock));
  FLOW_TRY(engine);
  return std::unique_ptr<detail::EngineImpl>(std::move(*engine));
}

// If this engine leads the workers of an engine that died, it adopts their attempts.
Status LocalEngine::lead(const std::string& dir) {
  auto launcher = engine_loop_->parts().store.get(Family::kv, launcher_key());
  if (launcher.ok() && launcher->has_value()) engine_loop_->put_metadata(launcher_key(), "");
  if (!options_.listen.empty() || options_.slurm) {
    engine_loop_->put_metadata(leader_key(), options_.slurm ? "--on slurm" : "flow head");
  } else {
    auto leader = engine_loop_->parts().store.get(Family::kv, leader_key());
    FLOW_TRY(leader);
    if (*leader) busy_elsewhere_ = disconnected_workers(*engine_loop_, true);
    leader_ = leader->value_or("");
    if (busy_elsewhere_.empty()) engine_loop_->put_metadata(leader_key(), "");
  }
  if (!leads_cluster(options_)) {
    if (!busy_elsewhere_.empty()) return {};
    for (const std::string& name : disconnected_workers(*engine_loop_))
      engine_loop_->parts().membership.lose(name, "the engine was started again without workers");
    return {};
  }
  FLOW_TRY(check_for_work_elsewhere());
  ClusterOptions cluster;
  cluster.make_transport = cluster_transport;
  cluster.state_dir = dir;
  auto listen = address_to_listen_at(options_, dir);
  FLOW_TRY(listen);
  cluster.listen = listen->first;
  cluster.secret_file = options_.secret_file;
  cluster.encrypt = options_.encrypt;
  cluster.lost_after_ms = options_.lost_after_ms;
  // Workers of this process died with it.
  cluster.adopt_ms = options_.listen.empty() && !options_.slurm ? 0 : options_.adopt_ms;
  auto started = ClusterMembership::start(*engine_loop_, cluster);
  if (!started.ok() && !listen->second.empty()) {
    cluster.listen = listen->second;
    started = ClusterMembership::start(*engine_loop_, cluster);
  }
  FLOW_TRY(started);
  cluster_ = std::move(*started);
  address_ = address_for_users(cluster_->address());
  bool may_have_moved = !options_.listen.empty() && !options_.slurm;
  std::string note = may_have_moved ? cluster_->note_of_moved_head() : "";
  if (!note.empty()) std::fprintf(stderr, "flow: %s\n", note.c_str());
  if (options_.slurm) {
    auto slurm = SlurmHead::start(options_, dir, cluster_->address(), *engine_loop_, *this);
    FLOW_TRY(slurm);
    slurm_ = std::move(*slurm);
    return {};
  }
  return options_.workers > 0 ? start_workers(dir) : Status();
}

void LocalEngine::warn_all(const std::string& text) {
  std::lock_guard lock(watched_mutex_);
  for (const auto& each : watched_) {
    if (auto state = each.lock()) state->report("warning", text);
  }
}

// Results so far are kept. Each watched run ends with `why` as its error.
void LocalEngine::interrupt_runs(const Error& why) {
  std::vector<std::shared_ptr<detail::RunHandle>> states;
  {
    std::lock_guard lock(watched_mutex_);
    for (const auto& each : watched_)
      if (auto state = each.lock()) states.push_back(std::move(state));
  }
  for (const auto& state : states) {
    bool is_over = false;
    {
      std::lock_guard lock(state->mutex);
      is_over = state->ended;
    }
    if (is_over) continue;
    Error error = why;
    error.message +=
        fmt::format("\nThe run {0} is kept: `flow resume {0}` continues it", state->id);
    state->fail(error);
    engine_loop_->interrupt(state->id, false);
  }
}

Status LocalEngine::check_for_work_elsewhere() const {
  if (busy_elsewhere_.empty()) return {};
  std::string names, head = head_of_worker(*engine_loop_, busy_elsewhere_.front()).listened_at;
  for (const std::string& name : busy_elsewhere_)
    names += (names.empty() ? "`" : ", `") + name + "`";
  bool is_slurm = leader_ != "flow head";
  return environment_error(fmt::format(
      "the process that led the workers of this state is gone, and {} may still run its tasks, so "
      "nothing else is started here: {}, which continues these tasks. Workers that do not rejoin "
      "within {} s count as lost, and their tasks run again",
      names,
      is_slurm ? "continue with `flow resume RUN --on slurm`"
               : fmt::format("start `flow head{}` on this state again (with `--jobs N` it runs "
                             "tasks itself too)",
                             head.empty() ? "" : " --listen " + head),
      options_.adopt_ms / 1000));
}

Status LocalEngine::start_workers(const std::string& dir) {
  const std::string& executor = engine_loop_->parts().options.executor;
  auto program = find_program(options_, executor);
  FLOW_TRY(program);
  LocalWorkersOptions workers;
  workers.program = *program;
  workers.head = cluster_->address();
  workers.secret_file = options_.secret_file.empty() ? secret_path(dir) : options_.secret_file;
  workers.folder = dir + "/workers";
  workers.count = options_.workers;
  workers.jobs = jobs_of(options_);
  auto custom_resources = quantities_of(options_.resources);
  FLOW_TRY(custom_resources);
  workers.custom_resources = std::move(*custom_resources);
  workers.memory_bytes = usable_memory_bytes();
  for (const Gpu& gpu : find_gpus(executor).gpus) workers.gpus.push_back(gpu.uuid);
  auto started = LocalWorkers::start(workers);
  FLOW_TRY(started);
  workers_ = std::move(*started);
  return await_workers();
}

// The first tasks are placed with knowledge of all workers.
Status LocalEngine::await_workers() {
  constexpr int kTries = 1'000;
  constexpr int kPauseMs = 20;
  std::string missing;
  for (int attempt = 0; attempt < kTries; attempt++) {
    if (attempt > 0) ::poll(nullptr, 0, kPauseMs);
    missing.clear();
    for (int32_t number = options_.workers; number > 0; number--) {
      if (cluster_->address_of(local_worker_name(number)).empty())
        missing = workers_->log_of(number);
    }
    if (missing.empty()) return {};
  }
  return environment_error(
      fmt::format("a worker on this machine did not start within {} s: its log is `{}`",
                  kTries * kPauseMs / 1000, missing));
}

namespace {

GpuReading reading_of(const GpuSamples::TimedSample& timed, int64_t now_us) {
  constexpr double kPercent = 100, kMilliwatts = 1000, kUsPerSecond = 1e6;
  const GpuSample& sample = timed.sample;
  GpuReading reading;
  reading.uuid = sample.uuid;
  if (sample.utilization_percent) reading.utilisation = *sample.utilization_percent / kPercent;
  reading.memory_used_bytes = sample.memory_used_bytes;
  reading.temperature_celsius = sample.temperature_celsius;
  if (sample.power_milliwatts) reading.power_watts = *sample.power_milliwatts / kMilliwatts;
  reading.age_s = static_cast<double>(now_us - timed.at_us) / kUsPerSecond;
  return reading;
}

}  // namespace

// Those of this process's machine are its own.
std::vector<GpuReading> LocalEngine::readings_of(const std::string& worker) const {
  std::vector<GpuReading> readings;
  int64_t now_us = monotonic_us();
  std::vector<GpuSamples::TimedSample> samples;
  if (worker.empty()) samples = gpu_samples_->all_timed();
  if (!worker.empty() && cluster_) samples = cluster_->gpu_samples_of(worker);
  for (const GpuSamples::TimedSample& each : samples) readings.push_back(reading_of(each, now_us));
  return readings;
}

std::vector<NodeInfo> LocalEngine::nodes() const {
  std::vector<NodeInfo> nodes;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    nodes = nodes_of(state);
    for (NodeInfo& node : nodes) {
      std::string note = engine_loop_->parts().membership.note_of(node.name);
      if (!note.empty()) node.note += (node.note.empty() ? "" : "; ") + note;
    }
  });
  for (NodeInfo& node : nodes) node.gpu_readings = readings_of(node.name);
  if (!cluster_) return nodes;
  for (NodeInfo& node : nodes) {
    if (node.name.empty()) continue;
    node.address = cluster_->address_of(node.name);
    if (!node.address.empty()) node.version = version();
    if (node.status == "lost" && cluster_->has_left(node.name)) node.status = "left";
    cluster::Traffic traffic = engine_loop_->parts().blob_directory->traffic_of(node.name);
    for (auto [moved, to] : {std::pair(traffic.from_head, &node.from_head),
                             std::pair(traffic.from_workers, &node.from_workers),
                             std::pair(traffic.to_workers, &node.to_workers)})
      *to = {moved.blobs, moved.bytes};
  }
  return nodes;
}

namespace {
constexpr std::chrono::milliseconds kRankEndsWithin{2'000};
}  // namespace

LocalEngine::~LocalEngine() {
  metrics_.reset();
  if (span_exporter_) span_exporter_->set_on_drop(print_lost_spans);  // no run tells it any more
  if (engine_loop_) engine_loop_->await_rank_ends(kRankEndsWithin);
  if (cluster_) cluster_->serve_clients(nullptr);
  server_.reset();
  if (notifier_) notifier_->finish();
  slurm_.reset();
  workers_.reset();
  cluster_.reset();
  engine_loop_.reset();
}

// The loop calls it from then on. It finds the rows of ends that were committed before.
Status LocalEngine::start_notifier() {
  Notifier::Hooks hooks;
  hooks.run_json = [this](const RunId& run) { return describe_run(run, true).json(); };
  hooks.put = [this](std::string key, std::string value) {
    StoreCallback put{[&](Batch& batch, core::State&) {
      batch.put(Family::kv, std::move(key), std::move(value));
    }};
    return engine_loop_->parts().inbox.post_and_wait({std::move(put)});
  };
  hooks.warn = [](const RunId&, const std::string& text) {
    std::fprintf(stderr, "flow: %s\n", text.c_str());
  };
  notifier_ = std::make_unique<Notifier>(engine_loop_->parts().store, std::move(hooks));
  active_notifier_ = notifier_.get();
  return notifier_->start();
}

void LocalEngine::define(const std::string& name, const std::string& version, NativeTask task) {
  engine_loop_->parts().native.define(name, version, std::move(task));
}

void LocalEngine::define_operations(const std::string& name, const std::string& library) {
  std::error_code failed;
  std::filesystem::path path = std::filesystem::absolute(library, failed);
  if (failed || !std::filesystem::is_regular_file(path, failed))
    throw Failed(
        user_error(fmt::format("the operations `{}` can't be defined: there is no shared "
                               "library `{}`",
                               name, library)));
  engine_loop_->parts().operations.define(name, path.lexically_normal().string());
}

}  // namespace flow
