// Control interface of the fake libnccl: faults to inject, and misuse that was found.
#pragma once
#include <atomic>
#include <cstdint>

namespace flow {

/// Target of a fake cudaStream_t: all calls are done when `done` reaches the number of queued ones.
struct FakeStream {
  std::atomic<uint64_t> queued{0}, done{0};
  std::atomic<bool> is_selected{false};
};

struct FakeNccl {
  std::atomic<int> init_polls{3};  // "in progress" results before a communicator is up
  std::atomic<bool> init_hangs{false};
  std::atomic<int> init_error{0};  // returned by the call itself
  // The nth call of each rank fails, as if another rank had failed.
  std::atomic<uint64_t> failing_call{0};
  std::atomic<uint64_t> hanging_call{0};  // the nth call of each rank never completes
  std::atomic<bool> queue_hangs{false};   // calls stay "in progress"
  // "In progress" results after a call or a group, which real NCCL launches in a thread of its own.
  std::atomic<int> launch_polls{0};
  // Counters:
  std::atomic<int> made{0}, aborted{0}, destroyed{0}, finalized{0}, shrunk{0};
  std::atomic<int> calls{0}, launches{0};    // a launch is a group or a call outside of one
  std::atomic<const char*> misuse{nullptr};  // the first misuse that real NCCL would reject
};

using FakeNcclOf = FakeNccl* (*)();  // the symbol "fake_nccl"

}  // namespace flow
