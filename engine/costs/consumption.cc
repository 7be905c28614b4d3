#include "engine/costs/consumption.hpp"

#include <algorithm>

namespace flow {

void add_gpu_time(GpuTimes& times, const std::string& model, double milli_ms) {
  auto at = std::ranges::lower_bound(times, model, {}, &GpuTimes::value_type::first);
  if (at == times.end() || at->first != model) at = times.insert(at, {model, 0});
  at->second += milli_ms;
}

void add(Consumption& to, const Consumption& more) {
  to.attempts += more.attempts;
  to.rank_ms += more.rank_ms;
  to.cpu_milli_ms += more.cpu_milli_ms;
  to.memory_byte_ms += more.memory_byte_ms;
  for (const auto& [model, milli_ms] : more.gpus) add_gpu_time(to.gpus, model, milli_ms);
  to.cpu_used_us += more.cpu_used_us;
  to.unmeasured += more.unmeasured;
  to.gpu_stage_milli_ms += more.gpu_stage_milli_ms;
  to.gpu_used_milli_ms += more.gpu_used_milli_ms;
  to.gpu_measured_milli_ms += more.gpu_measured_milli_ms;
  to.gpu_energy_mj += more.gpu_energy_mj;
  if (more.gpu_rank_milli_ms >= 0)
    to.gpu_rank_milli_ms = std::max(to.gpu_rank_milli_ms, 0.0) + more.gpu_rank_milli_ms;
  to.moved_bytes += more.moved_bytes;
}

void merge(std::vector<Consumption>& to, const Consumption& more) {
  auto same = std::ranges::find_if(to, [&](const Consumption& each) {
    return each.outcome == more.outcome && each.labels == more.labels;
  });
  if (same == to.end()) {
    to.push_back(more);
  } else {
    add(*same, more);
  }
}

}  // namespace flow
