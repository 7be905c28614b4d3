// Runs that a task starts over the state that its own run is in. The task holds its CPUs, memory
// and GPUs until that run has ended, so the run has to find room beside it.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/runtime/engine_loop.hpp"

namespace flow {

/// The attempt that a process belongs to, as its environment says.
struct OuterAttempt {
  core::RunId run;
  std::string task;
  uint32_t attempt = 0;
};
std::optional<OuterAttempt> outer_attempt_of(const Environment& environment);

/// Thread-safe. Keeps one entry for each unfinished run that an attempt started.
class NestedRuns {
 public:
  /// Held from the check of a run until it is in the state, so that two do not count on the same
  /// room. Nothing is locked where no attempt of the state submits the run.
  using Hold = std::unique_lock<std::mutex>;
  /// An Error where a task of `plan`, or of a nested run before it, would wait for ever for what
  /// the tasks that wait for nested runs hold.
  Result<Hold> check(EngineLoop& engine_loop, const core::RunId& run,
                     std::shared_ptr<const Plan> plan, const Environment& environment);

 private:
  struct Nested {
    OuterAttempt outer;
    std::shared_ptr<const Plan> plan;
  };
  std::mutex mutex_;
  std::map<core::RunId, Nested> runs_;
};

}  // namespace flow
