// Takes and releases the resources of an attempt.
#pragma once
#include "engine/core/core.hpp"

namespace flow::core {

/// The free resources of an idle worker.
FreeResources all_free(const WorkerInfo& worker);
/// `expected_us` is 0 for an attempt that is not known to be short.
void allocate(FreeResources& free, const SchedulingClass& request, uint32_t expected_us);
void release(FreeResources& free, const SchedulingClass& request, uint32_t expected_us);

}  // namespace flow::core
