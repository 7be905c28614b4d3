// When workers had GPUs that attempts could get.
#include <catch2/catch.hpp>

#include "engine/core/core.hpp"

using namespace flow;
using namespace flow::core;

namespace {

using Presences = std::vector<GpuPresence>;

Gpu gpu(const std::string& uuid, const std::string& model) {
  return {0, uuid, model, "", 80, -1, false};
}

class PresentWorkers {
 public:
  PresentWorkers() { feed(1000, EngineStarted{1, 1000, 0, {}, true}); }
  void feed(Time at, Event event) {
    REQUIRE(admit(state, event));
    std::vector<Command> out;
    apply(state, {state.sequence + 1, at, std::move(event)}, out);
    REQUIRE(check_invariants(state) == "");
  }
  void join(Time at, const std::string& name, std::vector<Gpu> gpus) {
    feed(at, WorkerJoined{{name, 1000, 0, std::move(gpus)}});
  }
  State state;
};

}  // namespace

TEST_CASE("a worker's GPUs are there from its join until it is lost, also while it is cut off") {
  PresentWorkers cluster;
  cluster.join(2000, "w1", {gpu("a", "H200"), gpu("b", "A1"), gpu("c", "H200")});
  cluster.join(3000, "cpus", {});
  GpuPresence there{2000, 0, "w1", {{"A1", 1}, {"H200", 2}}};
  CHECK(cluster.state.presences == Presences{there});
  cluster.feed(4000, WorkerDisconnected{1, "cut"});
  CHECK(cluster.state.presences == Presences{there});
  cluster.join(5000, "w1", {gpu("a", "H200"), gpu("b", "A1"), gpu("c", "H200")});
  CHECK(cluster.state.presences == Presences{there});
  cluster.feed(6000, WorkerDisconnected{1, "cut"});
  cluster.feed(9000, WorkerLost{1, "its lease ended"});
  there.until = 9000;
  CHECK(cluster.state.presences == Presences{there});
  cluster.join(12'000, "w1", {gpu("a", "H200")});
  CHECK(cluster.state.presences == Presences{there, {12'000, 0, "w1", {{"H200", 1}}}});
}

TEST_CASE("GPUs that fail are not there any more, and those that are found are") {
  PresentWorkers cluster;
  cluster.join(2000, "w1", {gpu("a", "H200"), gpu("b", "H200")});
  cluster.feed(3000, GpuFailed{1, "b", "fell off the bus", true});
  CHECK(cluster.state.presences ==
        Presences{{2000, 3000, "w1", {{"H200", 2}}}, {3000, 0, "w1", {{"H200", 1}}}});
  cluster.feed(4000, GpusFound{{gpu("c", "A1")}, 1});
  CHECK(cluster.state.presences.back() == GpuPresence{4000, 0, "w1", {{"A1", 1}, {"H200", 1}}});
  CHECK(cluster.state.presences[1].until == 4000);
}

TEST_CASE("GPUs of a machine without CPUs cannot be got") {
  PresentWorkers cluster;
  cluster.feed(2000, EngineStarted{2, 0, 0, {}, true});
  cluster.feed(3000, GpusFound{{gpu("own", "T4")}, 0});
  CHECK(cluster.state.presences.empty());
}

TEST_CASE("the end of an engine ends presences at its last record, and workers come again") {
  PresentWorkers cluster;
  cluster.feed(2000, GpusFound{{gpu("own", "T4")}, 0});
  cluster.join(3000, "w1", {gpu("a", "H200")});
  cluster.feed(4000, WorkersAnnounced{1});
  cluster.feed(90'000, EngineStarted{2, 1000, 0, {}, true});
  Presences former = {{2000, 4000, "", {{"T4", 1}}}, {3000, 4000, "w1", {{"H200", 1}}}};
  CHECK(cluster.state.presences == former);
  cluster.join(91'000, "w1", {gpu("a", "H200")});
  former.push_back({91'000, 0, "w1", {{"H200", 1}}});
  CHECK(cluster.state.presences == former);
}

TEST_CASE("the newest presences are kept, and it is known since when") {
  PresentWorkers cluster;
  CHECK(cluster.state.presences_since == 0);
  for (size_t i = 0; i <= kPresencesMax + 1; i++) {
    if (i > 0) cluster.feed(2000 + static_cast<Time>(i), WorkerDisconnected{1, "cut"});
    cluster.join(2000 + static_cast<Time>(i), "w1",
                 {gpu("a", "H200"), gpu("b", i % 2 == 0 ? "H200" : "A1")});
  }
  CHECK(cluster.state.presences.size() == kPresencesMax + 1);
  CHECK(cluster.state.presences_since == 2001);
  CHECK(cluster.state.presences.front().from == 2001);
  CHECK(cluster.state.presences.back().until == 0);
}

TEST_CASE("the presence that ended first is forgotten, and not the one that began first") {
  PresentWorkers cluster;
  cluster.join(1000, "steady", {gpu("s", "H200")});
  Time now = 2000;
  for (size_t i = 0; i < kPresencesMax; i++) {
    cluster.join(now++, "flap", {gpu("f", "H200")});
    cluster.feed(now++, WorkerLost{2, "it left"});
  }
  CHECK(cluster.state.presences_since == 0);
  cluster.feed(now, WorkerLost{1, "it left"});
  CHECK(cluster.state.presences_since == 2001);
  CHECK(cluster.state.presences.front().worker == "steady");
}

TEST_CASE("what a snapshot of an older flow has is there since then") {
  PresentWorkers cluster;
  cluster.join(2000, "w1", {gpu("a", "H200")});
  cluster.join(3000, "w2", {gpu("b", "H200")});
  cluster.feed(4000, WorkerLost{1, "it left"});
  cluster.feed(5000, WorkersAnnounced{1});
  begin_presences(cluster.state);
  CHECK(cluster.state.presences == Presences{{5000, 0, "w2", {{"H200", 1}}}});
  CHECK(cluster.state.presences_since == 5000);
}
