// Checks of values at the boundary, and the messages that records and snapshots share.
#include "engine/store/record_parts.hpp"

#include <fmt/format.h>

#include <variant>

#include "engine/core/gpu_accounting.hpp"
#include "engine/core/workers.hpp"

namespace flow {

void put_failure(const core::Failure& failure, journal::Failure& m) {
  m.set_cause(static_cast<uint32_t>(failure.cause));
  m.set_message(failure.message);
  m.set_evidence(failure.evidence);
  m.set_code(failure.code);
}

bool get_failure(const journal::Failure& m, core::Failure& failure) {
  if (m.cause() > static_cast<uint32_t>(core::kCauseLast)) return false;
  failure.cause = static_cast<core::Cause>(m.cause());
  failure.message = m.message();
  failure.evidence = m.evidence();
  failure.code = m.code();
  return true;
}

void put_gpu(const Gpu& gpu, journal::Gpu& m) {
  m.set_index(gpu.index);
  m.set_uuid(gpu.uuid);
  m.set_name(gpu.name);
  m.set_pci(gpu.pci);
  m.set_memory_bytes(gpu.memory_bytes);
  m.set_numa(gpu.numa);
  m.set_is_mig(gpu.is_mig);
  m.set_nvlink(static_cast<uint32_t>(gpu.nvlink + 1));
  m.set_fabric(gpu.fabric);
  m.set_fault(gpu.fault);
  m.set_is_dead(gpu.is_dead);
}

bool get_gpus(const google::protobuf::RepeatedPtrField<journal::Gpu>& from,
              std::vector<Gpu>& gpus) {
  for (const journal::Gpu& m : from)
    gpus.push_back({m.index(), m.uuid(), m.name(), m.pci(), m.memory_bytes(), m.numa(), m.is_mig(),
                    static_cast<int32_t>(m.nvlink() - 1), m.fabric(), m.fault(), m.is_dead()});
  return core::are_sound(gpus);
}

void put_ranks(const std::vector<core::Placement>& ranks,
               google::protobuf::RepeatedPtrField<journal::Placement>& to) {
  for (const core::Placement& rank : ranks) {
    journal::Placement& m = *to.Add();
    m.set_worker(rank.worker);
    for (const std::string& uuid : rank.gpus) m.add_gpus(uuid);
  }
}

bool get_ranks(const google::protobuf::RepeatedPtrField<journal::Placement>& from,
               std::vector<core::Placement>& ranks) {
  for (const journal::Placement& m : from) {
    if (m.worker() >= core::kWorkersMax) return false;
    ranks.push_back({static_cast<core::WorkerId>(m.worker()), {m.gpus().begin(), m.gpus().end()}});
  }
  return true;
}

void put_labels(const Labels& labels, google::protobuf::RepeatedPtrField<journal::Label>& to) {
  for (const auto& [name, value] : labels) {
    journal::Label& m = *to.Add();
    m.set_name(name);
    m.set_value(value);
  }
}

bool get_labels(const google::protobuf::RepeatedPtrField<journal::Label>& from, Labels& labels) {
  for (const journal::Label& m : from) labels.emplace_back(m.name(), m.value());
  return core::are_sound(labels);
}

void put_quantities(const ResourceQuantities& quantities,
                    google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& to) {
  for (const auto& [name, milli] : quantities) {
    journal::ResourceQuantity& m = *to.Add();
    m.set_name(name);
    m.set_milli(milli);
  }
}

bool get_quantities(const google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& from,
                    ResourceQuantities& quantities) {
  for (const journal::ResourceQuantity& m : from) quantities.emplace_back(m.name(), m.milli());
  return are_sound(quantities);
}

void put_actions(const std::vector<core::Action>& actions,
                 google::protobuf::RepeatedPtrField<journal::Action>& to) {
  for (const core::Action& action : actions) {
    journal::Action& m = *to.Add();
    m.set_kind(static_cast<uint32_t>(action.kind));
    m.set_at(action.at);
    m.set_by(action.by);
    m.set_name(action.name);
  }
}

bool get_actions(const google::protobuf::RepeatedPtrField<journal::Action>& from,
                 std::vector<core::Action>& actions) {
  if (from.size() > static_cast<int>(core::kActionsMax)) return false;
  for (const journal::Action& m : from) {
    bool is_known = m.kind() > 0 && m.kind() <= static_cast<uint32_t>(core::kActionKindLast);
    if (!is_known || m.by().empty()) return false;
    actions.push_back({static_cast<core::ActionKind>(m.kind()), m.at(), m.by(), m.name()});
  }
  return true;
}

void put_resources(const core::AttemptResources& computed, journal::AttemptResources& m) {
  const Resources& resources = computed.resources;
  m.set_attempt(computed.attempt);
  m.set_cpus_milli(resources.cpus_milli);
  m.set_memory_bytes(resources.memory_bytes);
  m.set_gpus_milli(resources.gpus_milli);
  m.set_gpu_memory_bytes(resources.gpu_memory_bytes);
  m.set_gpu_model(resources.gpu_model);
  m.set_where(resources.where);
  m.set_ranks(resources.ranks);
  m.set_ranks_max(resources.ranks_max);
  put_quantities(resources.custom_resources, *m.mutable_custom_resources());
  m.set_timeout_ms(computed.timeout_ms);
}

bool get_resources(const journal::AttemptResources& m, core::AttemptResources& computed) {
  Resources& resources = computed.resources;
  computed.attempt = m.attempt();
  resources.cpus_milli = m.cpus_milli();
  resources.memory_bytes = m.memory_bytes();
  resources.gpus_milli = m.gpus_milli();
  resources.gpu_memory_bytes = m.gpu_memory_bytes();
  resources.gpu_model = m.gpu_model();
  resources.where = m.where();
  resources.ranks = m.ranks();
  resources.ranks_max = m.ranks_max();
  computed.timeout_ms = m.timeout_ms();
  bool has_negative = m.cpus_milli() < 0 || m.memory_bytes() < 0 || m.gpus_milli() < 0 ||
                      m.gpu_memory_bytes() < 0 || m.timeout_ms() < 0;
  return get_quantities(m.custom_resources(), resources.custom_resources) && !has_negative &&
         m.ranks() > 0;
}

namespace {

/// Reads a field that is absent if it is unknown.
template <typename Number>
bool get_known(bool has_it, Number value, Number& known) {
  if (has_it) known = value;
  return !has_it || value >= 0;
}

}  // namespace

void put_attempt_usage(const core::AttemptUsage& usage, journal::AttemptUsage& m) {
  if (usage.peak_memory >= 0) m.set_peak_memory(usage.peak_memory);
  if (usage.cpu_us >= 0) m.set_cpu_us(usage.cpu_us);
  if (usage.read_bytes >= 0) m.set_read_bytes(usage.read_bytes);
  if (usage.written_bytes >= 0) m.set_written_bytes(usage.written_bytes);
  if (usage.stage_us >= 0) m.set_stage_us(usage.stage_us);
  if (usage.commit_us >= 0) m.set_commit_us(usage.commit_us);
  if (usage.gpu_used_us >= 0) m.set_gpu_used_us(usage.gpu_used_us);
  if (usage.gpu_measured_us >= 0) m.set_gpu_measured_us(usage.gpu_measured_us);
  if (usage.gpu_energy_mj >= 0) m.set_gpu_energy_mj(usage.gpu_energy_mj);
  if (usage.connect_wait_us >= 0) m.set_connect_wait_us(usage.connect_wait_us);
  if (usage.leave_wait_us >= 0) m.set_leave_wait_us(usage.leave_wait_us);
  if (usage.moved_bytes >= 0) m.set_moved_bytes(usage.moved_bytes);
}

bool get_attempt_usage(const journal::AttemptUsage& m, core::AttemptUsage& usage) {
  return get_known<int64_t>(m.has_peak_memory(), m.peak_memory(), usage.peak_memory) &&
         get_known<int64_t>(m.has_cpu_us(), m.cpu_us(), usage.cpu_us) &&
         get_known<int64_t>(m.has_read_bytes(), m.read_bytes(), usage.read_bytes) &&
         get_known<int64_t>(m.has_written_bytes(), m.written_bytes(), usage.written_bytes) &&
         get_known<int64_t>(m.has_stage_us(), m.stage_us(), usage.stage_us) &&
         get_known<int64_t>(m.has_commit_us(), m.commit_us(), usage.commit_us) &&
         get_known<int64_t>(m.has_gpu_used_us(), m.gpu_used_us(), usage.gpu_used_us) &&
         get_known<int64_t>(m.has_gpu_measured_us(), m.gpu_measured_us(), usage.gpu_measured_us) &&
         get_known<int64_t>(m.has_gpu_energy_mj(), m.gpu_energy_mj(), usage.gpu_energy_mj) &&
         get_known<int64_t>(m.has_connect_wait_us(), m.connect_wait_us(), usage.connect_wait_us) &&
         get_known<int64_t>(m.has_leave_wait_us(), m.leave_wait_us(), usage.leave_wait_us) &&
         get_known<int64_t>(m.has_moved_bytes(), m.moved_bytes(), usage.moved_bytes);
}

void put_totals(const core::AttemptTotals& totals, journal::Totals& m) {
  if (totals.peak_memory >= 0) m.set_peak_memory(totals.peak_memory);
  if (totals.read_bytes >= 0) m.set_read_bytes(totals.read_bytes);
  if (totals.written_bytes >= 0) m.set_written_bytes(totals.written_bytes);
  if (totals.gpu_s >= 0) m.set_gpu_s(totals.gpu_s);
  if (totals.gpu_used_s >= 0) m.set_gpu_used_s(totals.gpu_used_s);
  if (totals.gpu_measured_s >= 0) m.set_gpu_measured_s(totals.gpu_measured_s);
  if (totals.gpu_energy_j >= 0) m.set_gpu_energy_j(totals.gpu_energy_j);
}

bool get_totals(const journal::Totals& m, core::AttemptTotals& totals) {
  return get_known<int64_t>(m.has_peak_memory(), m.peak_memory(), totals.peak_memory) &&
         get_known<int64_t>(m.has_read_bytes(), m.read_bytes(), totals.read_bytes) &&
         get_known<int64_t>(m.has_written_bytes(), m.written_bytes(), totals.written_bytes) &&
         get_known(m.has_gpu_s(), m.gpu_s(), totals.gpu_s) &&
         get_known(m.has_gpu_used_s(), m.gpu_used_s(), totals.gpu_used_s) &&
         get_known(m.has_gpu_measured_s(), m.gpu_measured_s(), totals.gpu_measured_s) &&
         get_known(m.has_gpu_energy_j(), m.gpu_energy_j(), totals.gpu_energy_j);
}

void put_times(const core::AttemptTimes& times, journal::Unit& m) {
  if (times.queue_s >= 0) m.set_queue_s(times.queue_s);
  if (times.stage_s >= 0) m.set_stage_s(times.stage_s);
  if (times.commit_s >= 0) m.set_commit_s(times.commit_s);
  if (times.cpu_s >= 0) m.set_cpu_s(times.cpu_s);
}

bool get_times(const journal::Unit& m, core::AttemptTimes& times) {
  return get_known(m.has_queue_s(), m.queue_s(), times.queue_s) &&
         get_known(m.has_stage_s(), m.stage_s(), times.stage_s) &&
         get_known(m.has_commit_s(), m.commit_s(), times.commit_s) &&
         get_known(m.has_cpu_s(), m.cpu_s(), times.cpu_s);
}

namespace {

std::string negative(const char* field, int64_t number) {
  return number < 0 ? fmt::format("`{}` is negative: {}", field, number) : "";
}

std::string empty(const char* field, const std::string& text) {
  return text.empty() ? fmt::format("`{}` is missing", field) : "";
}

std::string beyond(const char* field, size_t number, size_t limit) {
  return number > limit ? fmt::format("`{}` is {}, the limit is {}", field, number, limit) : "";
}

std::string unknown_worker(core::WorkerId worker) {
  return beyond("worker", worker, core::kWorkersMax - 1);
}

std::string first_of(std::initializer_list<std::string> problems) {
  for (const std::string& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return "";
}

struct EventCheck {
  std::string operator()(const core::EngineStarted& e) const {
    return first_of(
        {negative("cpus_milli", e.cpus_milli), negative("memory_bytes", e.memory_bytes)});
  }
  std::string operator()(const core::RunSubmitted& e) const { return negative("jobs", e.jobs); }
  std::string operator()(const core::Assigned& e) const {
    return first_of({unknown_worker(e.worker), negative("share_cpus_milli", e.share.cpus_milli),
                     negative("share_memory_bytes", e.share.memory_bytes)});
  }
  std::string operator()(const core::InputsMissing& e) const { return empty("why", e.why); }
  std::string operator()(const core::AttemptWaiting& e) const {
    return first_of({empty("signal", e.signal), empty("wait_name", e.wait_name)});
  }
  std::string operator()(const core::ServiceReady& e) const { return empty("url", e.url); }
  std::string operator()(const core::StepSaved& e) const { return empty("name", e.name); }
  std::string operator()(const core::SignalReceived& e) const { return empty("name", e.name); }
  std::string operator()(const core::GpusFound& e) const { return unknown_worker(e.worker); }
  std::string operator()(const core::WorkerJoined& e) const {
    return first_of({empty("name", e.worker.name), negative("cpus_milli", e.worker.cpus_milli),
                     negative("memory_bytes", e.worker.memory_bytes),
                     beyond("attempts", e.attempts.size(), core::kOffersMax)});
  }
  std::string operator()(const core::WorkerDisconnected& e) const {
    return unknown_worker(e.worker);
  }
  std::string operator()(const core::WorkerLost& e) const { return unknown_worker(e.worker); }
  std::string operator()(const core::WorkerDraining& e) const { return unknown_worker(e.worker); }
  std::string operator()(const core::GpuFailed& e) const {
    return first_of({unknown_worker(e.worker), empty("uuid", e.uuid), empty("fault", e.fault)});
  }
  std::string operator()(const core::WorkersAnnounced& e) const {
    return beyond("count", e.count, core::kWorkersMax);
  }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "";
  }
};

}  // namespace

std::string event_problem(const core::Event& event) { return std::visit(EventCheck{}, event); }

}  // namespace flow
