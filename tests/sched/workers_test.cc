// Small random clusters against an oracle that counts units: units that fit are admitted, all
// others are rejected, and no unit that fits waits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "engine/sched/sched.hpp"
#include "tests/sched/shared_reasons.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr const char* kWheres[] = {"rack == a", "rack != a", "ssd or rack == b"};

bool has_labels(const WorkerInfo& worker, const std::string& where) {
  auto has = [&](const char* name, const char* value) {
    return std::find(worker.labels.begin(), worker.labels.end(),
                     std::pair<std::string, std::string>(name, value)) != worker.labels.end();
  };
  if (where == kWheres[0]) return has("rack", "a");
  if (where == kWheres[1]) return !has("rack", "a");
  return where.empty() || has("ssd", "") || has("rack", "b");
}

WorkerInfo random_worker(sim::Random& random, const std::string& name) {
  WorkerInfo worker{name, int32_t(random.below(9)) * 500, 200 * random.below(6), {}};
  for (uint32_t i = random.below(3); i > 0; i--) {
    Gpu gpu;
    gpu.index = uint32_t(worker.gpus.size());
    gpu.uuid = "GPU-" + std::to_string(gpu.index);  // with the index that another worker may use
    gpu.name = random.one_in(2) ? "A" : "B";
    gpu.memory_bytes = 80;
    worker.gpus.push_back(gpu);
  }
  if (random.one_in(2)) worker.labels.emplace_back("rack", random.one_in(2) ? "a" : "b");
  if (random.one_in(3)) worker.labels.emplace_back("ssd", "");
  if (random.one_in(2)) worker.custom_resources.emplace_back("fpga", 1000 * (1 + random.below(3)));
  if (random.one_in(3)) worker.custom_resources.emplace_back("licence", 500);
  return worker;
}

Plan random_plan(sim::Random& random) {
  Plan plan;
  for (uint32_t i = 2 + random.below(10); i > 0; i--) {
    TaskDef def;
    def.name = "t";
    def.retry.infra = 1000;
    Resources& asked = def.resources;
    asked.cpus_milli = int32_t(random.below(5)) * 500;
    asked.memory_bytes = random.one_in(2) ? random.below(900) : 0;
    if (random.one_in(3)) asked.gpus_milli = random.one_in(2) ? 1000 : 400;
    if (asked.gpus_milli > 0 && random.one_in(3)) asked.gpu_model = "A";
    if (random.one_in(4)) asked.where = kWheres[random.below(std::size(kWheres))];
    if (random.one_in(4)) asked.custom_resources.emplace_back("fpga", 500 * (1 + random.below(4)));
    if (random.one_in(6)) asked.custom_resources.emplace_back("licence", 200);
    TaskNode node;
    node.name = "n" + std::to_string(plan.nodes.size());
    node.def = uint32_t(plan.defs.size());
    node.args = Value::list({});
    plan.defs.push_back(def);
    plan.nodes.push_back(std::move(node));
  }
  return plan;
}

/// Remaining resources of a worker, computed from its units.
struct Left {
  int64_t cpus = 0, memory = 0;
  std::map<std::string, int64_t> gpus, custom_resources;
};

/// A unit that requests a CPU does not run on a worker without CPUs.
bool may_run(const WorkerState& worker, const Resources& asked) {
  if (worker.is_lost() || (asked.cpus_milli > 0 && worker.info.cpus_milli == 0)) return false;
  if (!has_labels(worker.info, asked.where)) return false;
  for (const auto& [name, milli] : asked.custom_resources) {
    bool has =
        std::any_of(worker.info.custom_resources.begin(), worker.info.custom_resources.end(),
                    [&](const auto& each) { return each.first == name && each.second >= milli; });
    if (!has) return false;
  }
  return asked.gpus_milli == 0 ||
         std::any_of(worker.info.gpus.begin(), worker.info.gpus.end(), [&](const Gpu& gpu) {
           return asked.gpu_model.empty() || asked.gpu_model == gpu.name;
         });
}

/// Requested memory is clamped to the largest worker that has the GPU; CPUs, to those of workers
/// that have the memory too. Disconnected workers count.
Resources clamped(const State& state, Resources asked) {
  int32_t cpus = 0;
  int64_t memory = 0;
  for (const WorkerState& worker : state.workers)
    if (may_run(worker, asked)) memory = std::max(memory, worker.info.memory_bytes);
  asked.memory_bytes = std::min(asked.memory_bytes, memory);
  for (const WorkerState& worker : state.workers) {
    if (may_run(worker, asked) && worker.info.memory_bytes >= asked.memory_bytes)
      cpus = std::max(cpus, worker.info.cpus_milli);
  }
  asked.cpus_milli = std::min(asked.cpus_milli, cpus);
  return asked;
}

/// Recorded at assignment, because the largest worker may change.
struct PlacedUnit {
  WorkerId worker = 0;
  Resources asked;
  std::vector<std::string> gpus;
};

class World {
 public:
  explicit World(sim::Random& random) : random_(random) {
    feed(EngineStarted{1, int32_t(1 + random.below(8)) * 500, 200 * random.below(6)});
    // Enough for every unit that requests a GPU to be admitted.
    WorkerInfo all = random_worker(random, "all");
    all.gpus = {{0, "GPU-0", "A", "", 80, -1, false}};
    all.labels = {{"rack", "a"}, {"ssd", ""}};
    all.custom_resources = {{"fpga", 2000}, {"licence", 500}};
    feed(WorkerJoined{all});
    for (uint32_t i = random.below(4); i > 0; i--) join();
    RunSubmitted e;
    e.run = "r";
    e.plan = std::make_shared<const Plan>(random_plan(random));
    feed(e);
    for (UnitId unit = 0; unit < run().units.size(); unit++)
      feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  }

  void feed(Event event) {
    REQUIRE(admit(state, event));
    if (const auto* given = std::get_if<Assigned>(&event)) {
      placed_units_[given->id.unit] = {given->worker, clamped(state, asked_by(given->id.unit)),
                                       given->gpus};
    }
    apply(state, {state.sequence + 1, 0, std::move(event)}, commands_);
    REQUIRE(check_invariants(state) == "");
  }
  void join() { feed(WorkerJoined{random_worker(random_, "w" + std::to_string(joined_++))}); }

  const Run& run() const { return state.runs.at("r"); }
  const Resources& asked_by(UnitId unit) const {
    return run().plan->defs[run().plan->nodes[run().units[unit].node].def].resources;
  }

  Left left_of(WorkerId worker) const {
    const WorkerInfo& info = state.workers[worker].info;
    Left left{info.cpus_milli, info.memory_bytes, {}, {}};
    for (const auto& [name, milli] : info.custom_resources) left.custom_resources[name] = milli;
    for (const Gpu& gpu : info.gpus) left.gpus[gpu.uuid] = 1000;
    for (const auto& [unit, given] : placed_units_) {
      if (given.worker != worker || run().units[unit].phase != Phase::running) continue;
      left.cpus -= given.asked.cpus_milli;
      left.memory -= given.asked.memory_bytes;
      for (const std::string& uuid : given.gpus) left.gpus[uuid] -= given.asked.gpus_milli;
      for (const auto& [name, milli] : given.asked.custom_resources)
        left.custom_resources[name] -= milli;
    }
    return left;
  }

  /// The devices that the unit may use on that worker: "" if it needs none.
  std::vector<std::string> may_be_at(UnitId unit, WorkerId worker) const {
    const WorkerState& at = state.workers[worker];
    Left left = left_of(worker);
    Resources asked = clamped(state, asked_by(unit));
    bool fits = at.is_up && may_run(at, asked_by(unit)) && asked.cpus_milli <= left.cpus &&
                asked.memory_bytes <= left.memory &&
                std::all_of(asked.custom_resources.begin(), asked.custom_resources.end(),
                            [&](const auto& each) {
                              return left.custom_resources[each.first] >= each.second;
                            });
    if (!fits) return {};
    if (asked.gpus_milli == 0) return {""};
    std::vector<std::string> devices;
    for (const Gpu& gpu : at.info.gpus) {
      bool is_model = asked.gpu_model.empty() || asked.gpu_model == gpu.name;
      if (is_model && left.gpus[gpu.uuid] >= asked.gpus_milli) devices.push_back(gpu.uuid);
    }
    return devices;
  }

  void check_admission() const {
    for (UnitId unit = 0; unit < run().units.size(); unit++) {
      if (run().units[unit].phase != Phase::ready) continue;
      for (size_t worker = 0; worker < state.workers.size(); worker++) {
        std::vector<std::string> may = may_be_at(unit, WorkerId(worker));
        for (const char* device : {"", "GPU-0", "GPU-1", "GPU-2"}) {
          std::vector<std::string> gpus;
          if (*device != '\0') gpus.push_back(device);
          bool is_right = std::find(may.begin(), may.end(), device) != may.end();
          INFO("unit " << unit << " at " << worker << " on " << device);
          CHECK(admit(state, Assigned{next_attempt(state, run(), unit), gpus, WorkerId(worker)}) ==
                is_right);
        }
      }
    }
  }

  /// If nothing blocks them, all units that could ever start have started.
  void check_nobody_is_stuck() const {
    if (run().phase_count(Phase::running) > 0) return;
    for (UnitId unit = 0; unit < run().units.size(); unit++)
      CHECK((run().units[unit].phase != Phase::ready || !may_run_now(asked_by(unit))));
  }
  /// A unit that waits for a larger disconnected worker, or one with the GPU, starts nowhere.
  bool may_run_now(const Resources& asked) const {
    bool is_any_disconnected =
        std::any_of(state.workers.begin(), state.workers.end(),
                    [](const WorkerState& worker) { return worker.is_disconnected; });
    return !is_any_disconnected &&
           std::any_of(state.workers.begin(), state.workers.end(),
                       [&](const WorkerState& worker) { return may_run(worker, asked); });
  }

  /// A reconnected worker continues with its units.
  void rejoins(WorkerId worker) {
    WorkerJoined joined{state.workers[worker].info};
    std::vector<UnitId> units;
    for (UnitId unit = 0; unit < run().units.size(); unit++) {
      if (run().units[unit].phase != Phase::running || run().units[unit].worker != worker) continue;
      units.push_back(unit);
      joined.attempts.push_back(current_attempt(run(), unit));
    }
    size_t commands = commands_.size();
    feed(joined);
    CHECK(commands_.size() == commands);
    for (size_t i = 0; i < units.size(); i++) {
      CHECK(run().units[units[i]].phase == Phase::running);
      CHECK(current_attempt(run(), units[i]) == joined.attempts[i]);
    }
  }

  /// A unit that fits waits only if an earlier one waits for the same worker.
  void check_nobody_waits_for_nothing() const {
    for (UnitId unit = 0; unit < run().units.size(); unit++) {
      if (run().units[unit].phase != Phase::ready) continue;
      for (size_t worker = 0; worker < state.workers.size(); worker++) {
        INFO("unit " << unit << " at " << worker);
        if (!may_be_at(unit, WorkerId(worker)).empty()) CHECK(is_reserved(WorkerId(worker), unit));
      }
      CHECK(explain_wait(state, "r", unit).find("it starts next") == std::string::npos);
    }
  }
  bool is_reserved(WorkerId worker, UnitId from) const {
    for (UnitId other = 0; other < run().units.size(); other++) {
      if (run().units[other].phase != Phase::ready || !comes_before(other, from)) continue;
      if (may_run(state.workers[worker], asked_by(other))) return true;
    }
    return false;
  }
  bool comes_before(UnitId a, UnitId b) const {
    return std::pair(-priority_of(a), a) < std::pair(-priority_of(b), b);
  }
  int32_t priority_of(UnitId unit) const {
    return run().plan->defs[run().plan->nodes[run().units[unit].node].def].priority;
  }

  State state;

 private:
  sim::Random& random_;
  std::map<UnitId, PlacedUnit> placed_units_;
  std::vector<Command> commands_;
  size_t joined_ = 0;
};

}  // namespace

TEST_CASE("on a changing cluster, units that fit start and the others wait") {
  size_t away = 0, lost = 0, back = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    World world(random);
    for (int round = 0; round < 8 && !is_final(world.run().status); round++) {
      world.check_admission();
      check_shared_reasons(world.state);
      for (std::vector<Event> proposals; !(proposals = schedule(world.state, 1000)).empty();) {
        for (const Event& event : proposals) {
          world.feed(event);
          away += std::get<Assigned>(event).worker > 0;
        }
      }
      world.check_nobody_waits_for_nothing();
      world.check_nobody_is_stuck();
      check_shared_reasons(world.state);
      for (UnitId unit = 0; unit < world.run().units.size(); unit++) {
        if (world.run().units[unit].phase != Phase::running || random.one_in(2)) continue;
        world.feed(
            AttemptSucceeded{current_attempt(world.run(), unit), sha256("v"), nullptr, {}, 0});
      }
      if (is_final(world.run().status)) break;
      if (random.one_in(2)) world.join();
      auto worker = WorkerId(random.below(uint32_t(world.state.workers.size())));
      const WorkerState& chosen = world.state.workers[worker];
      if (worker <= 1 || chosen.is_lost()) continue;
      if (chosen.is_disconnected && random.one_in(2)) {
        world.rejoins(worker);
        back++;
      } else if (random.one_in(2)) {
        world.feed(WorkerLost{worker, "it is gone"});
        lost++;
      } else if (chosen.is_up) {
        world.feed(WorkerDisconnected{worker, "it is silent"});
      }
    }
  }
  CHECK(away > 500);
  CHECK(lost > 100);
  CHECK(back > 20);
}

TEST_CASE("a unit without GPU avoids GPU workers, and one with GPU takes the fullest worker") {
  auto place_of = [](int32_t gpus_milli, std::vector<size_t> gpus_of_workers) {
    State state;
    std::vector<Command> out;
    auto feed = [&](Event event) {
      REQUIRE(admit(state, event));
      apply(state, {state.sequence + 1, 0, std::move(event)}, out);
    };
    feed(EngineStarted{1, 1000, 100});
    feed(GpusFound{{{0, "own", "A", "", 80, -1, false}}});
    for (size_t count : gpus_of_workers) {
      WorkerInfo worker{"w" + std::to_string(state.workers.size()), 1000, 100, {}};
      for (size_t i = 0; i < count; i++)
        worker.gpus.push_back({uint32_t(i), "GPU-" + std::to_string(i), "A", "", 80, -1, false});
      feed(WorkerJoined{worker});
    }
    Plan plan;
    plan.defs.resize(1);
    plan.defs[0].name = "t";
    plan.defs[0].resources.gpus_milli = gpus_milli;
    plan.nodes.resize(1);
    plan.nodes[0].name = "n";
    plan.nodes[0].args = Value::list({});
    RunSubmitted e;
    e.run = "r";
    e.plan = std::make_shared<const Plan>(plan);
    feed(e);
    feed(InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
    return std::get<Assigned>(schedule(state, 1).at(0)).worker;
  };
  CHECK(place_of(0, {2, 0, 4}) == 2);
  CHECK(place_of(0, {2, 4}) == 0);
  CHECK(place_of(1000, {0, 4, 2}) == 0);
  CHECK(place_of(2000, {4, 2, 3}) == 2);
}

namespace {

struct FakeInputLocations final : InputLocations {
  std::vector<std::pair<WorkerId, uint64_t>> of(const Run&, UnitId unit) const override {
    auto found = places.find(unit);
    return found == places.end() ? std::vector<std::pair<WorkerId, uint64_t>>{} : found->second;
  }
  std::map<UnitId, std::vector<std::pair<WorkerId, uint64_t>>> places;
};

using Places = std::map<UnitId, WorkerId>;

/// The worker of each of `count` units that begin at once, on workers with these slots and a head
/// without slots; the last workers have a GPU.
Places places_of(const FakeInputLocations& inputs, std::vector<int32_t> slots, size_t units,
                 size_t with_gpu = 0, int32_t gpus_milli = 0) {
  State state;
  std::vector<Command> out;
  auto feed = [&](Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, 0, std::move(event)}, out);
  };
  feed(EngineStarted{1, 0, 100});
  for (size_t i = 0; i < slots.size(); i++) {
    WorkerInfo worker{"w" + std::to_string(i), slots[i] * 1000, 100, {}};
    if (i + with_gpu >= slots.size()) worker.gpus.push_back({0, "GPU-0", "A", "", 80, -1, false});
    feed(WorkerJoined{worker});
  }
  Plan plan;
  plan.defs.resize(1);
  plan.defs[0].name = "t";
  plan.defs[0].resources.cpus_milli = 1000;
  plan.defs[0].resources.gpus_milli = gpus_milli;
  plan.nodes.resize(units);
  for (size_t i = 0; i < units; i++) {
    plan.nodes[i].name = "n" + std::to_string(i);
    plan.nodes[i].args = Value::list({});
  }
  RunSubmitted e;
  e.run = "r";
  e.plan = std::make_shared<const Plan>(plan);
  feed(e);
  for (UnitId unit = 0; unit < units; unit++)
    feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  Places places;
  for (const Event& event : schedule(state, units, &inputs)) {
    const auto& assigned = std::get<Assigned>(event);
    feed(event);
    places[assigned.id.unit] = assigned.worker;
  }
  REQUIRE(schedule(state, units, &inputs).empty());
  return places;
}

}  // namespace

TEST_CASE(
    "of the workers where it can start now, a unit is placed on that with most of its inputs") {
  constexpr uint64_t kMib = 1 << 20;
  FakeInputLocations inputs;
  inputs.places = {{0, {{2, 5 * kMib}}},
                   {1, {{1, 9 * kMib}, {2, 7 * kMib}}},
                   {2, {{3, 2 * kMib}, {1, kMib}}},
                   {3, {{0, 90 * kMib}, {2, 9 * kMib}}}};
  CHECK(places_of(inputs, {2, 2, 2}, 4) == Places{{0, 2}, {1, 1}, {2, 3}, {3, 2}});
  // No slot stays idle for it, and no unit waits.
  inputs.places = {{0, {{2, 5 * kMib}}}, {1, {{2, 5 * kMib}}}, {2, {{2, 5 * kMib}}}};
  CHECK(places_of(inputs, {1, 1, 1}, 3) == Places{{0, 2}, {1, 1}, {2, 3}});
  // Small inputs do not matter.
  inputs.places = {{0, {{1, 0}, {3, kMib - 1}}}};
  CHECK(places_of(inputs, {2, 1, 2}, 1) == Places{{0, 2}});
  // A unit without GPU avoids GPU workers, wherever its inputs are.
  inputs.places = {{0, {{2, 50 * kMib}}}};
  CHECK(places_of(inputs, {1, 1}, 1, 1) == Places{{0, 1}});
  CHECK(places_of(inputs, {1, 1}, 1, 2, 1000) == Places{{0, 2}});
}

TEST_CASE("a unit goes first to the worker of its inputs if another would have to move its own") {
  constexpr uint64_t kMib = 1 << 20;
  FakeInputLocations inputs;
  for (UnitId unit = 0; unit < 6; unit++)
    inputs.places[unit] = {{WorkerId(unit < 3 ? 2 : 1), kMib}};
  CHECK(places_of(inputs, {2, 1}, 6) == Places{{0, 2}, {3, 1}, {4, 1}});
  CHECK(places_of(inputs, {1, 2}, 6) == Places{{0, 2}, {1, 2}, {3, 1}});
  CHECK(places_of(inputs, {4, 4}, 6) == Places{{0, 2}, {1, 2}, {2, 2}, {3, 1}, {4, 1}, {5, 1}});
  CHECK(places_of(inputs, {5, 1}, 6) == Places{{0, 2}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}});
  // A unit without large inputs is placed in its turn.
  inputs.places.erase(1);
  CHECK(places_of(inputs, {2, 1}, 6) == Places{{0, 2}, {1, 1}, {3, 1}});
}
