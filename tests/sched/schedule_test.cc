// The scheduler against a brute force without its classes: within capacity, work-conserving except
// for reservations, and no unit is overtaken by one that it would have to wait for.
#include "engine/sched/sched.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "tests/sched/shared_reasons.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

/// A state in which all submitted units are ready.
class Bench {
 public:
  Bench(int32_t cpus, int64_t memory) { feed(EngineStarted{1, cpus * 1000, memory}); }
  void submit(const RunId& id, Plan plan, int32_t jobs) {
    RunSubmitted e;
    e.run = id;
    e.plan = std::make_shared<const Plan>(std::move(plan));
    e.jobs = jobs;
    feed(e);
    for (size_t i = 0; i < asked_.size(); i++) {
      const auto* q = std::get_if<ResolveInputs>(&asked_[i]);
      if (q == nullptr) continue;
      auto [run, first, count] = *q;
      for (UnitId unit = first; unit < first + count; unit++) {
        Digest key = sha256(run + "/" + std::to_string(unit));
        feed(InputsResolved{run, unit, key, false, {}, nullptr, {}});
      }
    }
    asked_.clear();
  }
  void feed(Event event) {
    REQUIRE(admit(state, event));
    std::vector<Command> out;
    apply(state, {state.sequence + 1, now_++, std::move(event)}, out);
    asked_.insert(asked_.end(), out.begin(), out.end());
  }
  State state;

 private:
  Time now_ = 0;  // units begin at different times
  std::vector<Command> asked_;
};

TaskDef task(int32_t cpus_milli, int64_t memory, int32_t priority = 0) {
  TaskDef def;
  def.name = "t";
  def.resources.cpus_milli = cpus_milli;
  def.resources.memory_bytes = memory;
  def.priority = priority;
  return def;
}

TaskNode call(uint32_t def, size_t index) {
  TaskNode node;
  node.name = "n" + std::to_string(index);
  node.def = def;
  node.args = Value::list({Value(static_cast<int64_t>(index))});
  return node;
}

Plan random_plan(sim::Random& random) {
  Plan plan;
  for (uint32_t i = 1 + random.below(4); i > 0; i--) {
    plan.defs.push_back(task(int32_t(random.below(7)) * 500,
                             random.one_in(2) ? random.below(800) : 0, int32_t(random.below(3))));
  }
  for (uint32_t i = 1 + random.below(6); i > 0; i--) {
    TaskNode node = call(random.below(uint32_t(plan.defs.size())), plan.nodes.size());
    if (random.one_in(3)) {
      node.kind = NodeKind::map;
      node.edit_detail().limit = random.below(3);
      std::vector<Value> items;
      for (uint32_t n = 1 + random.below(4); n > 0; n--) items.push_back(Value(int64_t{n}));
      node.edit_detail().items = Value::list(std::move(items));
    }
    plan.nodes.push_back(std::move(node));
  }
  return plan;
}

/// The used resources, computed from the units.
struct UsedResources {
  int64_t cpus_milli = 0, memory = 0;
  std::map<RunId, int64_t> run_cpus_milli;
  std::map<std::pair<RunId, uint32_t>, uint32_t> instances;
};

const TaskDef& def_at(const Run& run, UnitId unit) {
  return run.plan->defs[run.plan->nodes[run.units[unit].node].def];
}

int64_t cpus_of(const State& state, const Run& run, UnitId unit) {
  int64_t cpus = std::min(def_at(run, unit).resources.cpus_milli, state.workers[0].info.cpus_milli);
  return run.jobs > 0 ? std::min<int64_t>(cpus, run.jobs * 1000) : cpus;
}

int64_t memory_of(const State& state, const Run& run, UnitId unit) {
  return std::min(def_at(run, unit).resources.memory_bytes, state.workers[0].info.memory_bytes);
}

/// Whether its map permits one more instance.
bool is_let(const Run& run, UnitId unit, const UsedResources& taken) {
  const TaskNode& node = run.plan->nodes[run.units[unit].node];
  auto count = taken.instances.find({run.id, run.units[unit].node});
  uint32_t running = count == taken.instances.end() ? 0 : count->second;
  return node.kind != NodeKind::map || node.detail().limit == 0 || running < node.detail().limit;
}

bool fits(const State& state, const Run& run, UnitId unit, const UsedResources& taken) {
  int64_t cpus = cpus_of(state, run, unit);
  int64_t memory = memory_of(state, run, unit);
  if (taken.memory + memory > state.workers[0].info.memory_bytes) return false;
  auto of_run = taken.run_cpus_milli.find(run.id);
  int64_t run_cpus = of_run == taken.run_cpus_milli.end() ? 0 : of_run->second;
  if (cpus > 0 && run.jobs > 0 && run_cpus + cpus > run.jobs * 1000) return false;
  return cpus == 0 || taken.cpus_milli + cpus <= state.workers[0].info.cpus_milli;
}

void add(const State& state, const Run& run, UnitId unit, UsedResources& taken) {
  taken.cpus_milli += cpus_of(state, run, unit);
  taken.memory += memory_of(state, run, unit);
  taken.run_cpus_milli[run.id] += cpus_of(state, run, unit);
  taken.instances[{run.id, run.units[unit].node}]++;
}

using Name = std::pair<RunId, UnitId>;

std::vector<Name> chosen_by(const std::vector<Event>& proposals) {
  std::vector<Name> chosen;
  for (const Event& event : proposals) {
    const AttemptId& id = std::get<Assigned>(event).id;
    chosen.emplace_back(id.run, id.unit);
  }
  return chosen;
}

/// Units that overtook the first waiting unit since an earlier one began: it waits for that one and
/// for all that ran then.
using Overtakers = std::map<Name, std::vector<Name>>;

/// The overtaken unit fits into what they would leave if nothing else ran.
bool would_leave_enough(const State& state, const Name& name, const std::vector<Name>& overtakers) {
  UsedResources taken;
  for (const auto& [id, unit] : overtakers) {
    const Run& run = state.runs.at(id);
    UnitStatus status = run.units[unit].status;
    if (status == UnitStatus::running || status == UnitStatus::ready) add(state, run, unit, taken);
  }
  return fits(state, state.runs.at(name.first), name.second, taken);
}

void check_choice(const State& state, std::vector<Name> chosen, Overtakers& overtakers) {
  UsedResources taken;
  std::vector<std::tuple<int32_t, RunId, UnitId>> ready;
  for (const auto& [id, run] : state.runs) {
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].status == UnitStatus::running) add(state, run, unit, taken);
      if (run.units[unit].status == UnitStatus::ready) {
        ready.emplace_back(-def_at(run, unit).priority, id, unit);
      }
    }
  }
  std::sort(ready.begin(), ready.end());
  std::reverse(chosen.begin(), chosen.end());
  std::optional<Name> first;  // among the overtaken ones
  bool has_begun = false;     // an earlier unit
  for (const auto& [priority, id, unit] : ready) {
    const Run& run = state.runs.at(id);
    Name name(id, unit);
    INFO("unit " << unit << " of " << id);
    bool may_start = is_let(run, unit, taken) && fits(state, run, unit, taken);
    bool is_chosen = !chosen.empty() && chosen.back() == name;
    if (!first || is_chosen) CHECK(is_chosen == may_start);
    if (!is_chosen) {
      if (first || !is_let(run, unit, taken)) continue;
      first = name;
      if (has_begun) overtakers[name].clear();
      continue;
    }
    chosen.pop_back();
    add(state, run, unit, taken);
    has_begun = true;
    if (!first) continue;
    overtakers[*first].push_back(name);
    CHECK(would_leave_enough(state, *first, overtakers[*first]));
  }
  CHECK(chosen.empty());
}

}  // namespace

TEST_CASE(
    "units that fit start in order, and a waiting unit is overtaken only outside of its "
    "reservation") {
  size_t ahead = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Bench bench(1 + int32_t(random.below(4)), 1000);
    for (uint32_t i = 1 + random.below(3); i > 0; i--) {
      bench.submit("run" + std::to_string(i), random_plan(random), int32_t(random.below(4)));
    }
    Overtakers overtakers;
    for (int round = 0; round < 8; round++) {
      check_shared_reasons(bench.state);
      std::vector<Event> proposals = schedule(bench.state, 1000);
      check_choice(bench.state, chosen_by(proposals), overtakers);
      size_t few = random.below(3);
      std::vector<Event> first = schedule(bench.state, few);
      REQUIRE(first.size() == std::min(few, proposals.size()));
      for (const Event& event : proposals) bench.feed(event);
      REQUIRE(check_invariants(bench.state) == "");
      REQUIRE(schedule(bench.state, 1000).empty());
      check_shared_reasons(bench.state);
      for (const auto& [id, run] : bench.state.runs) {
        for (UnitId unit = 0; unit < run.units.size(); unit++) {
          bool ends = run.units[unit].phase == Phase::running && random.one_in(2);
          if (ends)
            bench.feed(AttemptSucceeded{current_attempt(run, unit), sha256("v"), nullptr, {}, 0});
        }
      }
    }
    for (const auto& [name, others] : overtakers) ahead += others.size();
  }
  CHECK(ahead > 100);
}

TEST_CASE("an invalid assignment is rejected regardless of its proposer") {
  Bench bench(1, 100);
  Plan plan;
  plan.defs = {task(1000, 0)};
  plan.nodes = {call(0, 0), call(0, 1)};
  bench.submit("r", plan, 0);
  AttemptId second = next_attempt(bench.state, bench.state.runs.at("r"), 1);
  bench.feed(Assigned{next_attempt(bench.state, bench.state.runs.at("r"), 0)});
  CHECK_FALSE(admit(bench.state, Assigned{second}));
}

TEST_CASE(
    "tasks known to be short are assigned ahead, up to 20 ms of work per slot and 256 tasks") {
  auto assigned_ahead = [](int64_t duration_us, int32_t cpus) {
    Bench bench(cpus, 0);
    Plan plan;
    plan.defs = {task(1000, 0)};
    for (size_t i = 0; i < 1000; i++) plan.nodes.push_back(call(0, i));
    bench.submit("r", plan, 0);
    Event first = schedule(bench.state, 1).at(0);
    bench.feed(first);
    bench.feed(
        AttemptSucceeded{std::get<Assigned>(first).id, sha256("v"), nullptr, {}, duration_us});
    std::vector<Event> proposals = schedule(bench.state, 1000);
    for (const Event& event : proposals) bench.feed(event);
    CHECK(check_invariants(bench.state) == "");
    return proposals.size();
  };
  CHECK(assigned_ahead(5'000, 2) == 2);  // not short
  CHECK(assigned_ahead(4'999, 2) == 8);
  CHECK(assigned_ahead(1'000, 1) == 20);
  CHECK(assigned_ahead(1'000, 2) == 40);
  CHECK(assigned_ahead(1, 2) == 2 + 256);
}

TEST_CASE("no tasks are queued behind a long one") {
  Bench bench(2, 0);
  Plan plan;
  plan.defs = {task(1000, 0), task(1500, 0, 9)};
  plan.nodes = {call(0, 0), call(1, 1)};
  for (size_t i = 2; i < 100; i++) plan.nodes.push_back(call(0, i));
  bench.submit("r", plan, 0);
  const Run& run = bench.state.runs.at("r");
  AttemptId id = next_attempt(bench.state, run, 0);
  bench.feed(Assigned{id});
  bench.feed(AttemptSucceeded{id, sha256("v"), nullptr, {}, 100});
  bench.feed(Assigned{next_attempt(bench.state, run, 1)});
  CHECK(schedule(bench.state, 1000).empty());
}

TEST_CASE("only a bounded part of a queue that cannot start is examined") {
  auto finds_the_small_one_behind = [](int32_t blocked_classes) {
    Bench bench(1, 1000);
    Plan plan;
    plan.defs = {task(0, 500, 100)};
    plan.nodes = {call(0, 0)};
    for (int32_t i = 0; i < blocked_classes; i++) {
      plan.defs.push_back(task(1000, 501 + i, 50));
      for (int n = 0; n < 3; n++)
        plan.nodes.push_back(call(uint32_t(plan.defs.size() - 1), plan.nodes.size()));
    }
    plan.defs.push_back(task(0, 1));  // it blocks no other unit
    plan.nodes.push_back(call(uint32_t(plan.defs.size() - 1), plan.nodes.size()));
    bench.submit("r", plan, 0);
    bench.feed(schedule(bench.state, 1).at(0));
    return schedule(bench.state, 10).size() == 1;
  };
  CHECK(finds_the_small_one_behind(1));
  CHECK(finds_the_small_one_behind(63));
  CHECK_FALSE(finds_the_small_one_behind(64));
}
