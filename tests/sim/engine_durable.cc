#include "tests/sim/engine_durable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <variant>
#include <vector>

#include "engine/core/gangs.hpp"
#include "engine/core/scaling.hpp"
#include "engine/store/row_keys.hpp"
#include "tests/core/dump.hpp"
#include "tests/sim/engine_plans.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

namespace {

const core::AttemptId* attempt_of(const core::Event& event) {
  return std::visit(
      [](const auto& e) -> const core::AttemptId* {
        if constexpr (requires { e.id; }) {
          return &e.id;
        } else {
          return nullptr;
        }
      },
      event);
}

}  // namespace

std::string difference(const core::State& one, const core::State& other) {
  std::istringstream a(core::dump(one)), b(core::dump(other));
  std::string line_a, line_b;
  while (true) {
    bool has_a = static_cast<bool>(std::getline(a, line_a));
    bool has_b = static_cast<bool>(std::getline(b, line_b));
    if (!has_a && !has_b) return "";
    if (!has_a) line_a.clear();
    if (!has_b) line_b.clear();
    if (line_a != line_b) return "`" + line_a + "` and `" + line_b + "`";
  }
}

void Seen::add(const Seen& other) {
  remote += other.remote;
  gangs += other.gangs;
  adopted += other.adopted;
  losses += other.losses;
  drains += other.drains;
  resizes += other.resizes;
  gpu_faults += other.gpu_faults;
  dynamic_calls += other.dynamic_calls;
  replicas += other.replicas;
  grown += other.grown;
  shrunk += other.shrunk;
  restarted += other.restarted;
}

bool is_running(const core::State& state, const core::AttemptId& id) {
  auto run = state.runs.find(id.run);
  if (run == state.runs.end() || id.unit >= run->second.units.size()) return false;
  return run->second.units[id.unit].phase == core::Phase::running &&
         core::current_attempt(run->second, id.unit) == id;
}

DurableState::DurableState(Store& store, RecordObserver* observer)
    : store_(store), observer_(observer), blobs_(store, kStateDir) {}

void DurableState::add(const Batch& batch) {
  FindPlan find_plan = find_plan_in(blobs_);
  FindFragment find_fragment = find_fragment_in(blobs_);
  batches_++;
  for (const Batch::Write& write : batch.writes) {
    if (write.family == Family::snapshots && write.value) {
      auto decoded = decode_snapshot(*write.value, find_plan, find_fragment);
      if (!decoded.ok()) throw BrokenPromise{"a snapshot is damaged: " + decoded.error().message};
      take_snapshot(std::move(*decoded));
    } else if (write.family == Family::journal && write.value) {
      auto records = decode_records(*write.value, find_plan, find_fragment);
      if (!records.ok()) throw BrokenPromise{"a batch is damaged: " + records.error().message};
      for (const core::Record& record : *records) add(record);
    } else if (write.family == Family::kv && write.value && write.key.starts_with(spool_key(""))) {
      add_report(*write.value);
    }
  }
  if (observer_ != nullptr) observer_->on_batch(state_);
}

// It stands for the records of its turn, which are not in the journal.
void DurableState::take_snapshot(core::State state) {
  if (state.sequence < state_.sequence) throw BrokenPromise{"a snapshot is older than the journal"};
  state_ = std::move(state);
  check_state();
  for (const auto& [id, run] : state_.runs) {
    submitted_.insert(id);
    for (core::UnitId unit = 0; unit < run.units.size(); unit++)
      if (run.units[unit].attempts > 0)
        assigned_.emplace(core::current_attempt(run, unit), batches_);
  }
}

void DurableState::add(const core::Record& record) {
  if (record.sequence != state_.sequence + 1)
    throw BrokenPromise{"the journal has a gap, or holds a record twice"};
  check_attempt(record.event);
  if (observer_ != nullptr) observer_->on_record(state_, record);
  endings_.on_record(state_, record);
  if (const auto* scaled = std::get_if<core::ReplicasScaled>(&record.event)) {
    uint32_t before = core::replicas_in_use(state_.runs.at(scaled->run), scaled->unit);
    (scaled->replicas > before ? seen_.grown : seen_.shrunk)++;
  }
  check_budget(record.event);
  std::vector<core::Command> dropped;
  core::apply(state_, record, dropped);
  check_state();
  for (const core::AttemptId& id : endings_.check(state_)) ended_.emplace(id, batches_);
  count(record.event);
  if (const auto* submitted = std::get_if<core::RunSubmitted>(&record.event))
    submitted_.insert(submitted->run);
  if (const auto* assigned = std::get_if<core::Assigned>(&record.event)) {
    if (!assigned_.emplace(assigned->id, batches_).second)
      throw BrokenPromise{"an attempt was assigned twice: " + text_of(assigned->id)};
  }
  if (const auto* step = std::get_if<core::StepSaved>(&record.event))
    saved_.emplace(std::pair(step->id, step->name), batches_);
  if (const auto* checkpoint = std::get_if<core::CheckpointSaved>(&record.event))
    saved_.emplace(std::pair(checkpoint->id, ""), batches_);
  if (const auto* success = std::get_if<core::AttemptSucceeded>(&record.event))
    check_success(*success);
}

void DurableState::check_state() const {
  std::string wrong = core::check_invariants(state_);
  if (!wrong.empty()) throw BrokenPromise{wrong};
}

// An attempt starts only if what its run has used and its own estimate fit into the budget.
void DurableState::check_budget(const core::Event& event) {
  const auto* assigned = std::get_if<core::Assigned>(&event);
  if (assigned == nullptr) return;
  const core::Run& run = state_.runs.at(assigned->id.run);
  if (core::may_spend(state_, run, *assigned)) return;
  throw BrokenPromise{"an attempt was assigned beyond the budget of its run: " +
                      text_of(assigned->id)};
}

void DurableState::count(const core::Event& event) {
  if (const auto* assigned = std::get_if<core::Assigned>(&event)) {
    const core::Unit& unit = state_.runs.at(assigned->id.run).units[assigned->id.unit];
    seen_.remote += unit.worker > 0;
    seen_.gangs += core::workers_of(unit).size() > 1;
  } else if (const auto* joined = std::get_if<core::WorkerJoined>(&event)) {
    seen_.adopted +=
        static_cast<size_t>(std::count_if(joined->attempts.begin(), joined->attempts.end(),
                                          [this](const core::AttemptId& id) { return runs(id); }));
  } else if (const auto* success = std::get_if<core::AttemptSucceeded>(&event)) {
    seen_.dynamic_calls += success->fragment ? success->fragment->nodes.size() : 0;
  } else if (const auto* ready = std::get_if<core::ServiceReady>(&event)) {
    const core::Unit& unit = state_.runs.at(ready->id.run).units[ready->id.unit];
    seen_.replicas += unit.instance >= 0;
    seen_.restarted += unit.detail->restarts > 0;
  }
  seen_.losses += std::holds_alternative<core::WorkerLost>(event);
  seen_.drains += std::holds_alternative<core::WorkerDraining>(event);
  seen_.resizes += std::holds_alternative<core::ResizeRequested>(event);
  seen_.gpu_faults += std::holds_alternative<core::GpuFailed>(event);
}

// Before it is applied: only the attempt that runs may report.
void DurableState::check_attempt(const core::Event& event) const {
  const core::AttemptId* id = attempt_of(event);
  if (id == nullptr || std::holds_alternative<core::Assigned>(event)) return;
  if (!runs(*id))
    throw BrokenPromise{"an event of an attempt that does not run entered the journal: " +
                        text_of(*id)};
}

void DurableState::check_success(const core::AttemptSucceeded& event) {
  if (!succeeded_.insert(event.id).second)
    throw BrokenPromise{"an attempt succeeded twice: " + text_of(event.id)};
  const core::Run& run = state_.runs.at(event.id.run);
  const core::Unit& unit = run.units[event.id.unit];
  std::string expected = result_of(core::def_of(run, event.id.unit)->name, unit.key);
  if (event.result != sha256(expected))
    throw BrokenPromise{"an attempt has the result of another: " + text_of(event.id)};
}

// A spool's reports are committed in their order, and none of them twice or never.
void DurableState::add_report(std::string_view row) {
  size_t line = row.find('\n');
  uint64_t number = 0;
  std::from_chars(row.data() + line + 1, row.data() + row.size(), number);
  LastReport& last = reports_[std::string(row.substr(0, line))];
  bool is_next = last.number == 0 || number == last.number + 1;
  if (!is_next && !(last.may_skip && number > last.number))
    throw BrokenPromise{
        fmt::format("report {} of a spool is committed after report {}", number, last.number)};
  last = {number, false};
}

void DurableState::on_power_cut() {
  for (auto& [spool, last] : reports_) last.may_skip = true;
}

bool DurableState::ran(const core::AttemptId& id, uint64_t batches) const {
  auto ended = ended_.find(id);
  return runs(id) || (ended != ended_.end() && ended->second > batches);
}

void DurableState::check_start(const core::AttemptId& id, uint64_t batches) const {
  auto assigned = assigned_.find(id);
  if (assigned == assigned_.end() || assigned->second > batches)
    throw BrokenPromise{"an attempt starts that no durable record assigns: " + text_of(id)};
}

bool DurableState::has_saved(const core::AttemptId& id, const std::string& name,
                             uint64_t batches) const {
  auto saved = saved_.find({id, name});
  if (saved != saved_.end()) return saved->second <= batches;
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end()) return true;
  // Its record may be part of a snapshot: then its row tells.
  std::string task = core::unit_name(run->second, id.unit);
  const Digest& key = run->second.units[id.unit].key;
  auto row = store_.get(Family::kv, name.empty() ? checkpoint_key(id.run, task, key)
                                                 : step_prefix(id.run, task, key) + name);
  return row.ok() && row->has_value();
}

bool DurableState::has_ended(const core::RunId& run) const {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return was_submitted(run);
  return core::is_final(found->second.status);
}

const core::Unit* DurableState::unit(const core::RunId& run, const std::string& name) const {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return nullptr;
  for (core::UnitId unit = 0; unit < found->second.units.size(); unit++) {
    const core::Unit& u = found->second.units[unit];
    if (!u.dropped && core::unit_name(found->second, unit) == name) return &u;
  }
  return nullptr;
}

std::string DurableState::recovery_difference() const {
  auto recovered = recover(store_, blobs_);
  if (!recovered.ok()) return recovered.error().message;
  return difference(state_, *recovered);
}

}  // namespace flow::sim
