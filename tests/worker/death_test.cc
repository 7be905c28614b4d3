// What the exit status of an executor says about its attempt.
#include <catch2/catch.hpp>

#include "engine/core/retry.hpp"
#include "engine/worker/slot.hpp"

using namespace flow;

namespace {

core::Failure death(int code, const std::vector<std::string>& gpus) {
  Slot slot;
  slot.gpus = gpus;
  AssignedAttempt front;
  front.order.task = "train";
  front.errors_tail = {"epoch 3", "p.lua:9: train: cuda:0 failed: uncorrectable ECC error"};
  return death_of(slot, front, code << 8);  // as waitpid returns it
}

}  // namespace

TEST_CASE(
    "a process whose GPU failed ends as a GPU fault, which uses the infrastructure's retry "
    "budget") {
  core::Failure failure = death(kFailedGpuExit, {"GPU-aa11", "GPU-bb22"});
  CHECK(failure.cause == core::Cause::gpu_fault);
  CHECK(core::budget_of(failure.cause) == core::RetryBudget::infrastructure);
  CHECK(failure.message ==
        "a GPU of `train` failed (GPU-aa11, GPU-bb22): p.lua:9: train: cuda:0 failed: "
        "uncorrectable ECC error");
  CHECK(failure.evidence == "epoch 3\np.lua:9: train: cuda:0 failed: uncorrectable ECC error\n");
}

TEST_CASE("a process that broke its own context on a GPU, or has no GPU, uses its own retries") {
  for (const core::Failure& failure :
       {death(kLostGpuExit, {"GPU-aa11"}), death(kFailedGpuExit, {})}) {
    CHECK(failure.cause == core::Cause::exit_code);
    CHECK(core::budget_of(failure.cause) == core::RetryBudget::own);
  }
}

TEST_CASE("a process that broke its own context on a GPU ends with CUDA's message") {
  CHECK(death(kLostGpuExit, {"GPU-aa11"}).message ==
        "the process of `train` can no longer use its GPU and ended: p.lua:9: train: cuda:0 "
        "failed: uncorrectable ECC error");
}
