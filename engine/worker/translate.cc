// Orders and reports between the head's words and the wire's.
#include "engine/worker/slot.hpp"
#include "flow/collective.hpp"

namespace flow {

wire::AttemptName wire_name(const core::AttemptId& id, uint32_t rank) {
  wire::AttemptName name;
  name.set_run(id.run);
  name.set_unit(id.unit);
  name.set_attempt(id.attempt);
  name.set_epoch(id.epoch);
  name.set_rank(rank);
  return name;
}

core::AttemptId attempt_id(const wire::AttemptName& name) {
  return {name.run(), name.unit(), name.attempt(), name.epoch()};
}

RankId rank_id(const wire::AttemptName& name) { return {attempt_id(name), name.rank()}; }

void fill_start(const AttemptOrder& order, const std::string& scratch, wire::Start& start) {
  *start.mutable_id() = wire_name(order.id, order.rank);
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
  start.set_task_name(order.task_name);
  start.set_kind(static_cast<uint32_t>(order.kind));
  start.set_bundle(std::string(order.bundle.view()));
  start.set_ordinal(order.ordinal);
  start.set_args(order.args);
  for (const auto& [digest, bytes] : order.blobs) {
    wire::Blob& blob = *start.add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(bytes);
  }
  start.set_key(std::string(order.key.view()));
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
  start.set_checkpoint(order.checkpoint);
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
  if (order.kind == TaskKind::shell) {
    wire::Shell& shell = *start.mutable_shell();
    shell.set_command(order.shell->command);
    for (const std::string& arg : order.shell->args) shell.add_args(arg);
    for (const std::string& word : order.shell->shell) shell.add_shell(word);
    for (const auto& [name, pattern] : order.shell->outputs) {
      shell.add_output_names(name);
      shell.add_output_patterns(pattern);
    }
    shell.set_stage_copy(order.stage_copy);
  }
  if (!order.defined_at.empty()) start.mutable_shell()->set_defined_at(order.defined_at);
  if (order.kind != TaskKind::shell && order.stage_copy)
    start.mutable_shell()->set_stage_copy(true);
  start.set_port(order.service.port);
  start.set_batch_max(order.service.batch_max);
  start.set_batch_wait_us(order.service.batch_wait_us);
  start.set_grace_ms(order.grace_ms);
  start.set_named_args(order.named_args);
}

namespace {

using Blobs = std::vector<std::pair<Digest, std::string>>;

/// Named by what they are, not by what their sender says.
void take_blobs(google::protobuf::RepeatedPtrField<wire::Blob>& from, Blobs& blobs) {
  for (wire::Blob& blob : from) {
    Digest digest;
    if (Digest::from_bytes(blob.digest(), digest) && sha256(blob.data()) == digest)
      blobs.emplace_back(digest, std::move(*blob.mutable_data()));
  }
}

void put_blobs(Blobs& blobs, google::protobuf::RepeatedPtrField<wire::Blob>& to) {
  for (auto& [digest, bytes] : blobs) {
    wire::Blob& blob = *to.Add();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
}

std::shared_ptr<const ShellSpec> read_shell(const wire::Shell& from) {
  auto shell = std::make_shared<ShellSpec>();
  shell->command = from.command();
  shell->args.assign(from.args().begin(), from.args().end());
  shell->shell.assign(from.shell().begin(), from.shell().end());
  for (int i = 0; i < from.output_names_size(); i++)
    shell->outputs.emplace_back(from.output_names(i), from.output_patterns(i));
  return shell;
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
  order.task_name = start.task_name();
  order.kind = static_cast<TaskKind>(start.kind());
  order.ordinal = start.ordinal();
  order.args = std::move(*start.mutable_args());
  take_blobs(*start.mutable_blobs(), order.blobs);
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
  if (order.kind == TaskKind::shell) order.shell = read_shell(shell);
  order.defined_at = shell.defined_at();
  order.stage_copy = shell.stage_copy();
  order.named_args = start.named_args();
  order.service = {static_cast<uint16_t>(start.port()), start.batch_max(), start.batch_wait_us()};
  return true;
}

bool to_report(wire::FromExecutor& message, Report& report) {
  auto of = [&](const wire::AttemptName& name) {
    report.id = attempt_id(name);
    report.rank = name.rank();
  };
  switch (message.kind_case()) {
    case wire::FromExecutor::kLog:
      report.kind = Report::Kind::log;
      of(message.log().id());
      report.stream = message.log().stream();
      report.text = std::move(*message.mutable_log()->mutable_text());
      report.at = message.log().at_ms();
      return true;
    case wire::FromExecutor::kProgress:
      report.kind = Report::Kind::progress;
      of(message.progress().id());
      report.number = message.progress().fraction();
      report.value = std::move(*message.mutable_progress()->mutable_metrics());
      return true;
    case wire::FromExecutor::kMetric:
      report.kind = Report::Kind::metric;
      of(message.metric().id());
      report.text = message.metric().name();
      report.number = message.metric().value();
      report.step = message.metric().step();
      return true;
    case wire::FromExecutor::kSave:
      report.kind = Report::Kind::saved;
      of(message.save().id());
      report.text = message.save().name();
      report.value = std::move(*message.mutable_save()->mutable_value());
      take_blobs(*message.mutable_save()->mutable_blobs(), report.blobs);
      return true;
    case wire::FromExecutor::kReady:
      report.kind = Report::Kind::ready;
      of(message.ready().id());
      report.text = message.ready().url();
      return true;
    case wire::FromExecutor::kFinished: {
      wire::Finished& finished = *message.mutable_finished();
      report.kind = Report::Kind::finished;
      of(finished.id());
      if (finished.outcome() > static_cast<uint32_t>(Report::Outcome::stopped)) return false;
      report.outcome = static_cast<Report::Outcome>(finished.outcome());
      report.value = std::move(*finished.mutable_value());
      take_blobs(*finished.mutable_blobs(), report.blobs);
      report.waited = finished.waited();
      report.fragment = std::move(*finished.mutable_fragment());
      bool known = finished.cause() <= static_cast<uint32_t>(core::kCauseLast);
      report.failure.cause =
          known ? static_cast<core::Cause>(finished.cause()) : core::Cause::internal;
      report.failure.message = std::move(*finished.mutable_message());
      report.failure.evidence = std::move(*finished.mutable_evidence());
      report.failure.code = finished.code();
      report.of_gang = finished.of_gang();
      report.signal = finished.signal();
      report.wait_name = finished.wait_name();
      report.wait_timeout_ms = finished.wait_timeout_ms();
      report.duration_us = finished.duration_us();
      return true;
    }
    case wire::FromExecutor::kRankAddressReport:
      report.kind = Report::Kind::rank_address;
      of(message.rank_address_report().id());
      report.text = std::move(*message.mutable_rank_address_report()->mutable_rank_address());
      return true;
    case wire::FromExecutor::kPeerFailureReport:
      report.kind = Report::Kind::peer_failure;
      of(message.peer_failure_report().id());
      report.text = std::move(*message.mutable_peer_failure_report()->mutable_text());
      return true;
    case wire::FromExecutor::kRankProgressReport:
      report.kind = Report::Kind::rank_progress;
      of(message.rank_progress_report().id());
      report.text = std::move(*message.mutable_rank_progress_report()->mutable_rank_progress());
      return true;
    case wire::FromExecutor::kRequeued:
      if (message.requeued().ids_size() != 1) return false;  // a slot's own, of many
      report.kind = Report::Kind::requeued;
      of(message.requeued().ids(0));
      return true;
    default:
      return false;
  }
}

void fill_report(Report report, wire::FromExecutor& message) {
  auto name = [&](auto* body) { *body->mutable_id() = wire_name(report.id, report.rank); };
  switch (report.kind) {
    case Report::Kind::log: {
      wire::Log* log = message.mutable_log();
      name(log);
      log->set_stream(report.stream);
      log->set_text(std::move(report.text));
      return log->set_at_ms(report.at);
    }
    case Report::Kind::progress: {
      wire::Progress* progress = message.mutable_progress();
      name(progress);
      progress->set_fraction(report.number);
      return progress->set_metrics(std::move(report.value));
    }
    case Report::Kind::metric: {
      wire::Metric* metric = message.mutable_metric();
      name(metric);
      metric->set_name(std::move(report.text));
      metric->set_value(report.number);
      return metric->set_step(report.step);
    }
    case Report::Kind::saved: {
      wire::Save* save = message.mutable_save();
      name(save);
      save->set_name(std::move(report.text));
      save->set_value(std::move(report.value));
      return put_blobs(report.blobs, *save->mutable_blobs());
    }
    case Report::Kind::requeued:
      *message.mutable_requeued()->add_ids() = wire_name(report.id, report.rank);
      return;
    case Report::Kind::rank_address:
      name(message.mutable_rank_address_report());
      return message.mutable_rank_address_report()->set_rank_address(std::move(report.text));
    case Report::Kind::peer_failure:
      name(message.mutable_peer_failure_report());
      return message.mutable_peer_failure_report()->set_text(std::move(report.text));
    case Report::Kind::rank_progress:
      name(message.mutable_rank_progress_report());
      return message.mutable_rank_progress_report()->set_rank_progress(std::move(report.text));
    case Report::Kind::ready:
      name(message.mutable_ready());
      return message.mutable_ready()->set_url(std::move(report.text));
    case Report::Kind::finished: {
      wire::Finished* finished = message.mutable_finished();
      name(finished);
      finished->set_outcome(static_cast<uint32_t>(report.outcome));
      finished->set_value(std::move(report.value));
      put_blobs(report.blobs, *finished->mutable_blobs());
      finished->set_waited(report.waited);
      finished->set_fragment(std::move(report.fragment));
      finished->set_cause(static_cast<uint32_t>(report.failure.cause));
      finished->set_message(std::move(report.failure.message));
      finished->set_evidence(std::move(report.failure.evidence));
      finished->set_code(report.failure.code);
      finished->set_of_gang(report.of_gang);
      finished->set_signal(std::move(report.signal));
      finished->set_wait_name(std::move(report.wait_name));
      finished->set_wait_timeout_ms(report.wait_timeout_ms);
      return finished->set_duration_us(report.duration_us);
    }
  }
}

}  // namespace flow
