// The engine's knowledge of its machine's GPUs, without a GPU.
#include "engine/runtime/gpu_inventory.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

/// A machine whose GPUs appear and fail as the test sets them.
struct Machine {
  std::vector<std::string> uuids;
  Status published;
  int searches = 0, publications = 0;
  GpuWatch::OnError report;
  std::shared_ptr<int> watch = std::make_shared<int>(0);
  std::vector<std::string> failed;
  GpuInventory inventory{{
      [this] {
        searches++;
        MachineGpus found;
        for (const std::string& uuid : uuids) found.gpus.emplace_back().uuid = uuid;
        return found;
      },
      [this](const std::vector<Gpu>&) {
        publications++;
        return published;
      },
      [this](const std::vector<Gpu>&, GpuWatch::OnError on_error) -> std::shared_ptr<void> {
        report = std::move(on_error);
        return watch;
      },
      [this](const std::string& uuid, const GpuError&) { failed.push_back(uuid); },
  }};
};

}  // namespace

TEST_CASE("GPUs are searched for until some are found") {
  Machine machine;
  CHECK(machine.inventory.gpus()->gpus.empty());
  CHECK(machine.publications == 0);
  machine.uuids = {"GPU-1", "GPU-2"};
  CHECK(machine.inventory.gpus()->gpus.size() == 2);
  CHECK(machine.inventory.gpus()->gpus[1].uuid == "GPU-2");
  CHECK(machine.searches == 2);
  CHECK(machine.publications == 1);
}

TEST_CASE("GPUs that could not be committed are searched for again") {
  Machine machine;
  machine.uuids = {"GPU-1"};
  machine.published = environment_error("the disk is gone");
  CHECK_FALSE(machine.inventory.gpus().ok());
  CHECK_FALSE(machine.report);
  machine.published = {};
  CHECK(machine.inventory.gpus().ok());
  CHECK(machine.searches == 2);
}

TEST_CASE("a failed GPU is reported, and its fault is kept") {
  Machine machine;
  machine.uuids = {"GPU-1", "GPU-2"};
  REQUIRE(machine.inventory.gpus().ok());
  machine.report("GPU-2", {"Xid 79", true});
  CHECK(machine.failed == std::vector<std::string>{"GPU-2"});
  auto gpus = machine.inventory.gpus();
  CHECK(gpus->gpus[0].fault == "");
  CHECK(gpus->gpus[1].fault == "Xid 79");
  CHECK(gpus->gpus[1].is_dead);
}

TEST_CASE("the watch ends when the engine does") {
  Machine machine;
  machine.uuids = {"GPU-1"};
  REQUIRE(machine.inventory.gpus().ok());
  CHECK(machine.watch.use_count() == 2);
  machine.inventory.stop_watch();
  CHECK(machine.watch.use_count() == 1);
}
