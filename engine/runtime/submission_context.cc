#include "engine/runtime/submission_context.hpp"

#include <utility>

#include "engine/plan/gpu_pattern.hpp"
#include "engine/process/cgroup.hpp"

namespace flow {

Result<Capacity> capacity_for(const Plan& plan, EngineLoop& engine_loop, Purpose purpose) {
  Capacity capacity;
  capacity.is_cluster = engine_loop.parts().options.leads_cluster;
  capacity.requested = engine_loop.parts().options.requested_nodes;
  capacity.announced = engine_loop.parts().options.announced;
  capacity.is_closed = !capacity.is_cluster || engine_loop.parts().options.is_closed;
  if (capacity.requested) return capacity;
  if (capacity.is_cluster) {
    engine_loop.inspect([&](const core::State& state, InputResolver&) {
      for (const core::WorkerState& worker : state.workers) {
        if (!worker.is_lost() && worker.info.cpus_milli > 0)
          capacity.workers.push_back(worker.info);
      }
    });
    return capacity;
  }
  core::WorkerInfo own;
  own.cpus_milli = engine_loop.parts().options.jobs * 1000;
  own.custom_resources = engine_loop.parts().options.custom_resources;
  own.memory_bytes = usable_memory_bytes();
  capacity.has_searched_gpus = purpose != Purpose::preview;
  if (capacity.has_searched_gpus && may_request_gpus(plan)) {
    auto gpus = engine_loop.parts().gpus.gpus();
    FLOW_TRY(gpus);
    capacity.gpus = std::move(*gpus);
    own.gpus = capacity.gpus.gpus;
  }
  capacity.workers.push_back(std::move(own));
  return capacity;
}

SubmissionContext submission_context(EngineLoop& engine_loop, Purpose purpose, Blobs& staging) {
  return {
      .purpose = purpose,
      .builder = *engine_loop.parts().builder,
      .store = engine_loop.parts().store,
      .blobs = engine_loop.parts().blobs,
      .staging = staging,
      .native_version =
          [&engine_loop](const std::string& name) {
            return engine_loop.parts().native.version(name);
          },
      .operations_library =
          [&engine_loop](const std::string& name) {
            return engine_loop.parts().operations.path_of(name);
          },
      .capacity = [&engine_loop,
                   purpose](const Plan& plan) { return capacity_for(plan, engine_loop, purpose); },
      .now = engine_loop.parts().clock.now(),
      .new_run_id = [&engine_loop] { return engine_loop.parts().stored_runs.new_id(); },
  };
}

Result<Prepared> prepare(EngineLoop& engine_loop, const Submission& submission, Purpose purpose) {
  return prepare(submission_context(engine_loop, purpose, engine_loop.parts().blobs), submission);
}

}  // namespace flow
