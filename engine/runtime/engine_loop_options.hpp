// What an engine is started with.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/sched/sched.hpp"
#include "engine/submission/submission.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

struct EngineLoopOptions {
  std::string state_dir;
  std::string executor;                 // path of flow-executor
  int32_t jobs = 1;                     // CPU slots of this machine
  ResourceQuantities custom_resources;  // of this machine
  bool leads_cluster = false;           // workers run what this machine has no slots for
  bool is_closed = false;               // only workers that this process starts can join
  bool encrypts = false;                // ranks of gangs encrypt what is long for each other too
  std::optional<RequestedNodes> requested_nodes;
  uint32_t announced = 0;  // how many workers are to join in all
  core::Time grow_after_ms = core::kGrowAfterMs;
  std::shared_ptr<Builder> builder;  // null: one is made
  /// Milliseconds since the Unix epoch, of a simulated machine. Empty: the system's clocks.
  std::function<core::Time()> clock;
};

/// EngineLoopOptions::grow_after_ms as the environment variable FLOW_GROW_AFTER has it.
Result<int64_t> grow_after_ms();

}  // namespace flow
