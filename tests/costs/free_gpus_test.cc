// The time in which GPUs were free because nothing wanted them.
#include <catch2/catch.hpp>

#include "engine/costs/free_gpus.hpp"

using namespace flow;

TEST_CASE("GPUs are free without a queue while tasks run and none waits for a GPU") {
  MachineUse use;
  use.gpus = 4;
  CHECK(gpus_without_queue(use) == 0);
  use.worked = {{1000, 2000}};
  CHECK(gpus_without_queue(use) == Approx(4 * 1000));
  use.held = {{{900, 1500}, 1}, {{1000, 1500}, 0.5}};
  CHECK(gpus_without_queue(use) == Approx(2.5 * 500 + 4 * 500));
  use.wanted = {{1400, 1600}};
  CHECK(gpus_without_queue(use) == Approx(2.5 * 400 + 4 * 400));
}

TEST_CASE("time in which nothing ran or waited does not count, and overlaps count once") {
  MachineUse use;
  use.gpus = 2;
  use.worked = {{5000, 6000}, {0, 1000}, {500, 1000}};
  CHECK(gpus_without_queue(use) == Approx(2 * 2000));
  use.wanted = {{0, 800}, {700, 1000}};
  CHECK(gpus_without_queue(use) == Approx(2 * 1000));
}

TEST_CASE("more than the GPUs that are there are not free") {
  MachineUse use;
  use.gpus = 1;
  use.worked = {{0, 1000}};
  use.held = {{{0, 1000}, 2}};  // the machine had more then
  CHECK(gpus_without_queue(use) == 0);
  use.worked.push_back({2000, 1000});  // the clock was set back
  CHECK(gpus_without_queue(use) == 0);
}
