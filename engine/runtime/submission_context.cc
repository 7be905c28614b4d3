#include "engine/runtime/submission_context.hpp"

#include <utility>

#include "engine/plan/gpu_pattern.hpp"
#include "engine/process/cgroup.hpp"

namespace flow {

Result<Machine> machine_for(const Plan& plan, EngineLoop& engine_loop, Purpose purpose) {
  Machine machine;
  machine.is_cluster = engine_loop.options().leads_cluster;
  machine.asked = engine_loop.options().requested_nodes;
  machine.announced = engine_loop.options().announced;
  machine.is_closed = !machine.is_cluster || engine_loop.options().is_closed;
  if (machine.asked) return machine;
  if (machine.is_cluster) {
    engine_loop.inspect([&](const core::State& state, InputResolver&) {
      for (const core::WorkerState& host : state.workers) {
        if (!host.is_lost() && host.info.cpus_milli > 0) machine.workers.push_back(host.info);
      }
    });
    return machine;
  }
  core::WorkerInfo own;
  own.cpus_milli = engine_loop.options().jobs * 1000;
  own.custom_resources = engine_loop.options().custom_resources;
  own.memory_bytes = usable_memory_bytes();
  machine.has_sought_gpus = purpose != Purpose::look;
  if (machine.has_sought_gpus && may_ask_for_gpus(plan)) {
    auto gpus = engine_loop.gpus();
    FLOW_TRY(gpus);
    machine.gpus = std::move(*gpus);
    own.gpus = machine.gpus.gpus;
  }
  machine.workers.push_back(std::move(own));
  return machine;
}

SubmissionContext submission_context(EngineLoop& engine_loop, Purpose purpose, Blobs& intake) {
  return {
      .purpose = purpose,
      .builder = engine_loop.builder(),
      .store = engine_loop.store(),
      .blobs = engine_loop.blobs(),
      .intake = intake,
      .native_version =
          [&engine_loop](const std::string& name) { return engine_loop.native_version(name); },
      .operations_library =
          [&engine_loop](const std::string& name) { return engine_loop.operations_library(name); },
      .machine = [&engine_loop,
                  purpose](const Plan& plan) { return machine_for(plan, engine_loop, purpose); },
      .now = engine_loop.clock().now(),
      .new_run_id = [&engine_loop] { return engine_loop.new_run_id(); },
  };
}

Result<Prepared> prepare(EngineLoop& engine_loop, const Submission& submission, Purpose purpose) {
  return prepare(submission_context(engine_loop, purpose, engine_loop.blobs()), submission);
}

}  // namespace flow
