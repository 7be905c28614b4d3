// Runs, resumes, cancels and signals through the engine loop of this process.
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
#include "engine/client/request_marks.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/query/export_result.hpp"
#include "engine/query/plan_preview.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/upload_result.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runs/served_versions.hpp"
#include "engine/runtime/garbage_collection.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/notify_settings.hpp"
#include "engine/submission/remote_inputs.hpp"
#include "engine/submission/run_budget.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/submission/stored_submission.hpp"
#include "engine/submission/task_configuration.hpp"
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

Submission LocalEngine::local_submission(const RunOptions& options) const {
  return value_or_throw(make_submission(options_, options));
}

RunInfo LocalEngine::describe_run(const RunId& id, bool tasks) {
  RunInfo info;
  bool found = false;
  auto describe = [&](const core::Run& run, const RunRecord& record, InputResolver& resolver,
                      const core::State* state) {
    info = tasks ? info_of_run(run, record, resolver, state)
                 : summary_of_run(run, record, resolver, state);
    bool is_at_rest = info.status == "interrupted";
    if (is_at_rest) info.not_resumed = why_not_resumed(engine_loop_->parts().store, id);
    found = true;
  };
  EngineLoop* engine_loop = engine_loop_.get();
  engine_loop->inspect([&](const core::State& state, InputResolver& resolver) {
    auto run = state.runs.find(id);
    if (run == state.runs.end()) return;
    if (auto record = record_of(engine_loop->parts().store, id))
      describe(run->second, *record, resolver, &state);
  });
  if (found) return info;
  if (auto error = engine_loop->stopped_by()) throw Failed(*error);
  RunRecord record = value_or_throw(select_record(engine_loop->parts().store, id));
  InputResolver resolver(
      [engine_loop](const Digest& digest) { return engine_loop->parts().blobs.get(digest); });
  if (!tasks) return summary_of_record(record, resolver);
  LoadedRun loaded =
      value_or_throw(load_run(engine_loop->parts().store, engine_loop->parts().blobs, record));
  if (loaded.run == nullptr) return info_of_record(record);
  describe(*loaded.run, record, resolver, loaded.state.get());
  return info;
}

std::shared_ptr<detail::RunHandle> LocalEngine::watch(const RunId& id) {
  auto state = std::make_shared<detail::RunHandle>();
  state->id = id;
  EngineLoop* engine_loop = engine_loop_.get();
  state->info = [this, id] { return describe_run(id, true); };
  state->summary = [this, id] { return describe_run(id, false); };
  state->counts = [this, id] { return counts(id); };
  state->counts_by_task = [this, id] { return counts_by_task(id); };
  auto who = [own = requester_of(options_)](const std::string& by) {
    return by.empty() ? own : by;
  };
  state->interrupt = [engine_loop, id, who](bool kill, const std::string& by) {
    engine_loop->interrupt(id, kill, who(by));
  };
  state->cancel = [engine_loop, id, who](const std::string& by) {
    (void)engine_loop->post_and_wait(core::CancelRequested{id, who(by)});
  };
  state->end_serving = [engine_loop, id, who](const std::string& by) {
    (void)engine_loop->post_and_wait(core::ServeEnded{id, who(by)});
  };
  state->outlive_client = [engine_loop, id] { return engine_loop->outlive_client(id); };
  std::lock_guard lock(watched_mutex_);
  std::erase_if(watched_, [](const auto& watched) { return watched.expired(); });
  watched_.push_back(state);
  std::string warning = std::exchange(unsaid_warning_, "");
  if (!warning.empty()) state->report("warning", warning);
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::run(const std::string& script, const Value& params,
                                                    const RunOptions& options) {
  Submission submission = local_submission(options);
  submission.script = script;
  submission.params = params;
  return run_for(submission);
}

namespace {

/// When a run continues with other code, first shows what will run again.
void report_build(detail::RunHandle& state, const Plan& plan) {
  for (const std::string& line : plan.printed) state.report("print", line);
  for (const std::string& warning : plan.warnings) state.report("warning", warning);
}

void report_plan_preview(detail::RunHandle& state, const PlanInfo& preview) {
  for (const PlanNode& node : preview.nodes) {
    Event event;
    event.type = "plan";
    event.run = state.id;
    event.task = node.name;
    event.tag = node.tag;
    event.status = node.verdict;
    event.text = node.reason;
    event.at_ms = now_ms();
    state.on_event(std::move(event));
  }
}

}  // namespace

// A writer may die between the commit and its reply. A client that repeats its request means the
// run of the first request: it continues or has ended.
std::shared_ptr<detail::RunHandle> LocalEngine::find_request(const Submission& submission) {
  const std::string& request = submission.options.request;
  if (request.empty()) return nullptr;
  auto run = value_or_throw(engine_loop_->parts().store.get(Family::kv, request_key(request)));
  if (!run) return nullptr;
  auto state = watch(*run);  // gc keeps the run from here on
  auto record = select_record(engine_loop_->parts().store, *run);
  if (!record.ok()) return nullptr;  // removed by gc
  Submission again = submission;
  again.options.request.clear();
  again.options.on_end.clear();  // as kept: it was committed with the request
  if (again.options.detached) again.options.serve_for_ms = RunOptions().serve_for_ms;  // as kept
  if (!is_over(record->status)) return resume_for(record->id, "", Resumption::resume, again);
  state->on_end();
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::run_for(const Submission& submission) {
  if (auto requested_before = find_request(submission)) return requested_before;
  ok_or_throw(check_for_work_elsewhere());
  const Status adopted = adopt_serving_version(submission.options.name, "");
  auto held = engine_loop_->parts().pins.hold();
  Prepared prepared = value_or_throw(prepare(*engine_loop_, submission));
  ok_or_throw(check_canary(adopted, *prepared.plan));
  RunId id = prepared.context.record.id;
  auto nested =
      value_or_throw(nested_.check(*engine_loop_, id, prepared.plan, *submission.environment));
  auto state = watch(id);
  prepared.context.listener = state;
  prepared.context.is_of_head = is_head();
  report_build(*state, *prepared.plan);
  ok_or_throw(engine_loop_->submit(std::move(prepared), submission.options.jobs));
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::resume(const std::string& selector,
                                                       const RunOptions& options, bool new_code) {
  return resume_first(selector, "", new_code ? Resumption::new_code : Resumption::resume,
                      local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::retry(const std::string& selector,
                                                      const std::string& task,
                                                      const RunOptions& options) {
  return resume_first(selector, task, Resumption::retry, local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::resume_for(const std::string& selector,
                                                           const std::string& task, Resumption how,
                                                           const Submission& from) {
  ok_or_throw(check_on_end(from.options.on_end));
  if (auto requested_before = find_request(from)) return requested_before;
  const RunRecord named = value_or_throw(select_record(engine_loop_->parts().store, selector));
  const Status adopted = adopt_serving_version(named.name, named.id);
  auto held = engine_loop_->parts().pins.hold();
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, named.id));
  auto state = watch(record.id);
  if (record.status == "cancelled") {
    bool is_here = record.script.starts_with("/");
    throw Failed(
        user_error(fmt::format("the run {} was cancelled and cannot be resumed: {} starts a new "
                               "run, which takes finished results from the cache",
                               record.id,
                               is_here ? fmt::format("`flow run {}`", record.script)
                                       : "`flow run`, where it was started,")));
  }
  if (how == Resumption::new_code) {
    ok_or_throw(check_for_work_elsewhere());
    Submission again = from;
    again.script = record.script;
    again.working_directory = record.directory;
    Inputs inputs = value_or_throw(inputs_of(engine_loop_->parts().store, record.id));
    again.params = current_params(inputs, value_or_throw(decode_value(record.params)));
    again.resumed_inputs = std::make_shared<const Inputs>(std::move(inputs));
    again.options.fresh = record.fresh;
    again.options.fail_fast = record.fail_fast;
    if (again.options.on_end.empty()) {
      auto row = value_or_throw(engine_loop_->parts().store.get(Family::kv, notify_key(record.id)));
      again.options.on_end = decode_notify_settings(row.value_or("")).on_end;
    }
    if (!record.script.starts_with("/") && !again.built)
      throw Failed(user_error(fmt::format(
          "the run {} was started on another machine, from `{}`: resume it with new code there",
          record.id, record.script)));
    Prepared prepared = value_or_throw(prepare(*engine_loop_, again));
    ok_or_throw(check_canary(adopted, *prepared.plan));
    prepared.context.record.id = record.id;
    prepared.context.record.name = record.name;
    prepared.context.record.submitted = record.submitted;
    prepared.context.action = core::ActionKind::resume;
    auto nested =
        value_or_throw(nested_.check(*engine_loop_, record.id, prepared.plan, *from.environment));
    prepared.context.listener = state;
    prepared.context.is_of_head = is_head();
    report_build(*state, *prepared.plan);
    report_plan_preview(*state, preview(prepared, record.fresh, &record));
    end_removed_services(record.id, *prepared.plan);
    ok_or_throw(engine_loop_->replace(std::move(prepared), from.options.jobs));
    return state;
  }
  bool retries_ignored = how == Resumption::retry && record.counts.ignored > 0;
  if (record.status == "succeeded" && task.empty() && !retries_ignored) {
    // Nothing else of this request is committed yet. gc needs this row to map the client's mark to
    // the run.
    const std::string& request = from.options.request;
    if (!request.empty()) engine_loop_->put_metadata(request_key(request), record.id);
    state->on_end();
    return state;
  }
  ok_or_throw(check_for_work_elsewhere());
  std::string bundle_bytes = value_or_throw(engine_loop_->parts().blobs.get(record.bundle_digest));
  std::string plan_bytes = value_or_throw(engine_loop_->parts().blobs.get(record.plan_digest));
  Plan plan = value_or_throw(decode_plan(plan_bytes));
  ok_or_throw(check_canary(adopted, plan));
  Capacity capacity = value_or_throw(capacity_for(plan, *engine_loop_));
  std::vector<std::string> warnings;
  std::vector<Error> errors = check_requirements(plan, *from.environment, capacity, warnings);
  if (!errors.empty()) throw Failed(errors.front());
  std::optional<core::BudgetTerms> budget;
  if (!from.options.budget.empty()) {
    std::string profile;
    Inputs inputs = value_or_throw(inputs_of(engine_loop_->parts().store, record.id));
    budget = value_or_throw(
        budget_terms(from.options.budget, values_of_kept(inputs.config, profile), plan));
  }
  auto nested = value_or_throw(nested_.check(
      *engine_loop_, record.id, std::make_shared<const Plan>(std::move(plan)), *from.environment));
  RunContext context;
  context.record = record;
  context.request = from.options.request;
  context.budget = std::move(budget);
  context.bundle = std::make_shared<const std::string>(std::move(bundle_bytes));
  context.environment = from.environment;
  context.grace_ms = from.options.grace_ms;
  context.publishes_logs = from.options.logs;
  context.serve_for_ms = from.options.serve_for_ms;
  context.front_lease_ms = from.options.front_lease_ms;
  context.is_detached = from.options.detached;
  context.is_of_head = is_head();
  context.is_unattended = from.is_unattended;
  context.by = from.by;
  context.notify =
      value_or_throw(kept_notify_row(engine_loop_->parts().store, record, from.options.on_end));
  if (!context.is_unattended) context.listener = state;
  auto before = find_detached_run(engine_loop_->parts().store, record.id);
  if (before.ok() && *before) keep_options(context, **before);
  Bundle bundle = value_or_throw(decode_bundle(*context.bundle));
  std::string changed = changed_sources(bundle);
  if (!changed.empty()) {
    state->report(
        "warning",
        fmt::format("{} differs from what the run was started with; the run continues with its "
                    "own code. `flow resume {} --code new` uses the new code.",
                    changed, record.id));
  }
  report_changed_inputs(*state, record);
  ok_or_throw(engine_loop_->resume(std::move(context), task, how == Resumption::retry));
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::serve(const std::string& selector,
                                                      const RunOptions& options) {
  return serve_for(selector, false, local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::rollback(const std::string& name,
                                                         const RunOptions& options) {
  return serve_for(name, true, local_submission(options));
}

namespace {

/// The version that served `name` before the present one.
Result<RunRecord> version_to_restore(const Store& store, const Blobs& blobs,
                                     const std::string& name) {
  auto serving = serving_version(store, name);
  FLOW_TRY(serving);
  if (name.empty() || !*serving)
    return user_error(fmt::format(
        "no run with the name `{}` serves: `flow services` lists the names that are served", name));
  auto before = version_before(store, blobs, **serving);
  FLOW_TRY(before);
  if (!*before)
    return user_error(fmt::format(
        "there is no version of `{}` before the run {}: no earlier run of this name in the state "
        "has the same services, has served and has succeeded",
        name, (*serving)->id));
  return std::move(**before);
}

}  // namespace

std::shared_ptr<detail::RunHandle> LocalEngine::serve_for(const std::string& selector,
                                                          bool rolls_back, const Submission& from) {
  ok_or_throw(check_on_end(from.options.on_end));
  if (rolls_back)
    if (auto rejected = end_canary(selector, from)) return version_kept(selector, *rejected);
  if (auto requested_before = find_request(from)) return requested_before;
  ok_or_throw(check_for_work_elsewhere());
  const Store& store = engine_loop_->parts().store;
  const Blobs& blobs = engine_loop_->parts().blobs;
  RunRecord record = value_or_throw(rolls_back ? version_to_restore(store, blobs, selector)
                                               : select_served(store, selector));
  Submission submission = from;
  std::string& name = submission.options.name;
  if (rolls_back || name.empty()) name = record.name;
  const Status adopted = adopt_serving_version(name, "");
  auto held = engine_loop_->parts().pins.hold();
  Prepared prepared = value_or_throw(prepare_stored(
      store, blobs, record, submission, rolls_back ? Takeover::at_once : Takeover::by_canary));
  ok_or_throw(check_canary(adopted, *prepared.plan));
  prepared.context.record.id = engine_loop_->parts().stored_runs.new_id();
  prepared.context.record.submitted = engine_loop_->parts().clock.now();
  Capacity capacity = value_or_throw(capacity_for(*prepared.plan, *engine_loop_));
  std::vector<std::string> warnings;
  std::vector<Error> errors =
      check_requirements(*prepared.plan, *from.environment, capacity, warnings);
  if (!errors.empty()) throw Failed(errors.front());
  ok_or_throw(check_only_services_run(preview(prepared, false, nullptr), record));
  const RunId id = prepared.context.record.id;
  prepared.context.action = rolls_back ? core::ActionKind::rollback : core::ActionKind::serve;
  auto nested = value_or_throw(nested_.check(*engine_loop_, id, prepared.plan, *from.environment));
  auto state = watch(id);
  prepared.context.listener = state;
  prepared.context.is_of_head = is_head();
  prepared.context.notify = value_or_throw(kept_notify_row(store, record, from.options.on_end));
  for (const std::string& warning : warnings) state->report("warning", warning);
  ok_or_throw(engine_loop_->submit(std::move(prepared), from.options.jobs));
  return state;
}

void LocalEngine::cancel_for(const std::string& selector, const std::string& by) {
  RunRecord record = value_or_throw(select_serving(engine_loop_->parts().store, selector));
  bool admitted = value_or_throw(engine_loop_->post_and_wait(core::CancelRequested{record.id, by}));
  if (!admitted && record.status != "cancelled")  // a repeated request succeeds
    throw Failed(user_error(fmt::format("the run {} can't be cancelled: it {}", record.id,
                                        status_clause(record.status))));
}

std::vector<RunId> LocalEngine::active_runs(const std::string& selector) {
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, selector));
  bool is_name = record.name == selector && record.id != selector;
  std::vector<RunId> active;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    for (auto run = state.runs.rbegin(); run != state.runs.rend(); ++run) {
      bool is_meant = is_name ? run->second.name == selector : run->first == record.id;
      if (is_meant && !engine_loop_->parts().active_runs.is_at_rest(run->first))
        active.push_back(run->first);
    }
  });
  if (!active.empty()) return active;
  std::string why = is_over(record.status)
                        ? "it " + status_clause(record.status)
                        : fmt::format(
                              "it is interrupted. `flow resume {}` continues it, and `flow "
                              "cancel {}` ends it for good",
                              record.id, record.id);
  throw Failed(user_error(fmt::format("the run {} can't be stopped: {}", record.id, why)));
}

std::vector<RunInfo> LocalEngine::stop_for(const std::string& selector, int64_t within_ms,
                                           const std::string& by) {
  std::vector<RunId> runs = active_runs(selector);
  std::vector<std::shared_ptr<Latch>> rests;
  for (const RunId& run : runs) {
    engine_loop_->interrupt(run, false, by);
    rests.push_back(engine_loop_->watch_rest(run));
  }
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(within_ms);
  for (size_t i = 0; within_ms >= 0 && i < runs.size(); i++) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (!rests[i]->is_open_within(std::max(left, std::chrono::milliseconds(0))))
      engine_loop_->interrupt(runs[i], true, by);
  }
  for (const auto& rest : rests) {
    bool is_at_rest = rest->wait();
    if (auto error = engine_loop_->stopped_by()) throw Failed(*error);
    if (!is_at_rest)
      throw Failed(environment_error("the process that writes the state ended before the run did"));
  }
  std::vector<RunInfo> stopped;
  for (const RunId& run : runs) stopped.push_back(describe_run(run, false));
  return stopped;
}

std::vector<ServiceInfo> LocalEngine::services() { return Reader(reader_options()).services(); }

void LocalEngine::signal_for(const std::string& selector, const std::string& name,
                             const std::string& json, const std::string& by) {
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, selector));
  Value value(true);
  if (!json.empty()) {
    auto parsed = from_json(json);
    if (!parsed.ok())
      throw Failed(
          user_error(fmt::format("the signal's value is not JSON: {}", parsed.error().message)));
    value = std::move(*parsed);
  }
  std::string bytes = encode_value(value);
  Digest digest = sha256(bytes);
  bool admitted = value_or_throw(engine_loop_->post_and_wait(
      core::SignalReceived{record.id, name, digest, by}, {{digest, bytes}}));
  if (admitted) return;
  // The first signal of a name answers all its waits. A second one changes nothing.
  bool is_active = false;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(record.id);
    is_active = run != state.runs.end() && !core::is_final(run->second.status);
  });
  if (is_active) return;
  // A client that lost the reply and repeats its request succeeds.
  LoadedRun ended = value_or_throw(
      load_run(engine_loop_->parts().store, engine_loop_->parts().blobs,
               value_or_throw(select_record(engine_loop_->parts().store, record.id))));
  if (ended.run != nullptr) {
    auto sent = ended.run->signals.find(name);
    if (sent != ended.run->signals.end() && sent->second == digest) return;
  }
  throw Failed(user_error(fmt::format("the run {} takes no signals any more: it {}", record.id,
                                      status_clause(ended.record.status))));
}

PlanInfo LocalEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = local_submission(options);
  submission.script = script;
  return plan_for(submission);
}

// In a turn: all decisions of earlier turns are durable, and gc does not run meanwhile. Functions
// of the script are called between turns.
PlanInfo LocalEngine::preview(const Prepared& prepared, bool fresh, const RunRecord* resumed) {
  PreviewTags tags(*engine_loop_->parts().builder, prepared);
  PlanInfo info;
  do {
    engine_loop_->inspect([&](const core::State&, InputResolver&) {
      const EngineLoopOptions& options = engine_loop_->parts().options;
      PlanPreview preview(engine_loop_->parts().store, engine_loop_->parts().blobs,
                          {options.jobs, options.custom_resources},
                          engine_loop_->parts().clock.now());
      info = preview.preview(*prepared.plan, fresh, resumed, &tags);
    });
  } while (tags.resolve());
  return info;
}

PlanInfo LocalEngine::plan_for(const Submission& submission) {
  Prepared prepared = value_or_throw(prepare(*engine_loop_, submission, Purpose::preview));
  return preview(prepared, submission.options.fresh, nullptr);
}

Counts LocalEngine::counts(const RunId& id) {
  std::optional<Counts> counts;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    if (run != state.runs.end()) counts = counts_of(run->second);
  });
  if (counts) return *counts;
  auto record =
      record_of(engine_loop_->parts().store, id);  // the state no longer holds a finished run
  return record ? record->counts : Counts{};
}

std::vector<CountedTask> LocalEngine::counts_by_task(const RunId& id) {
  std::vector<CountedTask> tasks;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    if (run != state.runs.end()) tasks = flow::counts_by_task(run->second);
  });
  return tasks;
}

RunInfo LocalEngine::show(const std::string& selector, bool tasks) {
  return describe_run(value_or_throw(select_record(engine_loop_->parts().store, selector)).id,
                      tasks);
}

EngineOptions LocalEngine::reader_options() const {
  EngineOptions options = options_;
  options.state = engine_loop_->parts().options.state_dir;
  return options;
}

Value LocalEngine::value(const std::string& selector, const std::string& part) const {
  return Reader(reader_options()).value(selector, part);
}

std::vector<std::string> LocalEngine::get_folders(const std::string& selector) const {
  return Reader(reader_options()).get_folders(selector);
}

std::vector<std::string> LocalEngine::get(const std::string& selector, const std::string& part,
                                          const std::string& directory) {
  std::vector<std::string> folders;
  if (part.empty()) folders = get_folders(selector);
  const EngineComponents& parts = engine_loop_->parts();
  return export_to_target(directory, parts.options.state_dir, [&](const std::string& folder) {
    return export_result(parts.blobs, value(selector, part), part, folder, folders);
  });
}

Result<cluster::BlobReader> LocalEngine::open_blob(const Digest& digest,
                                                   const std::string& origin) const {
  auto inlined = engine_loop_->parts().store.get(Family::blobs, digest.view());
  FLOW_TRY(inlined);
  if (inlined->has_value()) return cluster::BlobReader::of_bytes(std::move(**inlined));
  std::string path = engine_loop_->parts().blobs.path_of(digest);
  if (origin.empty() || ::access(path.c_str(), R_OK) == 0)
    return cluster::BlobReader::of_file(path, false);
  return cluster::BlobReader::of_file(origin, true);
}

uint64_t LocalEngine::gc(uint32_t keep) {
  uint64_t freed =
      value_or_throw(collect_garbage(*engine_loop_, keep, [this] { return watched_runs(); }));
  return freed + remove_unfinished_downloads(engine_loop_->parts().blobs);
}

std::set<std::string> LocalEngine::watched_runs() {
  std::set<std::string> runs;
  std::lock_guard lock(watched_mutex_);
  for (const auto& watched : watched_) {
    if (auto state = watched.lock()) runs.insert(state->id);
  }
  for (const std::string& request : live_requests(engine_loop_->parts().options.state_dir)) {
    auto run = engine_loop_->parts().store.get(Family::kv, request_key(request));
    if (run.ok() && *run) runs.insert(**run);
  }
  return runs;
}

}  // namespace flow
