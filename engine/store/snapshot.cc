// The essential state to bytes and back. Derived fields are computed again after decoding.
#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <algorithm>
#include <map>

#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/retry.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/cost_parts.hpp"
#include "engine/store/journal_schema.hpp"
#include "engine/store/record_parts.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace {

enum Flag : uint32_t {
  kCached = 1,
  kResolved = 2,
  kForced = 4,
  kSatisfied = 8,
  kExpanded = 16,
  kDropped = 32,
  kGivesMissing = 64
};

constexpr uint32_t kLengthDelimited = 2;  // protobuf's wire type
constexpr size_t kLengthBytes = 5;        // of a run's length
constexpr size_t kPieceBytes = 64 << 10;

void append_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_tag(int field, std::string& out) {
  append_varint(static_cast<uint32_t>(field) << 3 | kLengthDelimited, out);
}

/// A varint of kLengthBytes bytes, also if fewer would do.
void write_length(uint64_t length, char* to) {
  FLOW_CHECK(length < uint64_t{1} << 31);  // a message's limit
  for (size_t i = 0; i + 1 < kLengthBytes; i++, length >>= 7)
    to[i] = static_cast<char>(length | 0x80);
  to[kLengthBytes - 1] = static_cast<char>(length);
}

std::string bytes_of(const Digest& digest) {
  return digest.is_zero() ? std::string() : std::string(digest.view());
}

bool digest_of(const std::string& bytes, Digest& digest) {
  return bytes.empty() || Digest::from_bytes(bytes, digest);
}

void put_unit(const core::Unit& u, journal::Unit& m) {
  m.set_node(u.node);
  m.set_instance(u.instance);
  m.set_status(static_cast<uint32_t>(u.status));
  m.set_phase(static_cast<uint32_t>(u.phase));
  m.set_branch(static_cast<uint32_t>(u.branch));
  m.set_flags((u.cached ? kCached : 0u) | (u.resolved ? kResolved : 0u) |
              (u.forced ? kForced : 0u) | (u.satisfied ? kSatisfied : 0u) |
              (u.expanded ? kExpanded : 0u) | (u.dropped ? kDropped : 0u) |
              (u.gives_missing ? kGivesMissing : 0u));
  m.set_requeues(u.requeues);
  m.set_attempts(u.attempts);
  m.set_timer_serial(u.timer_serial);
  m.set_expected_us(u.expected_us);
  m.set_epoch(u.epoch);
  m.set_worker(u.worker);
  m.set_key(bytes_of(u.key));
  m.set_result(bytes_of(u.result));
  m.set_started(u.started);
  m.set_finished(u.finished);
  if (u.phase == core::Phase::running) m.set_assigned(u.assigned);
  if (u.phase == core::Phase::ready || u.phase == core::Phase::running) m.set_ready(u.ready);
}

bool get_unit(const journal::Unit& m, core::Unit& u) {
  bool ok = m.status() <= static_cast<uint32_t>(core::UnitStatus::cancelled) &&
            m.phase() < core::kPhases &&
            m.branch() <= static_cast<uint32_t>(core::Branch::else_branch) &&
            m.requeues() <= UINT16_MAX && m.worker() < core::kWorkersMax &&
            digest_of(m.key(), u.key) && digest_of(m.result(), u.result);
  if (!ok) return false;
  u.node = m.node();
  u.instance = m.instance();
  u.status = static_cast<core::UnitStatus>(m.status());
  u.phase = static_cast<core::Phase>(m.phase());
  u.branch = static_cast<core::Branch>(m.branch());
  u.cached = (m.flags() & kCached) != 0;
  u.resolved = (m.flags() & kResolved) != 0;
  u.forced = (m.flags() & kForced) != 0;
  u.satisfied = (m.flags() & kSatisfied) != 0;
  u.expanded = (m.flags() & kExpanded) != 0;
  u.dropped = (m.flags() & kDropped) != 0;
  u.gives_missing = (m.flags() & kGivesMissing) != 0;
  u.requeues = static_cast<uint16_t>(m.requeues());
  u.attempts = m.attempts();
  u.timer_serial = m.timer_serial();
  u.expected_us = m.expected_us();
  u.epoch = m.epoch();
  u.worker = static_cast<core::WorkerId>(m.worker());
  u.started = m.started();
  u.finished = m.finished();
  u.assigned = m.assigned();
  u.ready = m.ready();
  return true;
}

void put_detail(const core::UnitDetail& e, journal::UnitDetail& m) {
  put_failure(e.failure, *m.mutable_failure());
  m.set_failures(e.failures);
  m.set_ooms(e.ooms);
  m.set_infra(e.infra);
  for (const auto& [name, wait] : e.waits) {
    journal::Wait& w = *m.add_waits();
    w.set_name(name);
    w.set_deadline(wait.first);
    w.set_expired(wait.second);
  }
  m.set_waiting_for(e.waiting_for);
  m.set_wait_name(e.wait_name);
  m.set_retry_at(e.retry_at);
  m.set_url(e.url);
  m.set_computed_by(e.computed_by == kNoNode ? 0 : e.computed_by + 1);
  for (const std::string& uuid : e.gpus) m.add_gpus(uuid);
  put_ranks(e.others, *m.mutable_others());
  m.set_share_cpus_milli(e.share.cpus_milli);
  m.set_share_memory_bytes(e.share.memory_bytes);
  m.set_is_resizing(e.is_resizing);
  m.set_grew_from(e.grew_from);
  for (const core::Death& death : e.deaths) {
    journal::Death& d = *m.add_deaths();
    d.set_worker(death.worker);
    d.set_record(death.record);
    d.set_is_gpu(death.is_gpu);
    d.set_co_located(death.co_located);
  }
  for (const core::FailedAttempt& failed : e.failed) {
    journal::FailedAttempt& f = *m.add_failed();
    f.set_attempt(failed.attempt);
    f.set_worker(failed.worker);
    f.set_cause(static_cast<uint32_t>(failed.cause));
  }
  m.set_runs_alone(e.runs_alone);
  m.set_was_ready(e.was_ready);
  m.set_ready_at(e.ready_at);
  m.set_restarts(e.restarts);
  m.set_deaths_in_row(e.deaths_in_row);
  m.set_replicas_wanted(e.replicas_wanted);
  if (e.computed) put_resources(*e.computed, *m.mutable_computed());
}

/// Returns false if a worker or a cause is out of range.
bool get_failed(const journal::UnitDetail& m, core::UnitDetail& e) {
  for (const journal::Death& d : m.deaths()) {
    if (d.worker() >= core::kWorkersMax) return false;
    e.deaths.push_back(
        {static_cast<core::WorkerId>(d.worker()), d.record(), d.is_gpu(), d.co_located()});
  }
  for (uint32_t worker : m.failed_on()) {
    if (worker >= core::kWorkersMax) return false;
    e.failed.push_back({0, static_cast<core::WorkerId>(worker), core::Cause::staging});
  }
  for (const journal::FailedAttempt& f : m.failed()) {
    if (f.worker() >= core::kWorkersMax || f.cause() > static_cast<uint32_t>(core::kCauseLast))
      return false;
    e.failed.push_back({f.attempt(), static_cast<core::WorkerId>(f.worker()),
                        static_cast<core::Cause>(f.cause())});
  }
  e.runs_alone = m.runs_alone();
  // An older flow wrote the number of deaths without the workers: each counts as a separate death.
  for (uint32_t i = 0; i < std::min(m.lost(), core::kLostMax); i++)
    e.deaths.push_back({0, 0, false, ""});
  return true;
}

bool get_detail(const journal::UnitDetail& m, core::UnitDetail& e) {
  if (!get_failure(m.failure(), e.failure)) return false;
  e.failures = m.failures();
  e.ooms = m.ooms();
  e.infra = m.infra();
  if (!get_failed(m, e)) return false;
  for (const journal::Wait& wait : m.waits())
    e.waits[wait.name()] = {wait.deadline(), wait.expired()};
  e.waiting_for = m.waiting_for();
  e.wait_name = m.wait_name();
  e.retry_at = m.retry_at();
  e.url = m.url();
  e.computed_by = m.computed_by() == 0 ? kNoNode : m.computed_by() - 1;
  e.gpus.assign(m.gpus().begin(), m.gpus().end());
  e.share = {m.share_cpus_milli(), m.share_memory_bytes()};
  e.is_resizing = m.is_resizing();
  e.grew_from = m.grew_from();
  e.was_ready = m.was_ready();
  e.ready_at = m.ready_at();
  e.restarts = m.restarts();
  e.deaths_in_row = m.deaths_in_row();
  e.replicas_wanted = m.replicas_wanted();
  if (m.has_computed()) {
    auto computed = std::make_shared<core::AttemptResources>();
    if (!get_resources(m.computed(), *computed)) return false;
    e.computed = std::move(computed);
  }
  return get_ranks(m.others(), e.others) && e.share.cpus_milli >= 0 && e.share.memory_bytes >= 0;
}

constexpr size_t kUnitBytes = 136;  // about, of a unit that ended

void put_rollover(const core::Rollover& rollover, journal::Rollover& m) {
  m.set_previous(rollover.previous);
  m.set_phase(static_cast<uint32_t>(rollover.phase));
  m.set_step(rollover.step);
  m.set_serial(rollover.serial);
  m.set_began(rollover.began);
  m.set_reason(rollover.reason);
  m.set_gate(rollover.gate == kNoNode ? 0 : rollover.gate + 1);
}

/// Returns false for an unknown phase.
bool get_rollover(const journal::Rollover& m, core::Rollover& rollover) {
  if (m.phase() > static_cast<uint32_t>(core::RolloverPhase::gated)) return false;
  rollover = {
      m.previous(), static_cast<core::RolloverPhase>(m.phase()), m.step(), m.serial(), m.began(),
      m.reason(),   m.gate() == 0 ? kNoNode : m.gate() - 1};
  return true;
}

/// All fields of a run but its units and their details.
void put_run(const core::Run& r, journal::Run& m) {
  m.set_id(r.id);
  m.set_name(r.name);
  m.set_status(static_cast<uint32_t>(r.status));
  m.set_submitted(r.submitted);
  m.set_finished(r.finished);
  m.set_plan(std::string(r.plan_digest.view()));
  for (const core::DynamicCalls& calls : r.dynamics) {
    journal::Dynamic& d = *m.add_dynamics();
    d.set_unit(calls.unit);
    d.set_fragment(std::string(calls.fragment_digest.view()));
    d.set_first_node(calls.first_node);
    d.set_first_unit(calls.first_unit);
  }
  for (const auto& [name, value] : r.signals) {
    journal::Signal& s = *m.add_signals();
    s.set_name(name);
    s.set_value(std::string(value.view()));
  }
  m.mutable_durations_us()->Add(r.durations_us.begin(), r.durations_us.end());
  for (const auto& [def, worker] : r.failed_defs) {
    journal::FailedDef& failed = *m.add_failed_defs();
    failed.set_def(def);
    failed.set_worker(worker);
  }
  for (const auto& [unit, tag] : r.tags) {
    journal::Tag& tagged = *m.add_tags();
    tagged.set_unit(unit);
    tagged.set_tag(tag);
  }
  if (r.has_result) m.set_result(std::string(r.result.view()));
  m.set_jobs(r.jobs);
  m.set_fail_fast(r.fail_fast);
  m.set_fresh(r.fresh);
  m.set_stop_requested(r.stop_requested);
  m.set_stopping(r.stopping);
  m.set_cancelling(r.cancelling);
  m.set_ending(r.ending);
  m.set_gathering(r.gathering);
  m.set_knows_traffic(r.knows_traffic);
  m.set_user(r.user);
  put_actions(r.actions, *m.mutable_actions());
  for (const auto& [unit, totals] : r.totals) {
    journal::Totals& each = *m.add_totals();
    each.set_unit(unit);
    put_totals(totals, each);
  }
  for (const auto& [unit, parts] : r.consumed) {
    for (const Consumption& part : parts) {
      journal::Consumption& each = *m.add_consumed();
      each.set_unit(unit);
      put_consumption(part, each);
    }
  }
  if (r.budget) put_budget(*r.budget, *m.mutable_budget());
  if (r.rollover != core::Rollover{}) put_rollover(r.rollover, *m.mutable_rollover());
}

/// A run as field Snapshot.runs. Its units are encoded one by one: the messages of a million units
/// would take more memory than the state itself.
class RunWriter {
 public:
  explicit RunWriter(const core::Run& run) : run_(run) {
    put_run(run, rest_);
    for (const core::Unit& unit : run.units) {
      if (!unit.detail) continue;
      auto number = static_cast<uint32_t>(details_.size() + 1);
      if (details_.try_emplace(unit.detail.get(), number).second)
        put_detail(*unit.detail, *rest_.add_details());
    }
    std::string header;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      header.clear();
      content_bytes_ += encode(unit, header);
      content_bytes_ += header.size();
    }
    content_bytes_ += rest_.ByteSizeLong();
    append_tag(journal::Snapshot::kRunsFieldNumber, header_);
    size_t length_at = header_.size();
    header_.append(kLengthBytes, '\0');
    write_length(content_bytes_, header_.data() + length_at);
  }

  size_t bytes() const { return header_.size() + content_bytes_; }

  /// Appends all pieces to `out`, and calls `flush` after each, which may clear it.
  template <typename Flush>
  void write(std::string& out, Flush&& flush) {
    out += header_;
    for (core::UnitId unit = 0; unit < run_.units.size(); unit++) {
      encode(unit, out);
      unit_.AppendToString(&out);
      flush();
    }
    rest_.AppendToString(&out);
    flush();
  }

 private:
  /// Makes `unit_`, appends its tag and its length to `out`, and returns that length.
  size_t encode(core::UnitId id, std::string& out) {
    const core::Unit& unit = run_.units[id];
    unit_.Clear();
    put_unit(unit, unit_);
    if (id < run_.times.size()) put_times(run_.times[id], unit_);
    if (unit.detail) unit_.set_detail(details_.at(unit.detail.get()));
    size_t length = unit_.ByteSizeLong();
    append_tag(journal::Run::kUnitsFieldNumber, out);
    append_varint(length, out);
    return length;
  }

  const core::Run& run_;
  journal::Run rest_;  // without units
  journal::Unit unit_;
  std::map<const core::UnitDetail*, uint32_t> details_;  // numbers, from 1
  std::string header_;
  size_t content_bytes_ = 0;
};

bool is_own(const core::Unit& unit, size_t node) { return unit.node == node && unit.instance < 0; }

/// A when has no attempts, and a unit that waits for a signal has a detail that names it.
bool fits(const core::Unit& unit, const TaskNode& node) {
  using core::Phase;
  bool computes = unit.phase == Phase::coalesced || unit.phase == Phase::sizing ||
                  unit.phase == Phase::ready || unit.phase == Phase::running ||
                  unit.phase == Phase::signal || unit.phase == Phase::backoff;
  return (!computes || node.kind != NodeKind::when) && (unit.phase != Phase::signal || unit.detail);
}

/// Each node has its own unit, and every other unit is an instance of a map or a replica. Dynamic
/// tasks have calls, and services those of their gates.
bool fits(const core::Run& run, const std::vector<const TaskNode*>& nodes) {
  size_t own = run.plan->nodes.size();
  for (size_t i = 0; i < own; i++) {
    if (!is_own(run.units[i], i)) return false;
  }
  std::vector<bool> is_call(run.units.size(), false);
  for (const core::DynamicCalls& calls : run.dynamics) {
    const core::Unit& caller = run.units[calls.unit];
    if (caller.node >= calls.first_node) return false;
    const TaskNode& node = *nodes[caller.node];
    if (node.kind == NodeKind::when) return false;
    bool is_map = node.kind == NodeKind::map && caller.instance < 0;
    TaskKind kind = run.plan->defs[node.def].kind;
    bool has_gate =
        kind == TaskKind::service && caller.instance < 0 && calls.fragment->nodes.size() == 1;
    if (!has_gate && (is_map || kind != TaskKind::dynamic)) return false;
    for (size_t i = 0; i < calls.fragment->nodes.size(); i++) {
      if (!is_own(run.units[calls.first_unit + i], calls.first_node + i)) return false;
      is_call[calls.first_unit + i] = true;
    }
  }
  for (size_t i = own; i < run.units.size(); i++) {
    const core::Unit& unit = run.units[i];
    if (is_call[i]) continue;
    const TaskNode& node = *nodes[unit.node];
    size_t count = core::instances_from_start(*run.plan, node);
    bool is_instance = unit.instance >= 0 && (node.kind == NodeKind::map || count > 0);
    if (!is_instance || (count > 0 && static_cast<size_t>(unit.instance) >= count)) return false;
  }
  return true;
}

/// Returns "" or what is wrong.
std::string get_run(const journal::Run& m, core::Run& r, const FindPlan& plan,
                    const FindFragment& fragment) {
  r.id = m.id();
  r.name = m.name();
  if (m.status() > static_cast<uint32_t>(core::RunStatus::interrupted)) return "an unknown status";
  r.status = static_cast<core::RunStatus>(m.status());
  r.submitted = m.submitted();
  r.finished = m.finished();
  if (!Digest::from_bytes(m.plan(), r.plan_digest)) return "a damaged plan digest";
  r.plan = plan(r.plan_digest);
  if (!r.plan) return "the plan " + r.plan_digest.hex() + ", which the state does not hold";
  std::vector<std::shared_ptr<const core::UnitDetail>> details;
  for (const journal::UnitDetail& detail : m.details()) {
    auto e = std::make_shared<core::UnitDetail>();
    if (!get_detail(detail, *e)) return "a damaged unit";
    details.push_back(std::move(e));
  }
  r.units.resize(static_cast<size_t>(m.units_size()));
  if (r.units.size() < r.plan->nodes.size()) return "fewer units than nodes";
  std::vector<const TaskNode*> nodes;
  for (const TaskNode& node : r.plan->nodes) nodes.push_back(&node);
  for (const journal::Dynamic& d : m.dynamics()) {
    core::DynamicCalls calls;
    calls.unit = d.unit();
    calls.first_node = d.first_node();
    calls.first_unit = d.first_unit();
    if (!Digest::from_bytes(d.fragment(), calls.fragment_digest)) return "a damaged list of calls";
    calls.fragment = fragment(calls.fragment_digest);
    if (!calls.fragment)
      return "the list of calls " + calls.fragment_digest.hex() + ", which the state does not hold";
    bool fits = calls.first_node == nodes.size() && calls.unit < r.units.size() &&
                calls.first_unit + calls.fragment->nodes.size() <= r.units.size();
    if (!fits) return "a list of calls that does not fit its run";
    for (const TaskNode& node : calls.fragment->nodes) {
      if (node.kind != NodeKind::when && node.def >= r.plan->defs.size())
        return "a call of an unknown task";
      nodes.push_back(&node);
    }
    r.dynamics.push_back(std::move(calls));
  }
  for (size_t i = 0; i < r.units.size(); i++) {
    const journal::Unit& u = m.units(static_cast<int>(i));
    if (!get_unit(u, r.units[i]) || u.node() >= nodes.size() || u.detail() > details.size())
      return "a damaged unit";
    if (u.detail() != 0) r.units[i].detail = details[u.detail() - 1];
    if (!fits(r.units[i], *nodes[u.node()])) return "a damaged unit";
    core::AttemptTimes times;
    if (!get_times(u, times)) return "a unit with a negative time";
    if (times == core::AttemptTimes{}) continue;
    r.times.resize(i + 1);
    r.times[i] = times;
  }
  if (!fits(r, nodes)) return "units that are not those of its nodes";
  for (const journal::Signal& s : m.signals()) {
    if (!Digest::from_bytes(s.value(), r.signals[s.name()])) return "a damaged signal";
  }
  r.durations_us.assign(m.durations_us().begin(), m.durations_us().end());
  if (r.durations_us.size() > r.plan->defs.size()) return "more durations than tasks";
  r.durations_us.resize(r.plan->defs.size());
  for (const journal::FailedDef& failed : m.failed_defs()) {
    if (failed.worker() > core::kWorkersMax) return "a damaged definition";
    r.failed_defs[failed.def()] = static_cast<core::WorkerId>(failed.worker());
  }
  for (const journal::Tag& tagged : m.tags()) {
    bool is_sound = tagged.unit() < static_cast<uint32_t>(m.units_size());
    if (!is_sound || !r.tags.try_emplace(tagged.unit(), tagged.tag()).second)
      return "a tag of a unit that is not there, or twice";
  }
  r.user = m.user();
  if (!get_actions(m.actions(), r.actions)) return "damaged actions";
  for (const journal::Totals& each : m.totals()) {
    bool is_sound = each.unit() < static_cast<uint32_t>(m.units_size());
    if (!is_sound || !get_totals(each, r.totals[each.unit()]))
      return "totals of a unit that is not there, or negative ones";
  }
  for (const journal::Consumption& each : m.consumed()) {
    bool is_sound = each.unit() < static_cast<uint32_t>(m.units_size());
    if (!is_sound || !get_consumption(each, r.consumed[each.unit()].emplace_back()))
      return "usage of a unit that is not there, or negative usage";
  }
  if (m.has_budget()) {
    if (!get_budget(m.budget(), r.budget.emplace())) return "a damaged budget";
    if (r.budget->longest_ms.size() != r.plan->defs.size()) return "a budget of other tasks";
  }
  r.has_result = !m.result().empty();
  if (r.has_result && !Digest::from_bytes(m.result(), r.result)) return "a damaged result digest";
  if (m.jobs() < 0) return "a negative number of jobs";
  r.jobs = m.jobs();
  r.fail_fast = m.fail_fast();
  r.fresh = m.fresh();
  r.stopping = m.stopping();
  r.stop_requested = m.stop_requested();
  r.cancelling = m.cancelling();
  r.ending = m.ending();
  r.gathering = m.gathering();
  r.knows_traffic = m.knows_traffic();
  if (!get_rollover(m.rollover(), r.rollover)) return "a rollover in an unknown phase";
  bool has_gate = r.rollover.gate == kNoNode || r.rollover.gate < r.units.size();
  return has_gate ? "" : "a rollover with a gate that is not there";
}

bool is_known(core::WorkerId at, const std::vector<std::string>& gpus,
              const std::vector<core::WorkerState>& workers) {
  if (at >= workers.size() || workers[at].is_lost()) return false;
  return std::all_of(gpus.begin(), gpus.end(), [&](const std::string& uuid) {
    return core::find_gpu(workers[at].info.gpus, uuid).has_value();
  });
}

bool runs_on_known_workers(const core::Run& run, const std::vector<core::WorkerState>& workers) {
  for (const core::Unit& unit : run.units) {
    if (unit.phase != core::Phase::running) continue;
    bool is_there = true;
    core::for_each_rank(unit, [&](core::WorkerId at, const std::vector<std::string>& gpus) {
      is_there = is_there && is_known(at, gpus, workers);
    });
    if (!is_there) return false;
  }
  return true;
}

void put_failures(const core::WorkerState& worker, journal::WorkerState& m) {
  for (const core::FailedUnit& failed : worker.failures) {
    journal::FailedUnit& f = *m.add_failures();
    f.set_run(failed.run);
    f.set_unit(failed.unit);
    f.set_def(failed.def);
  }
  m.set_aside_until(worker.aside_until);
  m.set_aside_serial(worker.aside_serial);
}

void get_failures(const journal::WorkerState& m, core::WorkerState& worker) {
  for (const journal::FailedUnit& f : m.failures())
    worker.failures.push_back({f.run(), f.unit(), f.def()});
  worker.aside_until = m.aside_until();
  worker.aside_serial = m.aside_serial();
}

bool get_machine(const journal::Snapshot& m, core::WorkerInfo& own) {
  own.cpus_milli = m.cpus_milli();
  own.memory_bytes = m.memory_bytes();
  return own.cpus_milli >= 0 && own.memory_bytes >= 0 && get_gpus(m.gpus(), own.gpus) &&
         get_quantities(m.custom_resources(), own.custom_resources);
}

bool get_workers(const journal::Snapshot& m, std::vector<core::WorkerState>& workers) {
  for (const journal::WorkerState& encoded : m.workers()) {
    core::WorkerState worker;
    worker.info = {encoded.name(), encoded.cpus_milli(), encoded.memory_bytes(), {}};
    worker.is_disconnected = encoded.is_disconnected();
    worker.is_up = !encoded.is_lost() && !encoded.is_disconnected();
    worker.is_draining = encoded.is_draining();
    worker.changed = encoded.changed();
    get_failures(encoded, worker);
    bool ok = !encoded.name().empty() && !(encoded.is_draining() && encoded.is_lost()) &&
              encoded.cpus_milli() >= 0 && encoded.memory_bytes() >= 0 &&
              get_gpus(encoded.gpus(), worker.info.gpus) &&
              get_labels(encoded.labels(), worker.info.labels) &&
              get_quantities(encoded.custom_resources(), worker.info.custom_resources) &&
              workers.size() < core::kWorkersMax;
    if (!ok) return false;
    workers.push_back(std::move(worker));
  }
  return true;
}

void put_presences(const core::State& state, journal::Snapshot& m) {
  for (const core::GpuPresence& presence : state.presences) {
    journal::GpuPresence& encoded = *m.add_presences();
    encoded.set_from(presence.from);
    encoded.set_until(presence.until);
    encoded.set_worker(presence.worker);
    for (const auto& [model, count] : presence.gpus) {
      journal::GpuCount& gpus = *encoded.add_gpus();
      gpus.set_model(model);
      gpus.set_count(count);
    }
  }
  m.set_presences_since(state.presences_since);
}

bool get_presences(const journal::Snapshot& m, core::State& state) {
  state.presences_since = m.presences_since();
  for (const journal::GpuPresence& encoded : m.presences()) {
    core::GpuPresence presence{encoded.from(), encoded.until(), encoded.worker(), {}};
    for (const journal::GpuCount& gpus : encoded.gpus())
      presence.gpus.emplace_back(gpus.model(), gpus.count());
    bool has_lasted = presence.until == 0 || presence.until > presence.from;
    bool is_sorted = std::ranges::is_sorted(presence.gpus);
    if (presence.gpus.empty() || !has_lasted || !is_sorted) return false;
    state.presences.push_back(std::move(presence));
  }
  return true;
}

std::string encode_header(const core::State& state) {
  journal::Snapshot m;
  const core::WorkerInfo& own = state.workers[0].info;
  m.set_schema(kJournalSchema);
  m.set_epoch(state.epoch);
  m.set_sequence(state.sequence);
  m.set_at(state.at);
  m.set_cpus_milli(own.cpus_milli);
  m.set_memory_bytes(own.memory_bytes);
  m.set_changed(state.workers[0].changed);
  m.set_announced(state.announced);
  bool has_failures = !state.workers[0].failures.empty() || state.workers[0].aside_serial > 0;
  if (has_failures) put_failures(state.workers[0], *m.mutable_own());
  m.set_leads_workers(state.leads_workers && own.cpus_milli > 0);
  m.set_restarts_services(state.restarts_services);
  for (const Gpu& gpu : own.gpus) put_gpu(gpu, *m.add_gpus());
  put_quantities(own.custom_resources, *m.mutable_custom_resources());
  for (size_t i = 1; i < state.workers.size(); i++) {
    const core::WorkerInfo& info = state.workers[i].info;
    journal::WorkerState& encoded = *m.add_workers();
    encoded.set_name(info.name);
    encoded.set_cpus_milli(info.cpus_milli);
    encoded.set_memory_bytes(info.memory_bytes);
    for (const Gpu& gpu : info.gpus) put_gpu(gpu, *encoded.add_gpus());
    put_labels(info.labels, *encoded.mutable_labels());
    put_quantities(info.custom_resources, *encoded.mutable_custom_resources());
    encoded.set_is_lost(state.workers[i].is_lost());
    encoded.set_is_disconnected(state.workers[i].is_disconnected);
    encoded.set_is_draining(state.workers[i].is_draining);
    encoded.set_changed(state.workers[i].changed);
    put_failures(state.workers[i], encoded);
  }
  put_presences(state, m);
  return m.SerializeAsString();
}

}  // namespace

std::string encode_snapshot(const core::State& state) {
  std::string bytes = encode_header(state);
  for (const auto& [id, run] : state.runs) {
    RunWriter writer(run);
    bytes.reserve(bytes.size() + writer.bytes() + kChecksumBytes);
    writer.write(bytes, [] {});
  }
  seal(bytes);
  return bytes;
}

uint64_t expected_snapshot_bytes(const core::State& state) {
  uint64_t bytes = 0;
  for (const auto& [id, run] : state.runs) bytes += run.units.size() * kUnitBytes;
  return bytes;
}

namespace {

/// The header of a state that has no runs, and of the workers only the names of those on which
/// `run` ran.
std::string header_for(const core::State& state, const core::Run& run) {
  core::State alone;
  size_t named = 1;
  for (const core::Unit& unit : run.units)
    core::for_each_rank(unit, [&](core::WorkerId worker, const std::vector<std::string>&) {
      named = std::max(named, size_t{worker} + 1);
    });
  for (const core::Unit& unit : run.units) {
    if (!unit.detail) continue;
    for (const core::FailedAttempt& failed : unit.detail->failed)
      named = std::max(named, size_t{failed.worker} + 1);
  }
  for (size_t i = 1; i < std::min(named, state.workers.size()); i++) {
    core::WorkerState& worker = alone.workers.emplace_back();
    worker.info.name = state.workers[i].info.name;
    worker.is_up = false;
  }
  return encode_header(alone);
}

}  // namespace

void encode_snapshot_of(const core::State& state, const core::Run& run, const TakePiece& take) {
  std::string piece = header_for(state, run);
  RunWriter writer(run);
  size_t total = piece.size() + writer.bytes() + kChecksumBytes;
  uint32_t checksum = 0;
  auto flush = [&] {
    if (piece.size() < kPieceBytes) return;
    checksum = crc32c(piece, checksum);
    take(piece, total);
    piece.clear();
  };
  writer.write(piece, flush);
  seal(piece, checksum);
  take(piece, total);
}

Result<core::State> decode_snapshot(std::string_view bytes, const FindPlan& plan,
                                    const FindFragment& fragment) {
  std::string_view content;
  if (!unseal(bytes, content)) return environment_error("a snapshot has a wrong checksum");
  google::protobuf::Arena arena;
  auto* m = google::protobuf::Arena::CreateMessage<journal::Snapshot>(&arena);
  if (!m->ParseFromArray(content.data(), static_cast<int>(content.size())))
    return environment_error("a snapshot can't be parsed");
  FLOW_TRY(check_schema(m->schema(), "snapshot"));
  core::State state;
  state.epoch = m->epoch();
  state.sequence = m->sequence();
  state.at = m->at();
  state.workers[0].changed = m->changed();
  state.announced = m->announced();
  get_failures(m->own(), state.workers[0]);
  if (!get_machine(*m, state.workers[0].info))
    return environment_error("a snapshot has a machine with a negative amount, or a damaged GPU");
  state.leads_workers = m->leads_workers() || m->cpus_milli() == 0;
  state.restarts_services = m->restarts_services();
  if (!get_workers(*m, state.workers)) return environment_error("a snapshot has a damaged worker");
  if (!get_presences(*m, state))
    return environment_error("a snapshot has a damaged time of a worker's presence");
  if (m->schema() < kPresenceSchema) core::begin_presences(state);
  for (const journal::Run& run : m->runs()) {
    auto [place, added] = state.runs.try_emplace(run.id());
    std::string problem = added ? get_run(run, place->second, plan, fragment) : "a namesake in it";
    if (problem.empty() && !runs_on_known_workers(place->second, state.workers))
      problem = "an attempt on a worker, or a GPU, that is not there";
    if (!problem.empty())
      return environment_error(fmt::format("the snapshot of the run {} has {}", run.id(), problem));
  }
  core::rebuild_derived(state);
  return state;
}

}  // namespace flow
