// Metrics of the process itself and of the machine's GPUs.
#pragma once
#include <vector>

#include "engine/telemetry/metric_text.hpp"
#include "engine/worker/gpu_samples.hpp"

namespace flow {

/// Under the names that Prometheus client libraries use, and the version of flow.
void add_process_metrics(MetricText& out);
/// Nothing without samples. What a GPU does not measure is left out.
void add_gpu_metrics(const std::vector<GpuSample>& gpus, MetricText& out);

}  // namespace flow
