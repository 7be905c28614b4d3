// The time in which GPUs were free, by whether something wanted one.
#include <catch2/catch.hpp>

#include "engine/costs/free_gpus.hpp"

using namespace flow;

namespace {

MachineUse with_gpus(double gpus) {
  MachineUse use;
  use.there = {{{0, 100'000}, gpus}};
  return use;
}

}  // namespace

TEST_CASE("GPUs are free without a queue while tasks run and none waits for a GPU") {
  MachineUse use = with_gpus(4);
  CHECK(free_gpus(use).without_queue_ms == 0);
  use.worked = {{1000, 2000}};
  CHECK(free_gpus(use).without_queue_ms == Approx(4 * 1000));
  use.held = {{{900, 1500}, 1}, {{1000, 1500}, 0.5}};
  CHECK(free_gpus(use).without_queue_ms == Approx(2.5 * 500 + 4 * 500));
  CHECK(free_gpus(use).fragmented_ms == 0);
  use.wanted = {{1400, 1600}};
  CHECK(free_gpus(use).without_queue_ms == Approx(2.5 * 400 + 4 * 400));
  CHECK(free_gpus(use).fragmented_ms == Approx(2.5 * 100 + 4 * 100));
}

TEST_CASE("time in which nothing ran or waited does not count, and overlaps count once") {
  MachineUse use = with_gpus(2);
  use.worked = {{5000, 6000}, {0, 1000}, {500, 1000}};
  CHECK(free_gpus(use).without_queue_ms == Approx(2 * 2000));
  use.wanted = {{0, 800}, {700, 1000}, {2000, 3000}};  // the last one of another run
  CHECK(free_gpus(use).without_queue_ms == Approx(2 * 1000));
  CHECK(free_gpus(use).fragmented_ms == Approx(2 * 1000));
}

TEST_CASE("GPUs count while their machine is there") {
  MachineUse use;
  use.there = {{{0, 4000}, 1}, {{2000, 8000}, 2}};
  use.worked = {{1000, 10'000}};
  use.held = {{{3000, 5000}, 2}};
  CHECK(free_gpus(use).without_queue_ms == Approx(1 * 1000 + 3 * 1000 + 1 * 1000 + 2 * 3000));
}

TEST_CASE("more than the GPUs that are there are not free") {
  MachineUse use = with_gpus(1);
  use.worked = {{0, 1000}};
  use.held = {{{0, 1000}, 2}};  // the machine had more then
  CHECK(free_gpus(use).without_queue_ms == 0);
  use.worked.push_back({2000, 1000});  // the clock was set back
  CHECK(free_gpus(use).without_queue_ms == 0);
}
