// What an engine is started with.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/sched/sched.hpp"
#include "engine/submission/submission.hpp"
#include "engine/telemetry/span_exporter.hpp"
#include "engine/worker/gpu_samples.hpp"
#include "engine/worker/service_fronts.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

struct EngineLoopOptions {
  std::string state_dir;
  std::string executor;                 // path of flow-executor
  int32_t jobs = 1;                     // CPU slots of this machine
  ResourceQuantities custom_resources;  // of this machine
  bool leads_cluster = false;           // workers run the tasks for which this machine has no slots
  bool is_closed = false;               // only workers that this process starts can join
  bool has_successor = false;           // another head will adopt what this one serves
  bool encrypts = false;                // long transfers between ranks of gangs are encrypted
  std::optional<RequestedNodes> requested_nodes;
  uint32_t announced = 0;  // number of workers that will join in all
  core::Time grow_after_ms = core::kGrowAfterMs;
  std::shared_ptr<Builder> builder;  // null: the loop creates one
  /// Milliseconds since the Unix epoch, of a simulated machine. Empty: the system's clocks.
  std::function<core::Time()> clock;
  /// Reaches the fronts of services; it answers by the function. Empty: over their sockets.
  std::function<std::shared_ptr<FrontControl>(ServiceFronts::Post)> fronts;
  /// Receives what this machine's GPUs measure; null: they are not asked.
  std::shared_ptr<GpuSamples> gpu_samples;
  /// Takes the spans of runs; null: none are made.
  std::shared_ptr<SpanExporter> span_exporter;
  /// Called by the thread of the turns when the end of a run is durable, before its listener
  /// leaves, with the environment of its submission; null if this process did not drive it.
  OnRunEnded on_run_ended;
  /// Memory of a simulated machine. 0: what this process may use of its own.
  int64_t memory_bytes = 0;
};

/// EngineLoopOptions::grow_after_ms as the environment variable FLOW_GROW_AFTER has it.
Result<int64_t> grow_after_ms();

}  // namespace flow
