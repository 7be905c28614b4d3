// Orders and reports between the head's words and the wire's.
#include "engine/worker/slot.hpp"

namespace flow {

wire::AttemptName wire_name(const core::AttemptId& id) {
  wire::AttemptName name;
  name.set_run(id.run);
  name.set_unit(id.unit);
  name.set_attempt(id.attempt);
  name.set_epoch(id.epoch);
  return name;
}

core::AttemptId attempt_id(const wire::AttemptName& name) {
  return {name.run(), name.unit(), name.attempt(), name.epoch()};
}

void fill_start(const AttemptOrder& order, const std::string& scratch, wire::Start& start) {
  *start.mutable_id() = wire_name(order.id);
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
    shell.set_place(order.place);
  }
  if (order.kind != TaskKind::shell && order.stage_copy)
    start.mutable_shell()->set_stage_copy(true);
  start.set_port(order.service.port);
  start.set_batch_max(order.service.batch_max);
  start.set_batch_wait_us(order.service.batch_wait_us);
  start.set_grace_ms(order.grace_ms);
  start.set_named_args(order.named_args);
}

namespace {

void take_blobs(google::protobuf::RepeatedPtrField<wire::Blob>& blobs, Report& report) {
  for (wire::Blob& blob : blobs) {
    Digest digest;
    // Named by what it is, not by what its sender says.
    if (Digest::from_bytes(blob.digest(), digest) && sha256(blob.data()) == digest)
      report.blobs.emplace_back(digest, std::move(*blob.mutable_data()));
  }
}

}  // namespace

bool to_report(wire::FromExecutor& message, Report& report) {
  switch (message.kind_case()) {
    case wire::FromExecutor::kLog:
      report.kind = Report::Kind::log;
      report.id = attempt_id(message.log().id());
      report.stream = message.log().stream();
      report.text = std::move(*message.mutable_log()->mutable_text());
      report.at = message.log().at_ms();
      return true;
    case wire::FromExecutor::kProgress:
      report.kind = Report::Kind::progress;
      report.id = attempt_id(message.progress().id());
      report.number = message.progress().fraction();
      report.value = std::move(*message.mutable_progress()->mutable_metrics());
      return true;
    case wire::FromExecutor::kMetric:
      report.kind = Report::Kind::metric;
      report.id = attempt_id(message.metric().id());
      report.text = message.metric().name();
      report.number = message.metric().value();
      report.step = message.metric().step();
      return true;
    case wire::FromExecutor::kSave:
      report.kind = Report::Kind::saved;
      report.id = attempt_id(message.save().id());
      report.text = message.save().name();
      report.value = std::move(*message.mutable_save()->mutable_value());
      take_blobs(*message.mutable_save()->mutable_blobs(), report);
      return true;
    case wire::FromExecutor::kReady:
      report.kind = Report::Kind::ready;
      report.id = attempt_id(message.ready().id());
      report.text = message.ready().url();
      return true;
    case wire::FromExecutor::kFinished: {
      wire::Finished& finished = *message.mutable_finished();
      report.kind = Report::Kind::finished;
      report.id = attempt_id(finished.id());
      if (finished.outcome() > static_cast<uint32_t>(Report::Outcome::stopped)) return false;
      report.outcome = static_cast<Report::Outcome>(finished.outcome());
      report.value = std::move(*finished.mutable_value());
      take_blobs(*finished.mutable_blobs(), report);
      report.waited = finished.waited();
      report.fragment = std::move(*finished.mutable_fragment());
      bool known = finished.cause() <= static_cast<uint32_t>(core::Cause::dependency);
      report.failure.cause =
          known ? static_cast<core::Cause>(finished.cause()) : core::Cause::internal;
      report.failure.message = std::move(*finished.mutable_message());
      report.failure.evidence = std::move(*finished.mutable_evidence());
      report.failure.code = finished.code();
      report.signal = finished.signal();
      report.wait_name = finished.wait_name();
      report.wait_timeout_ms = finished.wait_timeout_ms();
      report.duration_us = finished.duration_us();
      return true;
    }
    default:
      return false;
  }
}

}  // namespace flow
