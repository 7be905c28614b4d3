// One message per kind of event. Strict: a record that a newer or broken writer left is an error,
// never a guess.
#include "engine/store/record_codec.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>
#include <variant>

#include "engine/store/cost_parts.hpp"
#include "engine/store/record_parts.hpp"

namespace flow {

// ---- writing
// -----------------------------------------------------------------------------------------------

namespace {

std::string bytes_of(const Digest& digest) { return std::string(digest.view()); }

void put_attempt(const core::AttemptId& id, RecordWriter& writer, journal::Attempt& m) {
  m.set_run(writer.run_index(id.run));
  m.set_unit(id.unit);
  m.set_attempt(id.attempt);
  m.set_epoch(id.epoch);
}

void put_event(const core::EngineStarted& e, RecordWriter&, journal::Record& record) {
  journal::EngineStarted& m = *record.mutable_engine_started();
  m.set_epoch(e.epoch);
  m.set_cpus_milli(e.cpus_milli);
  m.set_memory_bytes(e.memory_bytes);
  put_quantities(e.custom_resources, *m.mutable_custom_resources());
  m.set_leads_workers(e.leads_workers);
  m.set_restarts_services(e.restarts_services);
}

void put_event(const core::RunSubmitted& e, RecordWriter& writer, journal::Record& record) {
  journal::RunSubmitted& m = *record.mutable_run_submitted();
  m.set_run(writer.run_index(e.run));
  m.set_name(e.name);
  m.set_plan_digest(bytes_of(e.plan_digest));
  m.set_jobs(e.jobs);
  m.set_fail_fast(e.fail_fast);
  m.set_fresh(e.fresh);
  m.set_user(e.user);
  put_actions(e.actions, *m.mutable_actions());
}

void put_event(const core::InputsResolved& e, RecordWriter& writer, journal::Record& record) {
  journal::InputsResolved& m = *record.mutable_inputs_resolved();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_key(bytes_of(e.key));
  if (e.hit) m.set_result(bytes_of(e.result));
  if (e.fragment) m.set_fragment_digest(bytes_of(e.fragment_digest));
}

void put_event(const core::InputsFailed& e, RecordWriter& writer, journal::Record& record) {
  journal::InputsFailed& m = *record.mutable_inputs_failed();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  put_failure(e.failure, *m.mutable_failure());
}

void put_event(const core::InputsMissing& e, RecordWriter& writer, journal::Record& record) {
  journal::InputsMissing& m = *record.mutable_inputs_missing();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_why(e.why);
}

void put_event(const core::ResourcesComputed& e, RecordWriter& writer, journal::Record& record) {
  journal::ResourcesComputed& m = *record.mutable_resources_computed();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  put_resources(e.computed, *m.mutable_computed());
}

void put_event(const core::TrafficShifted& e, RecordWriter& writer, journal::Record& record) {
  journal::TrafficShifted& m = *record.mutable_traffic_shifted();
  m.set_run(writer.run_index(e.run));
  m.set_step(e.step);
  m.set_error(e.error);
}

void put_event(const core::TrafficMeasured& e, RecordWriter& writer, journal::Record& record) {
  journal::TrafficMeasured& m = *record.mutable_traffic_measured();
  m.set_run(writer.run_index(e.run));
  m.set_step(e.step);
  m.set_requests(e.requests);
  m.set_errors(e.errors);
  m.set_p50_us(e.p50_us);
  m.set_p99_us(e.p99_us);
  m.set_error(e.error);
}

void put_event(const core::ReplicasScaled& e, RecordWriter& writer, journal::Record& record) {
  journal::ReplicasScaled& m = *record.mutable_replicas_scaled();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_replicas(e.replicas);
}

void put_event(const core::GateCalled& e, RecordWriter& writer, journal::Record& record) {
  journal::GateCalled& m = *record.mutable_gate_called();
  m.set_run(writer.run_index(e.run));
  m.set_step(e.step);
  m.set_fragment_digest(bytes_of(e.fragment_digest));
}

void put_event(const core::GateAnswered& e, RecordWriter& writer, journal::Record& record) {
  journal::GateAnswered& m = *record.mutable_gate_answered();
  m.set_run(writer.run_index(e.run));
  m.set_step(e.step);
  m.set_passes(e.passes);
  m.set_why(e.why);
}

void put_event(const core::BudgetSet& e, RecordWriter& writer, journal::Record& record) {
  journal::BudgetSet& m = *record.mutable_budget_set();
  m.set_run(writer.run_index(e.run));
  put_terms(e.terms, *m.mutable_terms());
}

void put_event(const core::BudgetReached& e, RecordWriter& writer, journal::Record& record) {
  record.mutable_budget_reached()->set_run(writer.run_index(e.run));
}

void put_event(const core::MapExpanded& e, RecordWriter& writer, journal::Record& record) {
  journal::MapExpanded& m = *record.mutable_map_expanded();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_count(e.count);
  for (const std::string& tag : e.tags) m.add_tags(tag);
}

void put_event(const core::WhenResolved& e, RecordWriter& writer, journal::Record& record) {
  journal::WhenResolved& m = *record.mutable_when_resolved();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_then_branch(e.then_branch);
}

void put_event(const core::ValueGathered& e, RecordWriter& writer, journal::Record& record) {
  journal::ValueGathered& m = *record.mutable_value_gathered();
  m.set_run(writer.run_index(e.run));
  m.set_unit(e.unit);
  m.set_result(bytes_of(e.result));
}

void put_event(const core::Assigned& e, RecordWriter& writer, journal::Record& record) {
  journal::Assigned& m = *record.mutable_assigned();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_worker(e.worker);
  for (const std::string& uuid : e.gpus) m.add_gpus(uuid);
  put_ranks(e.others, *m.mutable_others());
  m.set_share_cpus_milli(e.share.cpus_milli);
  m.set_share_memory_bytes(e.share.memory_bytes);
}

void put_event(const core::AttemptRequeued& e, RecordWriter& writer, journal::Record& record) {
  put_attempt(e.id, writer, *record.mutable_attempt_requeued()->mutable_id());
}

/// Sets the field `usage` of the end of an attempt, if anything is known.
template <typename End>
void put_usage(const core::AttemptUsage& usage, End& end) {
  if (usage != core::AttemptUsage{}) put_attempt_usage(usage, *end.mutable_usage());
}

void put_event(const core::AttemptSucceeded& e, RecordWriter& writer, journal::Record& record) {
  journal::AttemptSucceeded& m = *record.mutable_attempt_succeeded();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_result(bytes_of(e.result));
  if (e.fragment) m.set_fragment_digest(bytes_of(e.fragment_digest));
  m.set_duration_us(e.duration_us);
  m.set_waited(e.waited);
  put_usage(e.usage, m);
}

void put_event(const core::AttemptFailed& e, RecordWriter& writer, journal::Record& record) {
  journal::AttemptFailed& m = *record.mutable_attempt_failed();
  put_attempt(e.id, writer, *m.mutable_id());
  put_failure(e.failure, *m.mutable_failure());
  m.set_rank(e.rank);
  m.set_worker_died(e.worker_died);
  put_usage(e.usage, m);
}

void put_event(const core::AttemptWaiting& e, RecordWriter& writer, journal::Record& record) {
  journal::AttemptWaiting& m = *record.mutable_attempt_waiting();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_signal(e.signal);
  m.set_wait_name(e.wait_name);
  m.set_deadline(e.deadline);
  put_usage(e.usage, m);
}

void put_event(const core::AttemptStopped& e, RecordWriter& writer, journal::Record& record) {
  journal::AttemptStopped& m = *record.mutable_attempt_stopped();
  put_attempt(e.id, writer, *m.mutable_id());
  put_usage(e.usage, m);
}

void put_event(const core::ServiceReady& e, RecordWriter& writer, journal::Record& record) {
  journal::ServiceReady& m = *record.mutable_service_ready();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_url(e.url);
}

void put_event(const core::StepSaved& e, RecordWriter& writer, journal::Record& record) {
  journal::StepSaved& m = *record.mutable_step_saved();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_name(e.name);
  m.set_value(bytes_of(e.value));
}

void put_event(const core::CheckpointSaved& e, RecordWriter& writer, journal::Record& record) {
  journal::CheckpointSaved& m = *record.mutable_checkpoint_saved();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_value(bytes_of(e.value));
}

void put_event(const core::SignalReceived& e, RecordWriter& writer, journal::Record& record) {
  journal::SignalReceived& m = *record.mutable_signal_received();
  m.set_run(writer.run_index(e.run));
  m.set_name(e.name);
  m.set_value(bytes_of(e.value));
  m.set_by(e.by);
}

void put_event(const core::TimerFired& e, RecordWriter& writer, journal::Record& record) {
  journal::TimerFired& m = *record.mutable_timer_fired();
  m.set_run(writer.run_index(e.run));
  m.set_serial(e.serial);
  if (e.run.empty()) {
    m.set_worker(e.unit);
  } else {
    m.set_unit(e.unit);
  }
}

void put_event(const core::CancelRequested& e, RecordWriter& writer, journal::Record& record) {
  journal::CancelRequested& m = *record.mutable_cancel_requested();
  m.set_run(writer.run_index(e.run));
  m.set_by(e.by);
}

void put_event(const core::StopRequested& e, RecordWriter& writer, journal::Record& record) {
  journal::StopRequested& m = *record.mutable_stop_requested();
  m.set_run(writer.run_index(e.run));
  m.set_by(e.by);
}

void put_event(const core::ServeEnded& e, RecordWriter& writer, journal::Record& record) {
  journal::ServeEnded& m = *record.mutable_serve_ended();
  m.set_run(writer.run_index(e.run));
  m.set_by(e.by);
}

void put_event(const core::RetryRequested& e, RecordWriter& writer, journal::Record& record) {
  journal::RetryRequested& m = *record.mutable_retry_requested();
  m.set_run(writer.run_index(e.run));
  if (e.has_unit) m.set_unit(e.unit);
  m.mutable_missing()->Add(e.lost.begin(), e.lost.end());
  m.set_by(e.by);
  m.set_is_retry(e.is_retry);
}

void put_event(const core::RunDeleted& e, RecordWriter& writer, journal::Record& record) {
  record.mutable_run_deleted()->set_run(writer.run_index(e.run));
}

void put_event(const core::GpusFound& e, RecordWriter&, journal::Record& record) {
  journal::GpusFound& m = *record.mutable_gpus_found();
  m.set_worker(e.worker);
  for (const Gpu& gpu : e.gpus) put_gpu(gpu, *m.add_gpus());
}

void put_event(const core::WorkerJoined& e, RecordWriter&, journal::Record& record) {
  journal::WorkerJoined& m = *record.mutable_worker_joined();
  m.set_name(e.worker.name);
  m.set_cpus_milli(e.worker.cpus_milli);
  m.set_memory_bytes(e.worker.memory_bytes);
  for (const Gpu& gpu : e.worker.gpus) put_gpu(gpu, *m.add_gpus());
  put_labels(e.worker.labels, *m.mutable_labels());
  put_quantities(e.worker.custom_resources, *m.mutable_custom_resources());
  for (const core::AttemptId& id : e.attempts) {
    journal::Offer& offer = *m.add_attempts();
    offer.set_run(id.run);
    offer.set_unit(id.unit);
    offer.set_attempt(id.attempt);
    offer.set_epoch(id.epoch);
  }
  m.set_is_restarted(e.is_restarted);
}

void put_event(const core::WorkerDisconnected& e, RecordWriter&, journal::Record& record) {
  journal::WorkerDisconnected& m = *record.mutable_worker_disconnected();
  m.set_worker(e.worker);
  m.set_why(e.why);
}

void put_event(const core::WorkerLost& e, RecordWriter&, journal::Record& record) {
  journal::WorkerLost& m = *record.mutable_worker_lost();
  m.set_worker(e.worker);
  m.set_why(e.why);
  m.set_has_died(e.has_died);
}

void put_event(const core::WorkerDraining& e, RecordWriter&, journal::Record& record) {
  journal::WorkerDraining& m = *record.mutable_worker_draining();
  m.set_worker(e.worker);
  m.set_why(e.why);
}

void put_event(const core::ResizeRequested& e, RecordWriter& writer, journal::Record& record) {
  journal::ResizeRequested& m = *record.mutable_resize_requested();
  put_attempt(e.id, writer, *m.mutable_id());
  m.set_ranks(e.ranks);
}

void put_event(const core::GpuFailed& e, RecordWriter&, journal::Record& record) {
  journal::GpuFailed& m = *record.mutable_gpu_failed();
  m.set_worker(e.worker);
  m.set_uuid(e.uuid);
  m.set_fault(e.fault);
  m.set_is_dead(e.is_dead);
}

void put_event(const core::WorkersAnnounced& e, RecordWriter&, journal::Record& record) {
  record.mutable_workers_announced()->set_count(e.count);
}

}  // namespace

uint32_t RecordWriter::run_index(const core::RunId& run) {
  if (run.empty()) return 0;
  if (newest_index_ != 0 && run == newest_) return newest_index_;
  auto [place, added] = indexes_.try_emplace(run, static_cast<uint32_t>(indexes_.size() + 1));
  if (added) batch_.add_runs(run);
  newest_ = run;
  newest_index_ = place->second;
  return newest_index_;
}

void RecordWriter::add(const core::Record& record) {
  journal::Record& m = *batch_.add_records();
  m.set_sequence(record.sequence);
  m.set_at(record.at);
  std::visit([&](const auto& event) { put_event(event, *this, m); }, record.event);
}

// ---- reading
// -----------------------------------------------------------------------------------------------

namespace {

/// Reads the fields of one record and keeps the first problem.
class RecordFields {
 public:
  RecordFields(const journal::Batch& batch, const FindPlan& plan, const FindFragment& fragment)
      : batch_(batch), plan_(plan), fragment_(fragment) {}

  bool is_sound() const { return problem_.empty() && missing_.empty(); }
  const std::string& problem() const { return problem_; }  // "`key` is missing"
  const std::string& missing() const { return missing_; }  // a blob that the state does not hold

  /// `problem` is for a field that is not as it should be.
  void require(bool is_right, const char* field, std::string_view problem) {
    if (!is_right && problem_.empty()) problem_ = fmt::format("`{}` {}", field, problem);
  }

  core::RunId run(uint32_t index) {
    size_t runs = static_cast<size_t>(batch_.runs_size());
    require(index > 0, "run", "is missing");
    require(index <= runs, "run", "is not one of the batch");
    if (!is_sound()) return "";
    const std::string& id = batch_.runs(static_cast<int>(index) - 1);
    require(!id.empty(), "run", "is empty");
    return id;
  }

  template <typename Message>
  core::AttemptId attempt(const Message& m) {
    require(m.has_id(), "id", "is missing");
    return {run(m.id().run()), m.id().unit(), m.id().attempt(), m.id().epoch()};
  }

  template <typename Message>
  core::Failure failure(const Message& m) {
    core::Failure failure;
    require(m.has_failure(), "failure", "is missing");
    require(get_failure(m.failure(), failure), "failure", "has an unknown cause");
    return failure;
  }

  core::AttemptUsage usage(const journal::AttemptUsage& m) {
    core::AttemptUsage usage;
    require(get_attempt_usage(m, usage), "usage", "has a negative number");
    return usage;
  }

  Digest digest(const std::string& bytes, const char* field) {
    Digest digest;
    require(!bytes.empty(), field, "is missing");
    if (!Digest::from_bytes(bytes, digest))
      require(false, field, fmt::format("has {} bytes, a digest has 32", bytes.size()));
    return digest;
  }

  /// The number, if `Narrow` holds it.
  template <typename Narrow>
  Narrow narrow(uint32_t number, const char* field) {
    bool fits = number <= std::numeric_limits<Narrow>::max();
    if (!fits) require(false, field, fmt::format("is too large: {}", number));
    return static_cast<Narrow>(number);
  }
  core::WorkerId worker(uint32_t number) { return narrow<core::WorkerId>(number, "worker"); }

  std::shared_ptr<const Plan> plan(const Digest& digest) {
    if (!is_sound()) return nullptr;
    auto plan = plan_(digest);
    if (!plan) missing_ = "the plan " + digest.hex();
    return plan;
  }

  /// Null if the event has none.
  std::shared_ptr<const PlanFragment> fragment(const std::string& bytes, Digest& digest) {
    if (bytes.empty()) return nullptr;
    digest = this->digest(bytes, "fragment_digest");
    if (!is_sound()) return nullptr;
    auto fragment = fragment_(digest);
    if (!fragment) missing_ = "the list of calls " + digest.hex();
    return fragment;
  }

  void gpus(const google::protobuf::RepeatedPtrField<journal::Gpu>& from, std::vector<Gpu>& to) {
    require(get_gpus(from, to), "gpus", "have a device that is damaged or listed twice");
  }

  void quantities(const google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& from,
                  ResourceQuantities& to) {
    require(get_quantities(from, to), "custom_resources", "have a wrong name or quantity");
  }

 private:
  const journal::Batch& batch_;
  const FindPlan& plan_;
  const FindFragment& fragment_;
  std::string problem_, missing_;
};

core::Event get_event(const journal::EngineStarted& m, RecordFields& fields) {
  core::EngineStarted e{m.epoch(), m.cpus_milli(),    m.memory_bytes(),
                        {},        m.leads_workers(), m.restarts_services()};
  fields.quantities(m.custom_resources(), e.custom_resources);
  return e;
}

core::Event get_event(const journal::RunSubmitted& m, RecordFields& fields) {
  core::RunSubmitted e;
  e.run = fields.run(m.run());
  e.name = m.name();
  e.plan_digest = fields.digest(m.plan_digest(), "plan_digest");
  e.jobs = m.jobs();
  e.fail_fast = m.fail_fast();
  e.fresh = m.fresh();
  e.user = m.user();
  fields.require(get_actions(m.actions(), e.actions), "actions", "are damaged");
  e.plan = fields.plan(e.plan_digest);
  return e;
}

core::Event get_event(const journal::BudgetSet& m, RecordFields& fields) {
  core::BudgetSet e;
  e.run = fields.run(m.run());
  fields.require(get_terms(m.terms(), e.terms), "terms", "have a wrong amount or no currency");
  return e;
}

core::Event get_event(const journal::BudgetReached& m, RecordFields& fields) {
  return core::BudgetReached{fields.run(m.run())};
}

core::Event get_event(const journal::InputsResolved& m, RecordFields& fields) {
  core::InputsResolved e;
  e.run = fields.run(m.run());
  e.unit = m.unit();
  e.key = fields.digest(m.key(), "key");
  e.hit = !m.result().empty();
  if (e.hit) e.result = fields.digest(m.result(), "result");
  e.fragment = fields.fragment(m.fragment_digest(), e.fragment_digest);
  return e;
}

core::Event get_event(const journal::InputsFailed& m, RecordFields& fields) {
  return core::InputsFailed{fields.run(m.run()), m.unit(), fields.failure(m)};
}

core::Event get_event(const journal::InputsMissing& m, RecordFields& fields) {
  return core::InputsMissing{fields.run(m.run()), m.unit(), m.why()};
}

core::Event get_event(const journal::ResourcesComputed& m, RecordFields& fields) {
  core::ResourcesComputed e{fields.run(m.run()), m.unit(), {}};
  fields.require(get_resources(m.computed(), e.computed), "computed", "has a wrong amount");
  return e;
}

core::Event get_event(const journal::TrafficShifted& m, RecordFields& fields) {
  return core::TrafficShifted{fields.run(m.run()), m.step(), m.error()};
}

core::Event get_event(const journal::TrafficMeasured& m, RecordFields& fields) {
  fields.require(m.p50_us() >= 0, "p50_us", "is negative");
  fields.require(m.p99_us() >= 0, "p99_us", "is negative");
  return core::TrafficMeasured{fields.run(m.run()), m.step(),   m.requests(), m.errors(),
                               m.p50_us(),          m.p99_us(), m.error()};
}

core::Event get_event(const journal::ReplicasScaled& m, RecordFields& fields) {
  fields.require(m.replicas() > 0, "replicas", "is missing");
  return core::ReplicasScaled{fields.run(m.run()), m.unit(), m.replicas()};
}

core::Event get_event(const journal::GateCalled& m, RecordFields& fields) {
  core::GateCalled e{fields.run(m.run()), m.step(), nullptr, {}};
  fields.require(!m.fragment_digest().empty(), "fragment_digest", "is missing");
  e.fragment = fields.fragment(m.fragment_digest(), e.fragment_digest);
  return e;
}

core::Event get_event(const journal::GateAnswered& m, RecordFields& fields) {
  return core::GateAnswered{fields.run(m.run()), m.step(), m.passes(), m.why()};
}

core::Event get_event(const journal::MapExpanded& m, RecordFields& fields) {
  return core::MapExpanded{
      fields.run(m.run()), m.unit(), m.count(), {m.tags().begin(), m.tags().end()}};
}

core::Event get_event(const journal::WhenResolved& m, RecordFields& fields) {
  return core::WhenResolved{fields.run(m.run()), m.unit(), m.then_branch()};
}

core::Event get_event(const journal::ValueGathered& m, RecordFields& fields) {
  return core::ValueGathered{fields.run(m.run()), m.unit(), fields.digest(m.result(), "result")};
}

core::Event get_event(const journal::Assigned& m, RecordFields& fields) {
  core::Assigned e{fields.attempt(m), {m.gpus().begin(), m.gpus().end()}};
  e.worker = fields.worker(m.worker());
  fields.require(get_ranks(m.others(), e.others), "others", "have an unknown worker");
  e.share = {m.share_cpus_milli(), m.share_memory_bytes()};
  return e;
}

core::Event get_event(const journal::AttemptRequeued& m, RecordFields& fields) {
  return core::AttemptRequeued{fields.attempt(m)};
}

core::Event get_event(const journal::AttemptSucceeded& m, RecordFields& fields) {
  core::AttemptSucceeded e;
  e.id = fields.attempt(m);
  e.result = fields.digest(m.result(), "result");
  e.duration_us = m.duration_us();
  e.waited = m.waited();
  e.usage = fields.usage(m.usage());
  e.fragment = fields.fragment(m.fragment_digest(), e.fragment_digest);
  return e;
}

core::Event get_event(const journal::AttemptFailed& m, RecordFields& fields) {
  return core::AttemptFailed{fields.attempt(m), fields.failure(m), m.rank(), m.worker_died(),
                             fields.usage(m.usage())};
}

core::Event get_event(const journal::AttemptWaiting& m, RecordFields& fields) {
  return core::AttemptWaiting{fields.attempt(m), m.signal(), m.wait_name(), m.deadline(),
                              fields.usage(m.usage())};
}

core::Event get_event(const journal::AttemptStopped& m, RecordFields& fields) {
  return core::AttemptStopped{fields.attempt(m), fields.usage(m.usage())};
}

core::Event get_event(const journal::ServiceReady& m, RecordFields& fields) {
  return core::ServiceReady{fields.attempt(m), m.url()};
}

core::Event get_event(const journal::StepSaved& m, RecordFields& fields) {
  return core::StepSaved{fields.attempt(m), m.name(), fields.digest(m.value(), "value")};
}

core::Event get_event(const journal::CheckpointSaved& m, RecordFields& fields) {
  return core::CheckpointSaved{fields.attempt(m), fields.digest(m.value(), "value")};
}

core::Event get_event(const journal::SignalReceived& m, RecordFields& fields) {
  return core::SignalReceived{fields.run(m.run()), m.name(), fields.digest(m.value(), "value"),
                              m.by()};
}

core::Event get_event(const journal::TimerFired& m, RecordFields& fields) {
  if (m.run() == 0) {
    fields.require(m.unit() == 0, "run", "is missing");
    return core::TimerFired{"", m.worker(), m.serial()};
  }
  fields.require(m.worker() == 0, "worker", "is set, though the timer is that of a unit");
  return core::TimerFired{fields.run(m.run()), m.unit(), m.serial()};
}

core::Event get_event(const journal::CancelRequested& m, RecordFields& fields) {
  return core::CancelRequested{fields.run(m.run()), m.by()};
}

core::Event get_event(const journal::StopRequested& m, RecordFields& fields) {
  return core::StopRequested{fields.run(m.run()), m.by()};
}

core::Event get_event(const journal::ServeEnded& m, RecordFields& fields) {
  return core::ServeEnded{fields.run(m.run()), m.by()};
}

core::Event get_event(const journal::RetryRequested& m, RecordFields& fields) {
  return core::RetryRequested{
      fields.run(m.run()), m.has_unit(), m.unit(), {m.missing().begin(), m.missing().end()}, m.by(),
      m.is_retry()};
}

core::Event get_event(const journal::RunDeleted& m, RecordFields& fields) {
  return core::RunDeleted{fields.run(m.run())};
}

core::Event get_event(const journal::GpusFound& m, RecordFields& fields) {
  core::GpusFound e{{}, fields.worker(m.worker())};
  fields.gpus(m.gpus(), e.gpus);
  return e;
}

core::Event get_event(const journal::WorkerJoined& m, RecordFields& fields) {
  core::WorkerJoined e{{m.name(), m.cpus_milli(), m.memory_bytes(), {}}};
  fields.gpus(m.gpus(), e.worker.gpus);
  fields.require(get_labels(m.labels(), e.worker.labels), "labels",
                 "have an empty or repeated name, or are too many");
  fields.quantities(m.custom_resources(), e.worker.custom_resources);
  for (const journal::Offer& offer : m.attempts())
    e.attempts.push_back({offer.run(), offer.unit(), offer.attempt(), offer.epoch()});
  e.is_restarted = m.is_restarted();
  return e;
}

core::Event get_event(const journal::WorkerDisconnected& m, RecordFields& fields) {
  return core::WorkerDisconnected{fields.worker(m.worker()), m.why()};
}

core::Event get_event(const journal::WorkerLost& m, RecordFields& fields) {
  return core::WorkerLost{fields.worker(m.worker()), m.why(), m.has_died()};
}

core::Event get_event(const journal::WorkerDraining& m, RecordFields& fields) {
  return core::WorkerDraining{fields.worker(m.worker()), m.why()};
}

core::Event get_event(const journal::ResizeRequested& m, RecordFields& fields) {
  return core::ResizeRequested{fields.attempt(m), m.ranks()};
}

core::Event get_event(const journal::GpuFailed& m, RecordFields& fields) {
  return core::GpuFailed{fields.worker(m.worker()), m.uuid(), m.fault(), m.is_dead()};
}

core::Event get_event(const journal::WorkersAnnounced& m, RecordFields&) {
  return core::WorkersAnnounced{m.count()};
}

core::Event event_of(const journal::Record& m, RecordFields& fields) {
  using journal::Record;
  switch (m.event_case()) {
    case Record::kEngineStarted:
      return get_event(m.engine_started(), fields);
    case Record::kRunSubmitted:
      return get_event(m.run_submitted(), fields);
    case Record::kInputsResolved:
      return get_event(m.inputs_resolved(), fields);
    case Record::kInputsFailed:
      return get_event(m.inputs_failed(), fields);
    case Record::kMapExpanded:
      return get_event(m.map_expanded(), fields);
    case Record::kWhenResolved:
      return get_event(m.when_resolved(), fields);
    case Record::kValueGathered:
      return get_event(m.value_gathered(), fields);
    case Record::kAssigned:
      return get_event(m.assigned(), fields);
    case Record::kAttemptRequeued:
      return get_event(m.attempt_requeued(), fields);
    case Record::kAttemptSucceeded:
      return get_event(m.attempt_succeeded(), fields);
    case Record::kAttemptFailed:
      return get_event(m.attempt_failed(), fields);
    case Record::kAttemptWaiting:
      return get_event(m.attempt_waiting(), fields);
    case Record::kAttemptStopped:
      return get_event(m.attempt_stopped(), fields);
    case Record::kServiceReady:
      return get_event(m.service_ready(), fields);
    case Record::kStepSaved:
      return get_event(m.step_saved(), fields);
    case Record::kCheckpointSaved:
      return get_event(m.checkpoint_saved(), fields);
    case Record::kSignalReceived:
      return get_event(m.signal_received(), fields);
    case Record::kTimerFired:
      return get_event(m.timer_fired(), fields);
    case Record::kCancelRequested:
      return get_event(m.cancel_requested(), fields);
    case Record::kStopRequested:
      return get_event(m.stop_requested(), fields);
    case Record::kServeEnded:
      return get_event(m.serve_ended(), fields);
    case Record::kRetryRequested:
      return get_event(m.retry_requested(), fields);
    case Record::kRunDeleted:
      return get_event(m.run_deleted(), fields);
    case Record::kGpusFound:
      return get_event(m.gpus_found(), fields);
    case Record::kWorkerJoined:
      return get_event(m.worker_joined(), fields);
    case Record::kWorkerDisconnected:
      return get_event(m.worker_disconnected(), fields);
    case Record::kWorkerLost:
      return get_event(m.worker_lost(), fields);
    case Record::kWorkerDraining:
      return get_event(m.worker_draining(), fields);
    case Record::kResizeRequested:
      return get_event(m.resize_requested(), fields);
    case Record::kGpuFailed:
      return get_event(m.gpu_failed(), fields);
    case Record::kWorkersAnnounced:
      return get_event(m.workers_announced(), fields);
    case Record::kInputsMissing:
      return get_event(m.inputs_missing(), fields);
    case Record::kResourcesComputed:
      return get_event(m.resources_computed(), fields);
    case Record::kTrafficShifted:
      return get_event(m.traffic_shifted(), fields);
    case Record::kTrafficMeasured:
      return get_event(m.traffic_measured(), fields);
    case Record::kReplicasScaled:
      return get_event(m.replicas_scaled(), fields);
    case Record::kGateCalled:
      return get_event(m.gate_called(), fields);
    case Record::kGateAnswered:
      return get_event(m.gate_answered(), fields);
    case Record::kBudgetSet:
      return get_event(m.budget_set(), fields);
    case Record::kBudgetReached:
      return get_event(m.budget_reached(), fields);
    case Record::EVENT_NOT_SET:
      break;
  }
  fields.require(false, "event", "is missing or of a kind that this program does not know");
  return {};
}

/// "AttemptFailed", or "no event".
std::string kind_of(const journal::Record& m) {
  const auto* field = journal::Record::descriptor()->FindFieldByNumber(m.event_case());
  return field == nullptr ? "no event" : field->message_type()->name();
}

}  // namespace

Status RecordReader::read(const journal::Record& m, core::Record& record) {
  RecordFields fields(batch_, plan_, fragment_);
  record.sequence = m.sequence();
  record.at = m.at();
  record.event = event_of(m, fields);
  if (!fields.missing().empty())
    return environment_error(
        fmt::format("the journal's record {} names {}, which the state does not hold", m.sequence(),
                    fields.missing()));
  std::string problem = fields.is_sound() ? event_problem(record.event) : fields.problem();
  if (problem.empty()) return {};
  return environment_error(fmt::format("the journal's record {} ({}) is damaged: {}", m.sequence(),
                                       kind_of(m), problem));
}

}  // namespace flow
