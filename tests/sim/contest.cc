// Gangs that compete for a few workers with each other and with small tasks, and what each may
// count on: one that would fit if nothing ran is not overtaken for ever.
#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "tests/sim/simulation.hpp"

namespace flow::sim {

using namespace core;

namespace {

/// Later units that may still go before a gang once all have ended that it had to wait for, while
/// the same workers are there: those that are expected to end before the last such that go on.
/// Without any room kept for it there are hundreds.
constexpr size_t kOvertakingMax = 32;

/// Whether it waits for nothing but what others hold.
bool fits_alone(const State& state, const ReadyHead& head) {
  const SchedulingClass& request = head.request;
  if (!request.is_gang() || !may_start(state, state.runs.at(head.run), request, 0, 0)) return false;
  uint64_t ranks = 0;
  for (const WorkerState& worker : state.workers) {
    bool may_run = worker.takes_attempts() && worker.info.cpus_milli > 0;
    if (may_run)
      ranks += ranks_that_fit(worker.info, all_free(worker.info), request, request.ranks);
  }
  return ranks >= request.ranks;
}

enum : uint32_t { kSmall, kWide, kHalf, kPair, kElastic, kDefs };

std::vector<TaskDef> contestants() {
  std::vector<TaskDef> defs(kDefs);
  const char* names[] = {"small", "wide", "half", "pair", "elastic"};
  for (uint32_t i = 0; i < kDefs; i++) {
    defs[i].name = names[i];
    defs[i].retry.max = kOwnFailuresMax;
    defs[i].retry.infra = 100'000;
    defs[i].retry.backoff_ms = i == kPair ? 5 : 0;
    defs[i].resources.cpus_milli = 1000;
    defs[i].resources.memory_bytes = 500;  // so that CPUs are not shared where a worker is missing
  }
  defs[kSmall].resources.memory_bytes = 300;
  defs[kWide].resources.ranks = 2 * kContestants;
  defs[kHalf].resources.ranks = kContestants + 1;
  defs[kPair].resources.ranks = 2;
  defs[kElastic].resources.ranks = 2;
  defs[kElastic].resources.ranks_max = 2 * kContestants - 1;
  return defs;
}

}  // namespace

std::shared_ptr<const Plan> contest_plan(uint64_t seed) {
  Random random(seed);
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "contest";
  plan->defs = contestants();
  auto add = [&](const std::string& name, uint32_t def) -> TaskNode& {
    TaskNode& node = plan->nodes.emplace_back();
    node.name = name;
    node.def = def;
    node.args = Value::list({Value(int64_t(random.next() >> 1))});
    return node;
  };
  add("first", kSmall);
  for (const char* gang : {"g1", "g2", "g3"})
    add(gang, kWide + random.below(kDefs - 1)).after = {0};
  TaskNode& crowd = add("crowd", kSmall);
  crowd.kind = NodeKind::map;
  std::vector<Value> items;
  for (uint32_t i = 24 + random.below(12); i > 0; i--) items.push_back(Value(int64_t{i}));
  crowd.items = Value::list(std::move(items));
  uint32_t last = uint32_t(plan->nodes.size()) - 1;
  add("late", kElastic).after = {last};  // nobody waits any more when workers come back
  std::vector<Value> parts;
  for (uint32_t node = 0; node < plan->nodes.size(); node++) parts.push_back(Value(Ref{node, {}}));
  plan->result = Value::list(std::move(parts));
  return plan;
}

void Simulation::bring_workers() {
  for (uint32_t i = 1; i <= kContestants; i++) {
    std::string name = "w" + std::to_string(i);
    workers_[name].info = {name, 2000, 1000, {}};
    returns_.emplace(now_ + i, name);
  }
}

// Whose turn it is may change with the workers that are there: then it is counted anew.
void Simulation::watch_gangs() {
  std::optional<ReadyHead> first;
  for (const ReadyHead& head : state_.ready) {
    if (!fits_alone(state_, head)) continue;
    first = head;
    break;
  }
  if (first == waiting_) return;
  waits_ += first.has_value();
  waiting_ = std::move(first);
  overtaken_ = 0;
  before_.clear();
  for (const auto& [id, run] : state_.runs) {
    for (UnitId unit = 0; unit < run.units.size(); unit++)
      if (run.units[unit].phase == Phase::running) before_.insert(current_attempt(run, unit));
  }
}

// Who ran before it, or comes before it in order, it has to wait for, and meanwhile others may go.
void Simulation::note_overtaking(const Assigned& event) {
  if (!waiting_ || (event.id.run == waiting_->run && event.id.unit == waiting_->unit)) return;
  const Run& run = state_.runs.at(event.id.run);
  ReadyHead other{event.id.run, event.id.unit, resource_request(state_, run, event.id.unit)};
  if (other < *waiting_) {
    before_.insert(event.id);
    return;
  }
  std::erase_if(before_, [&](const AttemptId& id) { return !is_current(state_, id); });
  overtaken_ += before_.empty();
  if (overtaken_ > kOvertakingMax) broken("a gang that would fit is overtaken again and again");
}

}  // namespace flow::sim
