#include "engine/runtime/submission_context.hpp"

#include <utility>

#include "engine/plan/gpu_pattern.hpp"
#include "engine/process/cgroup.hpp"

namespace flow {

Result<Machine> machine_for(const Plan& plan, Driver& driver, Purpose purpose) {
  Machine machine;
  machine.is_cluster = driver.options().leads_cluster;
  machine.asked = driver.options().asked_nodes;
  machine.announced = driver.options().announced;
  machine.is_closed = !machine.is_cluster || driver.options().is_closed;
  if (machine.asked) return machine;
  if (machine.is_cluster) {
    driver.inspect([&](const core::State& state, Resolver&) {
      for (const core::WorkerState& host : state.workers) {
        if (!host.is_lost() && host.info.cpus_milli > 0) machine.workers.push_back(host.info);
      }
    });
    return machine;
  }
  core::WorkerInfo own;
  own.cpus_milli = driver.options().jobs * 1000;
  own.custom_resources = driver.options().custom_resources;
  own.memory_bytes = usable_memory_bytes();
  machine.has_sought_gpus = purpose != Purpose::look;
  if (machine.has_sought_gpus && may_ask_for_gpus(plan)) {
    auto gpus = driver.gpus();
    FLOW_TRY(gpus);
    machine.gpus = std::move(*gpus);
    own.gpus = machine.gpus.gpus;
  }
  machine.workers.push_back(std::move(own));
  return machine;
}

SubmissionContext submission_context(Driver& driver, Purpose purpose, Blobs& intake) {
  return {
      .purpose = purpose,
      .builder = driver.builder(),
      .store = driver.store(),
      .blobs = driver.blobs(),
      .intake = intake,
      .native_version = [&driver](const std::string& name) { return driver.native_version(name); },
      .operations_library =
          [&driver](const std::string& name) { return driver.operations_library(name); },
      .machine = [&driver,
                  purpose](const Plan& plan) { return machine_for(plan, driver, purpose); },
      .now = driver.clock().now(),
      .new_run_id = [&driver] { return driver.new_run_id(); },
  };
}

Result<Prepared> prepare(Driver& driver, const Submission& submission, Purpose purpose) {
  return prepare(submission_context(driver, purpose, driver.blobs()), submission);
}

}  // namespace flow
