// All resources at once on small random clusters, tasks of one worker and gangs, against an oracle
// that uses only the assignments: within capacity, nothing that fits is rejected unless it is
// reserved for an earlier unit, and no free places of a gang are closer to each other than the
// assigned ones.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "engine/core/gangs.hpp"
#include "engine/sched/gang_placement.hpp"
#include "engine/sched/sched.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr const char* kWheres[] = {"rack == a", "rack != a", "ssd"};

bool has_labels(const WorkerInfo& worker, const std::string& where) {
  auto has = [&](const char* name, const char* value) {
    return std::find(worker.labels.begin(), worker.labels.end(),
                     std::pair<std::string, std::string>(name, value)) != worker.labels.end();
  };
  if (where == kWheres[0]) return has("rack", "a");
  if (where == kWheres[1]) return !has("rack", "a");
  return where.empty() || has("ssd", "");
}

WorkerInfo random_worker(sim::Random& random, const std::string& name) {
  WorkerInfo worker{name, 1000 * int32_t(1 + random.below(4)), 100 * random.below(6), {}};
  for (uint32_t i = random.below(4); i > 0; i--) {
    Gpu gpu;
    gpu.index = uint32_t(worker.gpus.size());
    gpu.uuid = "GPU-" + std::to_string(gpu.index);  // with the index that another worker may use
    gpu.name = random.one_in(3) ? "B" : "A";
    gpu.memory_bytes = 40 + 40 * random.below(3);
    gpu.is_mig = random.one_in(5);
    worker.gpus.push_back(gpu);
  }
  if (random.one_in(2)) worker.labels.emplace_back("rack", random.one_in(2) ? "a" : "b");
  if (random.one_in(2)) worker.labels.emplace_back("ssd", "");
  if (random.one_in(2)) worker.custom_resources.emplace_back("fpga", 1000 * (1 + random.below(3)));
  return worker;
}

TaskDef random_task(sim::Random& random) {
  TaskDef def;
  def.name = "t";
  def.retry.infra = 1000;
  def.priority = int32_t(random.below(3));
  Resources& asked = def.resources;
  asked.cpus_milli = 500 * int32_t(random.below(5));
  if (random.one_in(2)) asked.memory_bytes = random.below(300);
  if (random.one_in(2)) {
    asked.gpus_milli =
        random.one_in(2) ? 1000 * int32_t(1 + random.below(2)) : 300 + int32_t(random.below(500));
    if (random.one_in(3)) asked.gpu_model = random.one_in(2) ? "A" : "B";
    if (random.one_in(2)) asked.gpu_memory_bytes = 1 + random.below(90);
  }
  if (random.one_in(4)) asked.where = kWheres[random.below(std::size(kWheres))];
  if (random.one_in(4)) asked.custom_resources.emplace_back("fpga", 500 * (1 + random.below(3)));
  if (random.one_in(2)) return def;
  asked.ranks = 2 + random.below(3);
  asked.ranks_max = random.one_in(3) ? asked.ranks + 1 + random.below(2) : asked.ranks;
  return def;
}

/// Remaining resources of a worker, computed from its units.
struct Left {
  int64_t cpus = 0, memory = 0, fpgas = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> gpus;  // thousandths and bytes

  bool is_sound() const {
    return cpus >= 0 && memory >= 0 && fpgas >= 0 &&
           std::all_of(gpus.begin(), gpus.end(), [](const auto& gpu) {
             return gpu.second.first >= 0 && gpu.second.second >= 0;
           });
  }
};
using Lefts = std::map<WorkerId, Left>;

/// The resources of one rank, or of a task of one worker.
struct Portion {
  int64_t cpus = 0, memory = 0;
  const Resources* asked = nullptr;
  int64_t fpgas() const {
    return asked->custom_resources.empty() ? 0 : asked->custom_resources[0].second;
  }
  size_t devices() const { return size_t(asked->gpus_milli + 999) / 1000; }
};

void take(Left& left, const Portion& portion, const std::vector<std::string>& gpus) {
  left.cpus -= portion.cpus;
  left.memory -= portion.memory;
  left.fpgas -= portion.fpgas();
  for (const std::string& uuid : gpus) {
    left.gpus.at(uuid).first -= std::min(portion.asked->gpus_milli, 1000);
    left.gpus.at(uuid).second -= portion.asked->gpu_memory_bytes;
  }
}

bool may_be_on(const Gpu& gpu, const Resources& asked) {
  bool is_whole_enough = !gpu.is_mig || asked.gpus_milli <= 1000;
  return is_whole_enough && (asked.gpu_model.empty() || asked.gpu_model == gpu.name);
}

/// Every set of devices that can be assigned from the remaining ones.
std::vector<std::vector<std::string>> sets_for(const WorkerInfo& worker, const Left& left,
                                               const Portion& portion) {
  std::vector<std::vector<std::string>> sets;
  for (uint32_t bits = 0; bits < 1u << worker.gpus.size(); bits++) {
    std::vector<std::string> set;
    bool is_free = true;
    for (size_t i = 0; i < worker.gpus.size(); i++) {
      if ((bits >> i & 1) == 0) continue;
      const auto& [milli, memory] = left.gpus.at(worker.gpus[i].uuid);
      is_free = is_free && may_be_on(worker.gpus[i], *portion.asked) &&
                milli >= std::min(portion.asked->gpus_milli, 1000) &&
                memory >= portion.asked->gpu_memory_bytes;
      set.push_back(worker.gpus[i].uuid);
    }
    if (is_free && set.size() == portion.devices()) sets.push_back(std::move(set));
  }
  return sets;
}

/// The maximum number that fits together, over all choices of devices, up to `most`.
uint32_t most_on(const WorkerInfo& worker, const Left& left, const Portion& portion,
                 uint32_t most) {
  bool has_rest = left.cpus >= portion.cpus && left.memory >= portion.memory &&
                  left.fpgas >= portion.fpgas() && has_labels(worker, portion.asked->where) &&
                  (worker.cpus_milli > 0 || portion.cpus == 0);
  if (most == 0 || !has_rest) return 0;
  uint32_t best = 0;
  for (const std::vector<std::string>& set : sets_for(worker, left, portion)) {
    Left after = left;
    take(after, portion, set);
    best = std::max(best, 1 + most_on(worker, after, portion, most - 1));
    if (best == most) break;
  }
  return best;
}

class World {
 public:
  explicit World(sim::Random& random) {
    feed(EngineStarted{1, 0, 0, {}, true});
    for (uint32_t i = 1 + random.below(3); i > 0; i--)
      feed(WorkerJoined{random_worker(random, "w" + std::to_string(i))});
    Plan plan;
    for (uint32_t i = 4 + random.below(8); i > 0; i--) {
      TaskNode node;
      node.name = "n" + std::to_string(plan.nodes.size());
      node.def = uint32_t(plan.defs.size());
      node.args = Value::list({});
      plan.defs.push_back(random_task(random));
      plan.nodes.push_back(std::move(node));
    }
    RunSubmitted e;
    e.run = "r";
    e.plan = std::make_shared<const Plan>(std::move(plan));
    feed(e);
    for (UnitId unit = 0; unit < run().units.size(); unit++)
      feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  }

  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, now_++, std::move(event)}, commands_);
    REQUIRE(check_invariants(state) == "");
  }
  const Run& run() const { return state.runs.at("r"); }
  const TaskDef& def(UnitId unit) const { return run().plan->defs[unit]; }
  bool is(UnitId unit, Phase phase) const { return run().units[unit].phase == phase; }

  /// CPUs and memory are clamped to the capacity, which other tests cover.
  Portion portion_of(UnitId unit) const {
    SchedulingClass request = resource_request(state, run(), unit);
    return {request.cpus_milli, request.memory_bytes, &def(unit).resources};
  }
  Lefts idle() const {
    Lefts lefts;
    for (size_t i = 0; i < state.workers.size(); i++) {
      const WorkerInfo& info = state.workers[i].info;
      Left& left = lefts[WorkerId(i)];
      left = {info.cpus_milli,
              info.memory_bytes,
              info.custom_resources.empty() ? 0 : info.custom_resources[0].second,
              {}};
      for (const Gpu& gpu : info.gpus) left.gpus[gpu.uuid] = {1000, gpu.memory_bytes};
    }
    return lefts;
  }
  void take_unit(Lefts& lefts, UnitId unit) const {
    for_each_rank(run().units[unit], [&](WorkerId at, const std::vector<std::string>& gpus) {
      take(lefts.at(at), portion_of(unit), gpus);
    });
  }
  Lefts lefts() const {
    Lefts lefts = idle();
    for (UnitId unit = 0; unit < run().units.size(); unit++)
      if (is(unit, Phase::running)) take_unit(lefts, unit);
    return lefts;
  }
  uint32_t ranks_on(const Lefts& lefts, WorkerId worker, UnitId unit) const {
    const Resources& asked = def(unit).resources;
    return most_on(state.workers[worker].info, lefts.at(worker), portion_of(unit),
                   std::max(asked.ranks, asked.ranks_max));
  }
  bool fits(const Lefts& lefts, UnitId unit) const {
    uint32_t ranks = 0;
    for (const auto& [worker, left] : lefts) ranks += ranks_on(lefts, worker, unit);
    return ranks >= def(unit).resources.ranks;
  }
  std::vector<UnitId> ready_in_order() const {
    std::vector<UnitId> units;
    for (UnitId unit = 0; unit < run().units.size(); unit++)
      if (is(unit, Phase::ready)) units.push_back(unit);
    std::stable_sort(units.begin(), units.end(),
                     [&](UnitId a, UnitId b) { return def(a).priority > def(b).priority; });
    return units;
  }

  State state;

 private:
  Time now_ = 0;
  std::vector<Command> commands_;
};

/// One turn of the scheduler, checked before and after each of its proposals.
struct Turn {
  size_t gangs = 0, shared = 0, kept = 0, waits = 0;

  void play(World& world) {
    std::vector<Event> proposals = schedule(world.state, 1000);
    std::vector<UnitId> passed;
    auto proposal = proposals.begin();
    for (UnitId unit : world.ready_in_order()) {
      INFO("unit " << unit);
      bool fits = world.fits(world.lefts(), unit);
      bool is_proposed =
          proposal != proposals.end() && std::get<Assigned>(*proposal).id.unit == unit;
      if (passed.empty() || is_proposed) CHECK(is_proposed == fits);
      if (!is_proposed) {
        if (fits) CHECK(may_want_the_same(world, passed, unit));
        kept += fits;
        waits++;
        passed.push_back(unit);
        continue;
      }
      shared += world.def(unit).resources.gpus_milli % 1000 != 0;
      gangs += world.def(unit).resources.is_gang();
      world.feed(*proposal++);
      for (const auto& [worker, left] : world.lefts()) CHECK(left.is_sound());
      if (!passed.empty()) check_unreserved(world, passed.front(), unit);
    }
    CHECK(proposal == proposals.end());
  }

  /// The overtaken unit could run on one of the workers where the other one would fit.
  static bool may_want_the_same(const World& world, const std::vector<UnitId>& passed,
                                UnitId unit) {
    Lefts lefts = world.lefts(), idle = world.idle();
    for (const auto& [worker, left] : lefts) {
      if (world.ranks_on(lefts, worker, unit) == 0) continue;
      for (UnitId before : passed)
        if (world.ranks_on(idle, worker, before) > 0) return true;
    }
    return false;
  }

  /// An overtaken unit would fit after all that ran before has ended, if it would without the one
  /// that overtakes it.
  void check_unreserved(const World& world, UnitId first, UnitId unit) {
    auto& others = overtakers_[first];
    others.insert(unit);
    Lefts lefts = world.idle();
    if (!world.fits(lefts, first)) return;
    for (UnitId other : others)
      if (world.is(other, Phase::running)) world.take_unit(lefts, other);
    CHECK(world.fits(lefts, first));
  }
  /// Units that began in earlier turns belong to those that ran before, for the unit that waits
  /// first now, unless it is the same one.
  void forget() { overtakers_.clear(); }

 private:
  std::map<UnitId, std::set<UnitId>> overtakers_;
};

}  // namespace

TEST_CASE(
    "with all resources at once, assignments stay within capacity and units that fit are "
    "admitted") {
  Turn turn;
  for (uint64_t seed = 1; seed <= 600; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    World world(random);
    for (int round = 0; round < 8 && !is_final(world.run().status); round++) {
      turn.forget();
      turn.play(world);
      for (UnitId unit = 0; unit < world.run().units.size(); unit++) {
        bool ends = world.is(unit, Phase::running) && random.one_in(2);
        if (ends)
          world.feed(
              AttemptSucceeded{current_attempt(world.run(), unit), sha256("v"), nullptr, {}, 0});
      }
    }
  }
  CHECK(turn.gangs > 300);
  CHECK(turn.shared > 300);
  CHECK(turn.waits > 1000);
  CHECK(turn.kept > 100);
}

namespace {

/// The distance between ranks, nearest first: one NVLink domain, several domains, workers, racks.
struct Spread {
  int level = 0;  // one NVLink domain, one worker, one rack, several
  size_t workers = 0, racks = 0;
  auto operator<=>(const Spread&) const = default;
};

/// The NVLink domain of a GPU, across machines if it has a fabric; "" if it has none.
std::string domain_of(WorkerId worker, const Gpu& gpu) {
  if (!gpu.fabric.empty()) return gpu.fabric;
  return gpu.nvlink < 0 ? "" : std::to_string(worker) + "/" + std::to_string(gpu.nvlink);
}
std::string rack_of(const WorkerInfo& worker) {
  for (const auto& [name, value] : worker.labels)
    if (name == "rack") return value;
  return "";
}

/// The smallest number of these that has the given sum, or nothing.
std::optional<size_t> fewest(std::vector<uint32_t> ranks_by_worker, uint32_t ranks) {
  std::sort(ranks_by_worker.rbegin(), ranks_by_worker.rend());
  size_t count = 0;
  for (uint32_t ranks_left : ranks_by_worker) {
    if (ranks == 0) break;
    ranks -= std::min(ranks, ranks_left);
    count++;
  }
  return ranks == 0 ? std::optional(count) : std::nullopt;
}

class Topology {
 public:
  explicit Topology(sim::Random& random) {
    std::vector<Command> out;
    auto feed = [&](Event event) {
      REQUIRE(admit(state_, event));
      apply(state_, {state_.sequence + 1, 0, std::move(event)}, out);
    };
    feed(EngineStarted{1, 0, 0, {}, true});
    for (uint32_t i = 1 + random.below(7); i > 0; i--) {
      WorkerInfo worker = random_worker(random, "w" + std::to_string(i));
      bool has_fabric = random.one_in(3);
      for (Gpu& gpu : worker.gpus) {
        if (gpu.is_mig || random.one_in(4)) continue;
        gpu.nvlink = has_fabric ? 0 : int32_t(random.below(2));
        if (has_fabric) gpu.fabric = random.one_in(4) ? "c/2" : "c/1";
      }
      feed(WorkerJoined{worker});
    }
    TaskDef def = random_task(random);
    asked_ = def.resources;
    if (random.one_in(2)) asked_.gpus_milli = 1000 * int32_t(1 + random.below(2));
    if (random.one_in(2)) asked_.where.clear();
    request_.cpus_milli = asked_.cpus_milli;
    request_.memory_bytes = asked_.memory_bytes;
    request_.gpu = gpu_request(asked_);
    asked_.gpu_memory_bytes = request_.gpu.memory_bytes;
    request_.where = asked_.where;
    request_.custom_resources = asked_.custom_resources;
    request_.ranks = 2 + random.below(7);
    request_.ranks_max = request_.ranks + (random.one_in(3) ? random.below(3) : 0);
    for (const WorkerState& worker : state_.workers)
      free_by_worker_.push_back(occupied(random, worker.free));
  }

  std::optional<std::vector<Placement>> placed() const {
    return place_gang(state_, free_by_worker_, request_);
  }
  uint32_t ranks() const {
    uint32_t ranks_left = 0;
    for (uint32_t each : ranks_by_worker_on({})) ranks_left += each;
    return ranks_left < request_.ranks ? 0 : std::min(ranks_left, request_.ranks_max);
  }

  Spread nearest(uint32_t ranks) const {
    std::optional<size_t> joined;
    for (const std::string& domain : domains())
      if (auto workers = fewest(ranks_by_worker_on(domain), ranks))
        joined = std::min(joined.value_or(*workers), *workers);
    if (joined) return {0, *joined, 0};
    std::map<std::string, std::vector<uint32_t>> racks;
    std::vector<uint32_t> all = ranks_by_worker_on({}), of_racks;
    for (size_t i = 0; i < all.size(); i++)
      racks[rack_of(state_.workers[i].info)].push_back(all[i]);
    std::optional<size_t> workers;
    for (const auto& [rack, ranks_by_worker] : racks) {
      if (auto count = fewest(ranks_by_worker, ranks))
        workers = std::min(workers.value_or(*count), *count);
      uint32_t ranks_left = 0;
      for (uint32_t each : ranks_by_worker) ranks_left += each;
      of_racks.push_back(ranks_left);
    }
    if (workers) return {*workers == 1 ? 1 : 2, *workers, 0};
    return {3, 0, *fewest(of_racks, ranks)};
  }

  Spread spread_of(const std::vector<Placement>& places) const {
    std::set<std::string> racks, domains;
    std::set<WorkerId> workers;
    for (const Placement& rank : places) {
      const WorkerInfo& worker = state_.workers[rank.worker].info;
      workers.insert(rank.worker);
      racks.insert(rack_of(worker));
      for (const std::string& uuid : rank.gpus)
        for (const Gpu& gpu : worker.gpus)
          if (gpu.uuid == uuid) domains.insert(domain_of(rank.worker, gpu));
    }
    bool is_joined = asked_.gpus_milli >= 1000 && domains.size() == 1 && *domains.begin() != "";
    if (is_joined) return {0, workers.size(), 0};
    if (racks.size() == 1) return {workers.size() == 1 ? 1 : 2, workers.size(), 0};
    return {3, 0, racks.size()};
  }

  bool is_sound(const std::vector<Placement>& places) const {
    Lefts lefts;
    for (size_t i = 0; i < free_by_worker_.size(); i++) lefts[WorkerId(i)] = left_of(i, {});
    for (const Placement& rank : places) {
      auto sets = sets_for(state_.workers[rank.worker].info, lefts.at(rank.worker), portion());
      std::vector<std::string> gpus = rank.gpus;
      std::sort(gpus.begin(), gpus.end());
      if (std::find(sets.begin(), sets.end(), gpus) == sets.end()) return false;
      take(lefts.at(rank.worker), portion(), rank.gpus);
      if (!lefts.at(rank.worker).is_sound()) return false;
    }
    return true;
  }

 private:
  /// Some of it is used by others.
  static FreeResources occupied(sim::Random& random, FreeResources free) {
    if (random.one_in(2)) free.cpus_free_milli /= 2;
    if (random.one_in(3)) free.memory_free_bytes /= 2;
    for (FreeGpu& gpu : free.gpus) {
      if (random.one_in(5)) gpu.milli_free = 0;
      if (random.one_in(5)) gpu.milli_free = std::min(gpu.milli_free, 600);
      if (random.one_in(4)) gpu.memory_free_bytes /= 2;
    }
    return free;
  }
  Portion portion() const { return {request_.cpus_milli, request_.memory_bytes, &asked_}; }
  /// Only the GPUs of the given domain, if there is one.
  Left left_of(size_t worker, const std::string& domain) const {
    const FreeResources& free = free_by_worker_[worker];
    const std::vector<Gpu>& gpus = state_.workers[worker].info.gpus;
    Left left{free.cpus_free_milli,
              free.memory_free_bytes,
              free.custom_resources.empty() ? 0 : free.custom_resources[0].second,
              {}};
    for (size_t i = 0; i < gpus.size(); i++) {
      bool is_of_it = domain.empty() || domain_of(WorkerId(worker), gpus[i]) == domain;
      left.gpus[gpus[i].uuid] = {is_of_it ? free.gpus[i].milli_free : 0,
                                 free.gpus[i].memory_free_bytes};
    }
    return left;
  }
  std::vector<uint32_t> ranks_by_worker_on(const std::string& domain) const {
    std::vector<uint32_t> ranks_by_worker;
    for (size_t i = 0; i < free_by_worker_.size(); i++)
      ranks_by_worker.push_back(
          most_on(state_.workers[i].info, left_of(i, domain), portion(), request_.ranks_max));
    return ranks_by_worker;
  }
  std::set<std::string> domains() const {
    std::set<std::string> all;
    for (size_t i = 0; i < state_.workers.size() && asked_.gpus_milli >= 1000; i++)
      for (const Gpu& gpu : state_.workers[i].info.gpus) all.insert(domain_of(WorkerId(i), gpu));
    all.erase("");
    return all;
  }

  State state_;
  std::vector<FreeResources> free_by_worker_;
  Resources asked_;
  SchedulingClass request_;
};

}  // namespace

TEST_CASE("a gang gets places if there are any, and no free places are closer to each other") {
  std::map<int, size_t> levels;
  for (uint64_t seed = 1; seed <= 30000; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Topology topology(random);
    uint32_t ranks = topology.ranks();
    auto places = topology.placed();
    REQUIRE(places.has_value() == (ranks > 0));
    if (!places) continue;
    CHECK(places->size() == ranks);
    CHECK(topology.is_sound(*places));
    Spread spread = topology.spread_of(*places), nearest = topology.nearest(ranks);
    CHECK(spread.level == nearest.level);
    CHECK(spread.workers == nearest.workers);
    CHECK(spread.racks == nearest.racks);
    levels[nearest.level]++;
  }
  for (int level = 0; level <= 3; level++) CHECK(levels[level] > 50);
}
