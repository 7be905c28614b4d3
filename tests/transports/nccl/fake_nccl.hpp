// The side door of the libnccl of the tests: what goes wrong there, and what was done wrong with
// it.
#pragma once
#include <atomic>
#include <cstdint>

namespace flow {

/// What a fake cudaStream_t points to: calls are done when `done` has come to the number queued.
struct FakeStream {
  std::atomic<uint64_t> queued{0}, done{0};
  std::atomic<bool> is_selected{false};
};

struct FakeNccl {
  std::atomic<int> init_polls{3};  // "in progress" so often before a communicator is up
  std::atomic<bool> init_hangs{false};
  std::atomic<int> init_error{0};         // told by the call itself
  std::atomic<uint64_t> failing_call{0};  // the nth of each rank fails, as one of another rank does
  std::atomic<uint64_t> hanging_call{0};  // the nth of each rank is never done
  std::atomic<bool> queue_hangs{false};   // calls stay "in progress"
  // Counted:
  std::atomic<int> made{0}, aborted{0}, destroyed{0}, finalized{0}, shrunk{0};
  std::atomic<const char*> misuse{nullptr};  // the first thing that a real one would not have taken
};

using FakeNcclOf = FakeNccl* (*)();  // the symbol "fake_nccl"

}  // namespace flow
