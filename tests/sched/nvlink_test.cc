// Assignment of GPUs that NVLink joins, on invented machines; a unit that fits is never rejected
// for topology.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/sched/gang_placement.hpp"
#include "engine/sched/sched.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

using Uuids = std::vector<std::string>;

/// "aabb-": two pairs that NVLink joins, and a single GPU.
std::vector<Gpu> machine(const std::string& islands, const std::string& fabric = "") {
  std::vector<Gpu> gpus;
  for (char c : islands) {
    Gpu gpu{uint32_t(gpus.size()), "GPU-" + std::to_string(gpus.size()), "A", "", 80, -1, false};
    if (c != '-') gpu.nvlink = c - 'a';
    if (c != '-') gpu.fabric = fabric;
    gpus.push_back(gpu);
  }
  return gpus;
}

/// By number: "" if they do not fit. `taken` are not free.
std::string chosen(const std::string& islands, int32_t count, const std::set<size_t>& taken = {}) {
  std::vector<Gpu> gpus = machine(islands);
  FreeResources free;
  free.gpus = free_gpus(gpus);
  for (size_t i : taken) free.gpus[i].milli_free = 0;
  std::string numbers;
  for (const std::string& uuid : choose_gpus(gpus, free, {count * 1000, 0, ""}))
    numbers += uuid.substr(4);
  return numbers;
}

/// Number of islands of a set of devices; a single GPU is an island.
size_t islands_in(const std::vector<Gpu>& gpus, const std::vector<size_t>& set) {
  std::set<int32_t> islands;
  size_t alone = 0;
  for (size_t i : set) {
    if (gpus[i].nvlink < 0) {
      alone++;
    } else {
      islands.insert(gpus[i].nvlink);
    }
  }
  return islands.size() + alone;
}

class Cluster {
 public:
  Cluster() { feed(EngineStarted{1, 0, 0}); }
  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, 0, std::move(event)}, commands_);
    REQUIRE(check_invariants(state) == "");
  }
  void join(const std::string& name, const std::string& islands, const std::string& rack = "",
            const std::string& fabric = "") {
    WorkerInfo worker{name, 64'000, 0, machine(islands, fabric), {}};
    if (!rack.empty()) worker.labels = {{"rack", rack}};
    feed(WorkerJoined{worker});
  }
  /// The places of the ranks of such a gang, as "b:0 b:1", or "".
  std::string places(uint32_t ranks, int32_t gpus = 1) const {
    SchedulingClass request;
    request.cpus_milli = 1000;
    request.gpu = {gpus * 1000, 0, ""};
    request.ranks = request.ranks_max = ranks;
    std::vector<FreeResources> free_by_worker;
    for (const WorkerState& worker : state.workers) free_by_worker.push_back(worker.free);
    auto placed = place_gang(state, free_by_worker, request);
    std::string text;
    if (!placed) return text;
    for (const Placement& rank : *placed) {
      text += (text.empty() ? "" : " ") + state.workers[rank.worker].info.name + ":";
      for (const std::string& uuid : rank.gpus) text += uuid.substr(4);
    }
    return text;
  }
  void take(const std::string& name, const std::set<size_t>& devices) {
    for (WorkerState& worker : state.workers) {
      for (size_t i : devices)
        if (worker.info.name == name) worker.free.gpus[i].milli_free = 0;
    }
  }
  State state;

 private:
  std::vector<Command> commands_;
};

}  // namespace

TEST_CASE(
    "several whole GPUs are of the smallest sufficient island, and single ones do not split "
    "islands") {
  CHECK(chosen("aabbbb", 2) == "01");
  CHECK(chosen("bbbbaa", 2) == "45");
  CHECK(chosen("-a-aa", 2) == "13");
  CHECK(chosen("aabbbb", 3) == "234");
  CHECK(chosen("aabbbb", 2, {0}) == "23");
  CHECK(chosen("aabbbb", 1) == "0");
  CHECK(chosen("aabbbb-", 1) == "6");
  CHECK(chosen("aabb--", 4) == "0123");
  CHECK(chosen("aabbb-", 4) == "2345");
  CHECK(chosen("aabbb", 4) == "0234");
  CHECK(chosen("----", 3) == "012");
  CHECK(chosen("aabb", 5) == "");
}

TEST_CASE(
    "whole GPUs are of as few islands as possible, and are assigned to every unit that fits") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    std::string islands;
    for (uint32_t i = 1 + random.below(7); i > 0; i--) islands += "aabbc-"[random.below(6)];
    std::vector<Gpu> gpus = machine(islands);
    FreeResources free;
    free.gpus = free_gpus(gpus);
    for (FreeGpu& gpu : free.gpus)
      if (random.one_in(4)) gpu.milli_free = 500;
    auto count = size_t(1 + random.below(5));
    size_t fewest = SIZE_MAX;
    for (uint32_t bits = 0; bits < 1u << gpus.size(); bits++) {
      std::vector<size_t> set;
      bool is_free = true;
      for (size_t i = 0; i < gpus.size(); i++) {
        if ((bits >> i & 1) == 0) continue;
        set.push_back(i);
        is_free = is_free && free.gpus[i].milli_free == 1000;
      }
      if (is_free && set.size() == count) fewest = std::min(fewest, islands_in(gpus, set));
    }
    GpuRequest request{int32_t(count) * 1000, 0, ""};
    Uuids given = choose_gpus(gpus, free, request);
    INFO(islands << " for " << count);
    CHECK(given.empty() == (fewest == SIZE_MAX));
    if (given.empty()) continue;
    CHECK(may_allocate_gpus(gpus, free, request, given));
    std::vector<size_t> set;
    for (const std::string& uuid : given) set.push_back(*find_gpu(gpus, uuid));
    CHECK(islands_in(gpus, set) == fewest);
    CHECK(has_island_for(gpus, free, request) == (count == 1 || (fewest == 1)));
  }
}

TEST_CASE("a gang is placed in one island, else one clique, else one worker, else one rack") {
  Cluster cluster;
  cluster.join("pairs", "aabb");
  cluster.join("plain", "--------", "r");
  cluster.join("eight", "aaaaaaaa", "r");
  cluster.join("x", "aaaa", "s", "c/1");
  cluster.join("y", "aaaa", "s", "c/1");
  cluster.join("z", "aaaa", "s", "c/2");
  CHECK(cluster.places(2) == "pairs:0 pairs:1");
  CHECK(cluster.places(3) == "z:0 z:1 z:2");
  CHECK(cluster.places(2, 2) == "z:01 z:23");
  CHECK(cluster.places(6) == "eight:0 eight:1 eight:2 eight:3 eight:4 eight:5");
  cluster.take("eight", {0});
  CHECK(cluster.places(8) == "x:0 x:1 x:2 x:3 y:0 y:1 y:2 y:3");
  cluster.take("y", {2});
  CHECK(cluster.places(8) == "plain:0 plain:1 plain:2 plain:3 plain:4 plain:5 plain:6 plain:7");
  cluster.take("plain", {0, 1});
  CHECK(cluster.places(9) ==
        "plain:2 plain:3 eight:1 eight:2 eight:3 eight:4 eight:5 eight:6 eight:7");
  CHECK(cluster.places(4, 2) == "plain:23 plain:45 plain:67 eight:12");
  CHECK(cluster.places(28) != "");
  CHECK(cluster.places(29) == "");
}

TEST_CASE("a task of several GPUs is placed where NVLink joins enough of them") {
  Cluster cluster;
  cluster.join("plain", "--");
  cluster.join("joined", "aaaa");
  Plan plan;
  TaskDef def;
  def.name = "t";
  def.resources.gpus_milli = 2000;
  plan.defs.push_back(def);
  TaskNode node;
  node.name = "n";
  node.args = Value::list({});
  plan.nodes.push_back(node);
  cluster.feed(
      RunSubmitted{"r", "", sha256("plan"), std::make_shared<const Plan>(plan), 0, false, false});
  cluster.feed(InputsResolved{"r", 0, sha256("key"), false, {}, nullptr, {}});
  auto worker_of = [&] {
    std::vector<Event> proposals = schedule(cluster.state, 10);
    REQUIRE(proposals.size() == 1);
    return cluster.state.workers[std::get<Assigned>(proposals[0]).worker].info.name;
  };
  CHECK(worker_of() == "joined");
  cluster.take("joined", {0, 1, 2});
  CHECK(worker_of() == "plain");
}

TEST_CASE("gangs are placed wherever there is enough, whatever the NVLink topology") {
  size_t placed = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    for (uint32_t i = 1 + random.below(4); i > 0; i--) {
      std::string islands;
      for (uint32_t j = random.below(6); j > 0; j--) islands += "aab--"[random.below(5)];
      cluster.join("h" + std::to_string(i), islands, random.one_in(2) ? "r" : "",
                   random.one_in(2) ? "c/1" : "");
    }
    auto each = int32_t(1 + random.below(2));
    uint32_t most_ranks = 0;
    for (const WorkerState& worker : cluster.state.workers)
      most_ranks += uint32_t(worker.info.gpus.size()) / uint32_t(each);
    for (uint32_t ranks = 2; ranks <= most_ranks + 1; ranks++) {
      SchedulingClass request;
      request.gpu = {each * 1000, 0, ""};
      request.ranks = request.ranks_max = ranks;
      std::vector<FreeResources> free_by_worker;
      for (const WorkerState& worker : cluster.state.workers) free_by_worker.push_back(worker.free);
      auto places = place_gang(cluster.state, free_by_worker, request);
      REQUIRE(places.has_value() == (ranks <= most_ranks));
      if (!places) continue;
      CHECK(places->size() == ranks);
      placed++;
      for (const Placement& rank : *places) {
        const std::vector<Gpu>& gpus = cluster.state.workers[rank.worker].info.gpus;
        REQUIRE(may_allocate_gpus(gpus, free_by_worker[rank.worker], request.gpu, rank.gpus));
        allocate_gpus(gpus, free_by_worker[rank.worker], request.gpu, rank.gpus);
      }
    }
  }
  CHECK(placed > 500);
}
