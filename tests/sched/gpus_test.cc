// GPUs against an oracle that tries every set of devices: what fits is assigned by the rule, unless
// it is reserved for an earlier unit, and all else is rejected.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <string>

#include "engine/core/gpu_accounting.hpp"
#include "engine/sched/sched.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

using Uuids = std::vector<std::string>;

std::vector<Gpu> random_machine(sim::Random& random) {
  std::vector<Gpu> gpus;
  for (uint32_t i = 1 + random.below(4); i > 0; i--) {
    Gpu gpu;
    gpu.index = uint32_t(gpus.size());
    gpu.uuid = "GPU-" + std::to_string(gpu.index);
    gpu.name = random.one_in(2) ? "A" : "B";
    gpu.memory_bytes = 40 + 40 * random.below(3);
    gpu.is_mig = random.one_in(6);
    gpus.push_back(gpu);
  }
  return gpus;
}

TaskDef random_task(sim::Random& random) {
  TaskDef def;
  def.name = "t";
  def.priority = int32_t(random.below(3));
  Resources& asked = def.resources;
  asked.cpus_milli = 1;
  if (random.one_in(5)) return def;
  asked.gpus_milli =
      random.one_in(2) ? 1000 * int32_t(1 + random.below(3)) : 100 + int32_t(random.below(900));
  if (random.one_in(3)) asked.gpu_model = random.one_in(2) ? "A" : "B";
  if (random.one_in(2)) asked.gpu_memory_bytes = 1 + random.below(120);
  return def;
}

/// Remaining resources of each device, computed from running units.
struct Left {
  int64_t milli = 1000, memory = 0;
};
using Lefts = std::map<std::string, Left>;

const Resources& asked_by(const Run& run, UnitId unit) {
  return run.plan->defs[run.plan->nodes[run.units[unit].node].def].resources;
}

void take(Lefts& lefts, const Resources& asked, const Uuids& uuids) {
  for (const std::string& uuid : uuids) {
    lefts[uuid].milli -= std::min(asked.gpus_milli, 1000);
    lefts[uuid].memory -= asked.gpu_memory_bytes;
  }
}

Lefts lefts_of(const State& state) {
  Lefts lefts;
  for (const Gpu& gpu : state.workers[0].info.gpus) lefts[gpu.uuid] = {1000, gpu.memory_bytes};
  for (const auto& [id, run] : state.runs) {
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      const Unit& u = run.units[unit];
      if (u.status == UnitStatus::running)
        take(lefts, asked_by(run, unit), u.detail ? u.detail->gpus : Uuids{});
    }
  }
  return lefts;
}

bool may_be_on(const Resources& asked, const Gpu& gpu, const Left& left) {
  bool is_model = asked.gpu_model.empty() || asked.gpu_model == gpu.name;
  bool is_whole_enough = !gpu.is_mig || asked.gpus_milli <= 1000;
  return is_model && is_whole_enough && left.milli >= std::min(asked.gpus_milli, 1000) &&
         left.memory >= asked.gpu_memory_bytes;
}

/// Every set of devices of a small machine.
std::vector<std::vector<Gpu>> sets_of(const std::vector<Gpu>& gpus) {
  std::vector<std::vector<Gpu>> sets;
  for (uint32_t bits = 0; bits < 1u << gpus.size(); bits++) {
    std::vector<Gpu> set;
    for (size_t i = 0; i < gpus.size(); i++) {
      if ((bits >> i & 1) != 0) set.push_back(gpus[i]);
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

bool may_have(const Resources& asked, const std::vector<Gpu>& set, const Lefts& lefts) {
  size_t count = size_t(asked.gpus_milli + 999) / 1000;
  return set.size() == count && std::all_of(set.begin(), set.end(), [&](const Gpu& gpu) {
           return may_be_on(asked, gpu, lefts.at(gpu.uuid));
         });
}

/// Preferred sets have a lower price: the fullest device for a share, the smallest devices for
/// whole GPUs.
std::vector<int64_t> price(const Resources& asked, const std::vector<Gpu>& set,
                           const Lefts& lefts) {
  std::vector<std::vector<int64_t>> each;
  for (const Gpu& gpu : set) {
    const Left& left = lefts.at(gpu.uuid);
    if (asked.gpus_milli < 1000) {
      each.push_back({left.milli, left.memory, gpu.index});
    } else {
      each.push_back({gpu.memory_bytes, gpu.index});
    }
  }
  std::sort(each.begin(), each.end());
  std::vector<int64_t> all;
  for (const auto& one : each) all.insert(all.end(), one.begin(), one.end());
  return all;
}

Uuids uuids_of(const std::vector<Gpu>& set) {
  Uuids uuids;
  for (const Gpu& gpu : set) uuids.push_back(gpu.uuid);
  return uuids;
}

using AssignedDevices = std::vector<std::pair<UnitId, Uuids>>;

std::vector<UnitId> ready_in_order(const Run& run) {
  std::vector<std::pair<int32_t, UnitId>> ready;
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    if (run.units[unit].status == UnitStatus::ready)
      ready.emplace_back(-run.plan->defs[run.plan->nodes[unit].def].priority, unit);
  }
  std::sort(ready.begin(), ready.end());
  std::vector<UnitId> units;
  for (const auto& [priority, unit] : ready) units.push_back(unit);
  return units;
}

std::optional<std::vector<Gpu>> best_set(const Resources& asked, const std::vector<Gpu>& gpus,
                                         const Lefts& lefts) {
  std::optional<std::vector<Gpu>> best;
  for (const std::vector<Gpu>& set : sets_of(gpus)) {
    if (!may_have(asked, set, lefts)) continue;
    if (!best || price(asked, set, lefts) < price(asked, *best, lefts)) best = set;
  }
  return best;
}

/// Units that overtook the first waiting unit since an earlier one began, and with which resources.
using Overtakers = std::map<UnitId, AssignedDevices>;

void check_choice(const State& state, AssignedDevices given, Overtakers& overtakers) {
  const Run& run = state.runs.at("r");
  const std::vector<Gpu>& gpus = state.workers[0].info.gpus;
  Lefts lefts = lefts_of(state), all;
  for (const Gpu& gpu : gpus) all[gpu.uuid] = {1000, gpu.memory_bytes};
  std::reverse(given.begin(), given.end());
  std::optional<UnitId> first;  // among the overtaken ones
  bool has_begun = false;       // an earlier unit
  for (UnitId unit : ready_in_order(run)) {
    INFO("unit " << unit);
    const Resources& asked = asked_by(run, unit);
    auto best = best_set(asked, gpus, lefts);
    bool is_given = !given.empty() && given.back().first == unit;
    if (!first || is_given) REQUIRE(is_given == best.has_value());
    if (!is_given) {
      if (!first && has_begun) overtakers[unit].clear();
      if (!first) first = unit;
      continue;
    }
    Uuids uuids = given.back().second;
    given.pop_back();
    has_begun = true;
    if (!first) {
      CHECK(uuids == uuids_of(*best));
      take(lefts, asked, uuids);
      continue;
    }
    std::vector<Gpu> set;
    for (const Gpu& gpu : gpus)
      if (std::find(uuids.begin(), uuids.end(), gpu.uuid) != uuids.end()) set.push_back(gpu);
    CHECK(may_have(asked, set, lefts));
    take(lefts, asked, uuids);
    overtakers[*first].emplace_back(unit, uuids);
    Lefts beside = all;
    for (const auto& [other, held] : overtakers[*first]) {
      UnitStatus status = run.units[other].status;
      bool holds = status == UnitStatus::running || status == UnitStatus::ready;
      if (holds) take(beside, asked_by(run, other), held);
    }
    CHECK(best_set(asked_by(run, *first), gpus, beside).has_value());
  }
  CHECK(given.empty());
}

class Bench {
 public:
  explicit Bench(std::vector<Gpu> gpus) {
    feed(EngineStarted{1, 1000'000, 0});
    feed(GpusFound{std::move(gpus)});
  }
  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, now_++, std::move(event)}, commands_);
    REQUIRE(check_invariants(state) == "");
  }
  void submit(Plan plan) {
    RunSubmitted e;
    e.run = "r";
    e.plan = std::make_shared<const Plan>(std::move(plan));
    feed(e);
    for (UnitId unit = 0; unit < state.runs.at("r").units.size(); unit++)
      feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  }
  const Run& run() const { return state.runs.at("r"); }
  State state;

 private:
  Time now_ = 0;  // units begin at different times
  std::vector<Command> commands_;
};

Plan random_plan(sim::Random& random) {
  Plan plan;
  for (uint32_t i = 2 + random.below(8); i > 0; i--) {
    plan.defs.push_back(random_task(random));
    TaskNode node;
    node.name = "n" + std::to_string(plan.nodes.size());
    node.def = uint32_t(plan.defs.size() - 1);
    node.args = Value::list({});
    plan.nodes.push_back(std::move(node));
  }
  return plan;
}

/// For a ready unit, a set of devices is admitted exactly if it is free.
void check_admission(const State& state) {
  const Run& run = state.runs.at("r");
  Lefts lefts = lefts_of(state);
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    if (run.units[unit].status != UnitStatus::ready) continue;
    for (const std::vector<Gpu>& set : sets_of(state.workers[0].info.gpus)) {
      Assigned given{next_attempt(state, run, unit), uuids_of(set)};
      CHECK(admit(state, given) == may_have(asked_by(run, unit), set, lefts));
    }
  }
}

/// Exactly the units that can never be placed have failed at once.
void check_failed(const State& state) {
  const Run& run = state.runs.at("r");
  Lefts all;
  for (const Gpu& gpu : state.workers[0].info.gpus) all[gpu.uuid] = {1000, gpu.memory_bytes};
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    auto sets = sets_of(state.workers[0].info.gpus);
    bool may_ever = std::any_of(sets.begin(), sets.end(), [&](const std::vector<Gpu>& set) {
      return may_have(asked_by(run, unit), set, all);
    });
    CHECK((run.units[unit].status == UnitStatus::failed) == !may_ever);
  }
}

AssignedDevices given_by(const std::vector<Event>& proposals) {
  AssignedDevices given;
  for (const Event& event : proposals) {
    const auto& assigned = std::get<Assigned>(event);
    given.emplace_back(assigned.id.unit, assigned.gpus);
  }
  return given;
}

}  // namespace

TEST_CASE("GPUs are assigned and rejected as an oracle over all sets of devices does") {
  size_t on_gpus = 0, ahead = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Bench bench(random_machine(random));
    bench.submit(random_plan(random));
    check_failed(bench.state);
    Overtakers overtakers;
    for (int round = 0; round < 6 && !is_final(bench.run().status); round++) {
      std::vector<Event> proposals = schedule(bench.state, 1000);
      check_choice(bench.state, given_by(proposals), overtakers);
      check_admission(bench.state);
      for (const Event& event : proposals) {
        bench.feed(event);
        on_gpus += std::get<Assigned>(event).gpus.size();
      }
      REQUIRE(schedule(bench.state, 1000).empty());
      check_admission(bench.state);
      for (UnitId unit = 0; unit < bench.run().units.size(); unit++) {
        if (bench.run().units[unit].status != UnitStatus::running || random.one_in(3)) continue;
        bench.feed(
            AttemptSucceeded{current_attempt(bench.run(), unit), sha256("v"), nullptr, {}, 0});
      }
    }
    for (const auto& [unit, others] : overtakers) ahead += others.size();
  }
  CHECK(on_gpus > 1000);
  CHECK(ahead > 50);
}
