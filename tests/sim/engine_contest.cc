#include "tests/sim/engine_contest.hpp"

#include <string>
#include <utility>
#include <vector>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "tests/sim/engine_plans.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

namespace {

using core::ReadyHead;
using core::State;

/// Backfill lets some later units go before a gang after all have ended that it had to wait for:
/// those that are expected to end before the last unit such that is still running. Without
/// reservations there are hundreds.
constexpr size_t kOvertakingMax = 32;
constexpr int64_t kMiB = 1 << 20;

enum : uint32_t { kSmall, kWide, kHalf, kPair, kElastic, kDefinitions };

std::vector<TaskDef> definitions() {
  std::vector<TaskDef> defs(kDefinitions);
  const char* names[] = {"small", "wide", "half", "pair", "elastic"};
  for (uint32_t i = 0; i < kDefinitions; i++) {
    defs[i].name = names[i];
    defs[i].retry.max = kOwnFailuresMax;
    defs[i].retry.infra = 100'000;
    defs[i].retry.backoff_ms = i == kPair ? 5 : 0;
    // So that ranks do not get fewer CPUs while a worker is missing.
    defs[i].resources.memory_bytes = 500 * kMiB;
  }
  defs[kSmall].resources.memory_bytes = 300 * kMiB;
  defs[kWide].resources.ranks = 2 * kContestWorkers;
  defs[kHalf].resources.ranks = kContestWorkers + 1;
  defs[kPair].resources.ranks = 2;
  defs[kElastic].resources.ranks = 2;
  defs[kElastic].resources.ranks_max = 2 * kContestWorkers - 1;
  return defs;
}

bool fits_alone(const State& state, const ReadyHead& head) {
  const core::SchedulingClass& request = head.request;
  bool may_start =
      request.is_gang() && core::may_start(state, state.runs.at(head.run), request, 0, 0);
  if (!may_start) return false;
  uint64_t ranks = 0;
  for (const core::WorkerState& worker : state.workers) {
    if (!worker.takes_attempts() || worker.info.cpus_milli == 0) continue;
    ranks += core::ranks_that_fit(worker.info, core::all_free(worker.info), request, request.ranks);
  }
  return ranks >= request.ranks;
}

// The workers that are there decide which gang fits, so the count begins again.
bool changes_workers(const core::Event& event) {
  return std::holds_alternative<core::EngineStarted>(event) ||
         std::holds_alternative<core::WorkerJoined>(event) ||
         std::holds_alternative<core::WorkerDisconnected>(event) ||
         std::holds_alternative<core::WorkerDraining>(event) ||
         std::holds_alternative<core::WorkerLost>(event);
}

}  // namespace

std::shared_ptr<const Plan> contest_plan(Random& random) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "contest";
  plan->defs = definitions();
  auto add = [&](const std::string& name, uint32_t def) -> TaskNode& {
    TaskNode& node = plan->nodes.emplace_back();
    node.name = name;
    node.def = def;
    node.args = Value::list({Value(static_cast<int64_t>(random.next() >> 1))});
    return node;
  };
  add("first", kSmall);
  for (const char* gang : {"g1", "g2", "g3"})
    add(gang, kWide + random.below(kDefinitions - 1)).edit_detail().after = {0};
  TaskNode& crowd = add("crowd", kSmall);
  crowd.kind = NodeKind::map;
  std::vector<Value> items;
  for (uint32_t i = 24 + random.below(12); i > 0; i--) items.push_back(Value(int64_t{i}));
  crowd.edit_detail().items = Value::list(std::move(items));
  auto last = static_cast<uint32_t>(plan->nodes.size()) - 1;
  add("late", kElastic).edit_detail().after = {last};  // nothing else waits when workers come back
  std::vector<Value> parts;
  for (uint32_t node = 0; node < plan->nodes.size(); node++) parts.push_back(Value(Ref{node, {}}));
  plan->result = Value::list(std::move(parts));
  return plan;
}

core::WorkerInfo contest_worker() {
  core::WorkerInfo info;
  info.cpus_milli = 2000;
  info.memory_bytes = 1000 * kMiB;
  return info;
}

void GangFairness::on_record(const State& before, const core::Record& record) {
  if (changes_workers(record.event)) waiting_.reset();
  if (const auto* assigned = std::get_if<core::Assigned>(&record.event))
    note_assigned(before, *assigned);
}

void GangFairness::note_assigned(const State& state, const core::Assigned& event) {
  if (!waiting_) return;
  if (event.id.run == waiting_->run && event.id.unit == waiting_->unit) return waiting_.reset();
  const core::Run& run = state.runs.at(event.id.run);
  ReadyHead other{event.id.run, event.id.unit, core::resource_request(state, run, event.id.unit)};
  if (other < *waiting_) {
    ahead_.insert(event.id);
    return;
  }
  std::erase_if(ahead_, [&](const core::AttemptId& id) { return !is_running(state, id); });
  overtaken_ += ahead_.empty();
  if (overtaken_ > kOvertakingMax)
    throw BrokenPromise{"a gang that would fit is overtaken again and again: " + waiting_->run +
                        "/" + std::to_string(waiting_->unit)};
}

void GangFairness::on_batch(const State& state) {
  std::optional<ReadyHead> first;
  for (const ReadyHead& head : state.ready) {
    if (!fits_alone(state, head)) continue;
    first = head;
    break;
  }
  if (first == waiting_) return;
  waits_ += first.has_value();
  waiting_ = std::move(first);
  overtaken_ = 0;
  ahead_.clear();
  for (const auto& [id, run] : state.runs) {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++)
      if (run.units[unit].phase == core::Phase::running)
        ahead_.insert(core::current_attempt(run, unit));
  }
}

}  // namespace flow::sim
