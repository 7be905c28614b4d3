// Resources that several workers of one machine offer.
#include "engine/runs/shared_machines.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

struct Machines {
  core::State state;
  SharedMachines shared{{"this boot", 4, int64_t{8} << 30}};

  Machines() { state.workers.resize(1); }

  void join(const std::string& name, int32_t cpus, int64_t gib,
            const std::vector<std::string>& gpus, const std::string& boot = "that boot") {
    core::WorkerInfo info{name, cpus * 1000, gib << 30, {}};
    for (const std::string& uuid : gpus) info.gpus.push_back({0, uuid, "A", "", 80, -1, false});
    shared.add(state, info, {boot, 8, int64_t{16} << 30});
    core::WorkerState worker;
    worker.info = info;
    state.workers.push_back(worker);
  }
  void lose(size_t worker) {
    shared.remove(state.workers[worker].info.name);
    state.workers[worker].is_up = false;
  }
  std::string note(const std::string& name) const { return shared.note_of(state, name); }
};

}  // namespace

TEST_CASE("the note of a worker names CPUs and memory that its machine does not have") {
  Machines machines;
  machines.join("a", 4, 8, {});
  machines.join("b", 4, 8, {});
  CHECK(machines.note("b") == "");  // each has its share
  machines.join("c", 2, 4, {});
  CHECK(machines.note("c") ==
        "on its machine runs `a`, `b` too, and together they offer 10 CPUs of 8 and 20 GiB of 16 "
        "GiB of memory: give each its share with --jobs and --memory");
  CHECK(machines.note("a").starts_with("on its machine runs `b`, `c` too"));
  machines.join("far", 8, 16, {}, "another boot");
  machines.join("old", 8, 16, {}, "");
  machines.join("older", 8, 16, {}, "");
  for (const char* name : {"far", "old", "older", "nobody"}) CHECK(machines.note(name) == "");
  machines.lose(3);
  CHECK(machines.note("a") == "");
}

TEST_CASE("a worker on the head's machine is compared with the head's own resources") {
  Machines machines;
  machines.join("a", 8, 1, {}, "this boot");
  CHECK(machines.note("a") == "");  // the head runs no tasks itself
  machines.state.workers[0].info.cpus_milli = 4000;
  CHECK(machines.note("a") ==
        "on its machine runs the head too, and together they offer 12 CPUs of 8: give each its "
        "share with --jobs");
}

TEST_CASE(
    "a GPU counts for one worker, and moves to another one that offered it when that is lost") {
  Machines machines;
  machines.join("a", 1, 1, {"GPU-1", "GPU-2"});
  machines.join("b", 1, 1, {"GPU-2", "GPU-3"});
  machines.join("c", 1, 1, {"GPU-2"});
  CHECK(machines.state.workers[2].info.gpus.size() == 1);
  CHECK(machines.state.workers[3].info.gpus.empty());
  CHECK(machines.note("a") == "");
  CHECK(machines.note("c") ==
        "it also offers GPU-2, which counts for `a`: give each worker of a machine its own GPUs "
        "with CUDA_VISIBLE_DEVICES");
  CHECK(machines.shared.orphans(machines.state).empty());
  machines.shared.gpu_failed("b", "GPU-2", "wore out", false);
  machines.lose(1);
  std::vector<core::GpusFound> found = machines.shared.orphans(machines.state);
  REQUIRE(found.size() == 1);
  CHECK(found[0].worker == 2);
  REQUIRE(found[0].gpus.size() == 1);
  CHECK(found[0].gpus[0].uuid == "GPU-2");
  CHECK(found[0].gpus[0].fault == "wore out");
  machines.state.workers[2].is_draining = true;
  found = machines.shared.orphans(machines.state);
  REQUIRE(found.size() == 1);
  CHECK(found[0].worker == 3);
}
