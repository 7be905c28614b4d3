// Converts orders and reports to messages of the executor protocol and back.
#include "engine/worker/slot.hpp"
#include "flow/collective.hpp"

namespace flow {

namespace {

void put_name(const core::AttemptId& id, uint32_t rank, wire::AttemptName& name) {
  name.set_run(id.run);
  name.set_unit(id.unit);
  name.set_attempt(id.attempt);
  name.set_epoch(id.epoch);
  name.set_rank(rank);
}

}  // namespace

wire::AttemptName wire_name(const core::AttemptId& id, uint32_t rank) {
  wire::AttemptName name;
  put_name(id, rank, name);
  return name;
}

core::AttemptId attempt_id(const wire::AttemptName& name) {
  return {name.run(), name.unit(), name.attempt(), name.epoch()};
}

RankId rank_id(const wire::AttemptName& name) { return {attempt_id(name), name.rank()}; }

// Most texts are empty, which is as if they were not set; but setting one allocates it.
void fill_start(const AttemptOrder& order, const std::string& scratch, wire::Start& start) {
  put_name(order.id, order.rank, *start.mutable_id());
  if (!order.gang_key.empty()) {
    start.set_ranks(order.ranks);
    start.set_local_rank(order.local_rank);
    start.set_local_ranks(order.local_ranks);
    start.set_gang_key(order.gang_key);
    start.set_encrypts(order.encrypts);
    start.set_remote_address(order.remote_address);
    for (const std::string& uuid : order.visible) start.add_visible(uuid);
  }
  start.set_task(order.task);
  if (!order.tag.empty()) start.set_tag(order.tag);
  start.set_task_name(order.task_name);
  start.set_kind(static_cast<uint32_t>(order.kind));
  start.set_bundle(order.bundle.view().data(), order.bundle.view().size());
  start.set_ordinal(order.ordinal);
  start.set_args(order.args);
  for (const auto& [digest, bytes] : order.blobs) {
    wire::Blob& blob = *start.add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(bytes);
  }
  start.set_key(order.key.view().data(), order.key.view().size());
  start.set_seed(order.seed);
  start.set_cpus(static_cast<uint32_t>(std::max(1, order.resources.cpus_milli / 1000)));
  start.set_memory_bytes(order.resources.memory_bytes);
  start.set_gpus_milli(static_cast<uint32_t>(order.resources.gpus_milli));
  for (const std::string& uuid : order.gpus) start.add_gpus(uuid);
  start.set_dir(scratch);
  auto add = [](wire::NamedValue& out, const std::pair<std::string, std::string>& in) {
    out.set_name(in.first);
    out.set_value(in.second);
  };
  for (const auto& step : order.steps) add(*start.add_steps(), step);
  for (const auto& signal : order.signals) add(*start.add_signals(), signal);
  start.set_has_checkpoint(order.has_checkpoint);
  if (!order.checkpoint.empty()) start.set_checkpoint(order.checkpoint);
  for (const AttemptOrder::Wait& wait : order.waits) {
    wire::Wait& out = *start.add_waits();
    out.set_name(wait.name);
    out.set_deadline_ms(wait.deadline);
    out.set_expired(wait.expired);
  }
  for (const auto& [name, value] : order.env) {
    wire::EnvVar& out = *start.add_env();
    out.set_name(name);
    out.set_value(value);
  }
  for (const std::string& secret : order.hide) start.add_hide(secret);
  if (order.shell != nullptr) {
    wire::Shell& shell = *start.mutable_shell();
    shell.set_command(order.shell->command);
    for (const std::string& arg : order.shell->args) shell.add_args(arg);
    for (const std::string& word : order.shell->shell) shell.add_shell(word);
    for (const auto& [name, pattern] : order.shell->outputs) {
      shell.add_output_names(name);
      shell.add_output_patterns(pattern);
    }
    shell.set_stage_copy(order.stage_copy);
    if (!order.shell->environment.is_empty())
      shell.set_environment(encode_command_environment(order.shell->environment));
  }
  if (!order.defined_at.empty()) start.mutable_shell()->set_defined_at(order.defined_at);
  if (order.shell == nullptr && order.stage_copy) start.mutable_shell()->set_stage_copy(true);
  start.set_port(order.service.port);
  start.set_batch_max(order.service.batch_max);
  start.set_batch_wait_us(order.service.batch_wait_us);
  start.set_request_timeout_ms(order.request_timeout_ms);
  if (!order.traceparent.empty()) start.set_traceparent(order.traceparent);
  if (order.kind == TaskKind::service) start.set_service(encode_service_options(order.service));
  if (!order.service_keys.empty()) start.set_service_keys(order.service_keys);
  if (!order.front.empty()) start.set_front(order.front);
  start.set_front_lease_ms(order.front_lease_ms);
  start.set_grace_ms(order.grace_ms);
  start.set_named_args(order.named_args);
}

namespace {

using InlineBlobs = std::vector<std::pair<Digest, std::string>>;

/// Digests are computed here and not taken from the sender.
void move_blobs(google::protobuf::RepeatedPtrField<wire::Blob>& from, InlineBlobs& blobs) {
  for (wire::Blob& blob : from) {
    Digest digest;
    if (Digest::from_bytes(blob.digest(), digest) && sha256(blob.data()) == digest)
      blobs.emplace_back(digest, std::move(*blob.mutable_data()));
  }
}

void put_blobs(InlineBlobs& blobs, google::protobuf::RepeatedPtrField<wire::Blob>& to) {
  for (auto& [digest, bytes] : blobs) {
    wire::Blob& blob = *to.Add();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
}

/// null if it is not valid.
std::shared_ptr<const ShellSpec> read_shell(const wire::Shell& from) {
  auto shell = std::make_shared<ShellSpec>();
  shell->command = from.command();
  shell->args.assign(from.args().begin(), from.args().end());
  shell->shell.assign(from.shell().begin(), from.shell().end());
  for (int i = 0; i < from.output_names_size(); i++)
    shell->outputs.emplace_back(from.output_names(i), from.output_patterns(i));
  if (from.environment().empty()) return shell;
  auto environment = decode_command_environment(from.environment());
  if (!environment.ok()) return nullptr;
  shell->environment = std::move(*environment);
  return shell;
}

}  // namespace

namespace {

/// Returns false if the options are not valid.
bool read_service(const wire::Start& start, AttemptOrder& order) {
  if (!start.service().empty()) {
    auto service = decode_service_options(start.service());
    if (!service.ok()) return false;
    order.service = std::move(*service);
  }
  order.service.port = static_cast<uint16_t>(start.port());
  order.service.batch_max = start.batch_max();
  order.service.batch_wait_us = start.batch_wait_us();
  order.service_keys = start.service_keys();
  order.front = start.front();
  order.front_lease_ms = start.front_lease_ms();
  return true;
}

}  // namespace

bool read_start(wire::Start& start, AttemptOrder& order) {
  const wire::Shell& shell = start.shell();
  bool ok = start.has_id() && start.kind() <= static_cast<uint32_t>(TaskKind::native) &&
            Digest::from_bytes(start.bundle(), order.bundle) &&
            Digest::from_bytes(start.key(), order.key) && start.port() <= UINT16_MAX &&
            start.memory_bytes() >= 0 && start.grace_ms() >= 0 &&
            start.id().rank() < std::max(1u, start.ranks()) && start.ranks() <= kRanksMax &&
            shell.output_names_size() == shell.output_patterns_size();
  if (!ok) return false;
  order.id = attempt_id(start.id());
  order.rank = start.id().rank();
  order.ranks = std::max(1u, start.ranks());
  order.local_rank = start.local_rank();
  order.local_ranks = std::max(1u, start.local_ranks());
  order.gang_key = start.gang_key();
  order.encrypts = start.encrypts();
  order.visible.assign(start.visible().begin(), start.visible().end());
  order.task = start.task();
  order.tag = start.tag();
  order.task_name = start.task_name();
  order.kind = static_cast<TaskKind>(start.kind());
  order.ordinal = start.ordinal();
  order.args = std::move(*start.mutable_args());
  move_blobs(*start.mutable_blobs(), order.blobs);
  order.seed = start.seed();
  order.resources.memory_bytes = start.memory_bytes();
  order.resources.gpus_milli = static_cast<int32_t>(start.gpus_milli());
  order.gpus.assign(start.gpus().begin(), start.gpus().end());
  order.grace_ms = start.grace_ms();
  for (const wire::NamedValue& step : start.steps())
    order.steps.emplace_back(step.name(), step.value());
  for (const wire::NamedValue& signal : start.signals())
    order.signals.emplace_back(signal.name(), signal.value());
  order.has_checkpoint = start.has_checkpoint();
  order.checkpoint = start.checkpoint();
  for (const wire::Wait& wait : start.waits())
    order.waits.push_back({wait.name(), wait.deadline_ms(), wait.expired()});
  for (const wire::EnvVar& variable : start.env())
    order.env.emplace_back(variable.name(), variable.value());
  order.hide.assign(start.hide().begin(), start.hide().end());
  if (order.kind == TaskKind::shell || !shell.command().empty()) {
    order.shell = read_shell(shell);
    if (order.shell == nullptr) return false;
  }
  order.defined_at = shell.defined_at();
  order.stage_copy = shell.stage_copy();
  order.named_args = start.named_args();
  order.request_timeout_ms = start.request_timeout_ms();
  order.traceparent = start.traceparent();
  return order.request_timeout_ms >= 0 && read_service(start, order);
}

namespace {

/// Returns false for an unknown outcome.
bool read_finished(wire::Finished& from, TaskFinished& finished) {
  if (from.outcome() > static_cast<uint32_t>(TaskFinished::Outcome::stopped)) return false;
  finished.outcome = static_cast<TaskFinished::Outcome>(from.outcome());
  finished.value = std::move(*from.mutable_value());
  move_blobs(*from.mutable_blobs(), finished.blobs);
  finished.waited = from.waited();
  finished.fragment = std::move(*from.mutable_fragment());
  bool is_known = from.cause() <= static_cast<uint32_t>(core::kCauseLast);
  finished.failure.cause =
      is_known ? static_cast<core::Cause>(from.cause()) : core::Cause::internal;
  finished.failure.message = std::move(*from.mutable_message());
  finished.failure.evidence = std::move(*from.mutable_evidence());
  finished.failure.code = from.code();
  finished.of_gang = from.of_gang();
  finished.signal = from.signal();
  finished.wait_name = from.wait_name();
  finished.wait_timeout_ms = from.wait_timeout_ms();
  finished.duration_us = from.duration_us();
  if (from.has_usage()) finished.usage = usage_of(from.usage());
  return true;
}

}  // namespace

void put_usage(const core::AttemptUsage& usage, wire::Usage& to) {
  if (usage.peak_memory >= 0) to.set_peak_memory(usage.peak_memory);
  if (usage.cpu_us >= 0) to.set_cpu_us(usage.cpu_us);
  if (usage.read_bytes >= 0) to.set_read_bytes(usage.read_bytes);
  if (usage.written_bytes >= 0) to.set_written_bytes(usage.written_bytes);
  if (usage.stage_us >= 0) to.set_stage_us(usage.stage_us);
  if (usage.commit_us >= 0) to.set_commit_us(usage.commit_us);
  if (usage.gpu_used_us >= 0) to.set_gpu_used_us(usage.gpu_used_us);
  if (usage.gpu_measured_us >= 0) to.set_gpu_measured_us(usage.gpu_measured_us);
  if (usage.gpu_energy_mj >= 0) to.set_gpu_energy_mj(usage.gpu_energy_mj);
  if (usage.leave_wait_us >= 0) to.set_leave_wait_us(usage.leave_wait_us);
  if (usage.moved_bytes >= 0) to.set_moved_bytes(usage.moved_bytes);
}

core::AttemptUsage usage_of(const wire::Usage& from) {
  auto known = [](bool has_it, int64_t number) {
    return has_it && number >= 0 ? number : int64_t{-1};
  };
  core::AttemptUsage usage;
  usage.peak_memory = known(from.has_peak_memory(), from.peak_memory());
  usage.cpu_us = known(from.has_cpu_us(), from.cpu_us());
  usage.read_bytes = known(from.has_read_bytes(), from.read_bytes());
  usage.written_bytes = known(from.has_written_bytes(), from.written_bytes());
  usage.stage_us = known(from.has_stage_us(), from.stage_us());
  usage.commit_us = known(from.has_commit_us(), from.commit_us());
  usage.gpu_used_us = known(from.has_gpu_used_us(), from.gpu_used_us());
  usage.gpu_measured_us = known(from.has_gpu_measured_us(), from.gpu_measured_us());
  usage.gpu_energy_mj = known(from.has_gpu_energy_mj(), from.gpu_energy_mj());
  usage.leave_wait_us = known(from.has_leave_wait_us(), from.leave_wait_us());
  usage.moved_bytes = known(from.has_moved_bytes(), from.moved_bytes());
  return usage;
}

bool to_report(wire::FromExecutor& message, Report& report) {
  auto set_rank = [&](const wire::AttemptName& name) {
    report.id = attempt_id(name);
    report.rank = name.rank();
  };
  switch (message.kind_case()) {
    case wire::FromExecutor::kLog: {
      wire::Log& log = *message.mutable_log();
      set_rank(log.id());
      report.at = log.at_ms();
      report.body = LogLines{log.stream(), std::move(*log.mutable_text())};
      return true;
    }
    case wire::FromExecutor::kProgress: {
      wire::Progress& progress = *message.mutable_progress();
      set_rank(progress.id());
      report.body = ProgressReported{progress.fraction(), std::move(*progress.mutable_metrics())};
      return true;
    }
    case wire::FromExecutor::kMetric: {
      const wire::Metric& metric = message.metric();
      set_rank(metric.id());
      report.at = metric.at_ms();
      report.body = MetricReported{metric.name(), metric.value(), metric.step()};
      return true;
    }
    case wire::FromExecutor::kSave: {
      wire::Save& save = *message.mutable_save();
      set_rank(save.id());
      if (save.name().empty()) {
        auto& checkpoint = report.body.emplace<CheckpointReported>();
        checkpoint.value = std::move(*save.mutable_value());
        move_blobs(*save.mutable_blobs(), checkpoint.blobs);
      } else {
        auto& step = report.body.emplace<StepReported>();
        step.name = save.name();
        step.value = std::move(*save.mutable_value());
        move_blobs(*save.mutable_blobs(), step.blobs);
      }
      return true;
    }
    case wire::FromExecutor::kReady:
      set_rank(message.ready().id());
      report.body = ServiceReported{message.ready().url()};
      return true;
    case wire::FromExecutor::kFinished:
      set_rank(message.finished().id());
      return read_finished(*message.mutable_finished(), report.body.emplace<TaskFinished>());
    case wire::FromExecutor::kRankAddressReport: {
      wire::RankAddressReport& address = *message.mutable_rank_address_report();
      set_rank(address.id());
      report.body = RankAddressReported{std::move(*address.mutable_rank_address())};
      return true;
    }
    case wire::FromExecutor::kPeerFailureReport: {
      wire::PeerFailureReport& failure = *message.mutable_peer_failure_report();
      set_rank(failure.id());
      report.body = PeerFailureReported{std::move(*failure.mutable_text())};
      return true;
    }
    case wire::FromExecutor::kRankProgressReport: {
      wire::RankProgressReport& progress = *message.mutable_rank_progress_report();
      set_rank(progress.id());
      report.body = RankProgressReported{std::move(*progress.mutable_rank_progress())};
      return true;
    }
    case wire::FromExecutor::kRequeued:
      if (message.requeued().ids_size() != 1)
        return false;  // the list of several belongs to a slot
      set_rank(message.requeued().ids(0));
      report.body = TaskRequeued{};
      return true;
    default:
      return false;
  }
}

namespace {

/// Moves each kind of report into its message.
struct ReportWriter {
  wire::AttemptName name;
  wire::FromExecutor& message;

  void operator()(LogLines& lines) {
    wire::Log& log = *message.mutable_log();
    *log.mutable_id() = std::move(name);
    log.set_stream(lines.stream);
    log.set_text(std::move(lines.text));
  }
  void operator()(ProgressReported& reported) {
    wire::Progress& progress = *message.mutable_progress();
    *progress.mutable_id() = std::move(name);
    progress.set_fraction(reported.fraction);
    progress.set_metrics(std::move(reported.metrics));
  }
  void operator()(MetricReported& reported) {
    wire::Metric& metric = *message.mutable_metric();
    *metric.mutable_id() = std::move(name);
    metric.set_name(std::move(reported.name));
    metric.set_value(reported.value);
    metric.set_step(reported.step);
  }
  void operator()(CheckpointReported& checkpoint) {
    put_save("", checkpoint.value, checkpoint.blobs);
  }
  void operator()(StepReported& step) { put_save(std::move(step.name), step.value, step.blobs); }
  void operator()(TaskFinished& end) {
    wire::Finished& finished = *message.mutable_finished();
    *finished.mutable_id() = std::move(name);
    finished.set_outcome(static_cast<uint32_t>(end.outcome));
    finished.set_value(std::move(end.value));
    put_blobs(end.blobs, *finished.mutable_blobs());
    finished.set_waited(end.waited);
    finished.set_fragment(std::move(end.fragment));
    finished.set_cause(static_cast<uint32_t>(end.failure.cause));
    finished.set_message(std::move(end.failure.message));
    finished.set_evidence(std::move(end.failure.evidence));
    finished.set_code(end.failure.code);
    finished.set_of_gang(end.of_gang);
    finished.set_signal(std::move(end.signal));
    finished.set_wait_name(std::move(end.wait_name));
    finished.set_wait_timeout_ms(end.wait_timeout_ms);
    finished.set_duration_us(end.duration_us);
    if (end.usage != core::AttemptUsage{}) put_usage(end.usage, *finished.mutable_usage());
  }
  void operator()(TaskRequeued&) { *message.mutable_requeued()->add_ids() = std::move(name); }
  void operator()(ServiceReported& service) {
    *message.mutable_ready()->mutable_id() = std::move(name);
    message.mutable_ready()->set_url(std::move(service.url));
  }
  void operator()(RankAddressReported& reported) {
    *message.mutable_rank_address_report()->mutable_id() = std::move(name);
    message.mutable_rank_address_report()->set_rank_address(std::move(reported.address));
  }
  void operator()(PeerFailureReported& reported) {
    *message.mutable_peer_failure_report()->mutable_id() = std::move(name);
    message.mutable_peer_failure_report()->set_text(std::move(reported.text));
  }
  void operator()(RankProgressReported& reported) {
    *message.mutable_rank_progress_report()->mutable_id() = std::move(name);
    message.mutable_rank_progress_report()->set_rank_progress(std::move(reported.progress));
  }

  void put_save(std::string what, std::string& value, InlineBlobs& blobs) {
    wire::Save& save = *message.mutable_save();
    *save.mutable_id() = std::move(name);
    save.set_name(std::move(what));
    save.set_value(std::move(value));
    put_blobs(blobs, *save.mutable_blobs());
  }
};

}  // namespace

void fill_report(Report report, wire::FromExecutor& message) {
  std::visit(ReportWriter{wire_name(report.id, report.rank), message}, report.body);
  if (report.is<LogLines>()) message.mutable_log()->set_at_ms(report.at);
  if (report.is<MetricReported>()) message.mutable_metric()->set_at_ms(report.at);
}

}  // namespace flow
