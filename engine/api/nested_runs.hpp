// Runs that a task starts on the state of its own run. The task holds its CPUs, memory and GPUs
// until the nested run has ended, so the nested run must fit into the remaining resources.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/runtime/engine_loop.hpp"

namespace flow {

/// The attempt that this process belongs to, according to its environment.
struct OuterAttempt {
  core::RunId run;
  std::string task;
  uint32_t attempt = 0;
};
std::optional<OuterAttempt> outer_attempt_of(const EnvironmentVariables& environment);

/// Thread-safe. Holds one entry per unfinished run that an attempt started.
class NestedRuns {
 public:
  /// Held from the check of a run until the run is in the state, so that two runs do not count on
  /// the same resources. Nothing is locked unless an attempt of this state submits the run.
  using Hold = std::unique_lock<std::mutex>;
  /// Error if a task of `plan`, or of an earlier nested run, would wait forever for resources that
  /// are held by tasks that wait for nested runs.
  Result<Hold> check(EngineLoop& engine_loop, const core::RunId& run,
                     std::shared_ptr<const Plan> plan, const EnvironmentVariables& environment);

 private:
  struct Nested {
    OuterAttempt outer;
    std::shared_ptr<const Plan> plan;
  };
  std::mutex mutex_;
  std::map<core::RunId, Nested> runs_;
};

}  // namespace flow
