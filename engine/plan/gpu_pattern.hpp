// Which GPUs suit a task. Whether they are free is the core's to say.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"
#include "flow/gpu.hpp"

namespace flow {

constexpr int32_t kWholeGpuMilli = 1000;

/// What an attempt takes of GPUs: `milli` / 1000 whole ones, or a share of one.
struct GpuRequest {
  int32_t milli = 0;
  int64_t memory_bytes = 0;  // of each
  std::string model;         // pattern
  auto operator<=>(const GpuRequest&) const = default;
  bool is_share() const { return milli < kWholeGpuMilli; }
  size_t count() const {
    return static_cast<size_t>((milli + kWholeGpuMilli - 1) / kWholeGpuMilli);
  }
};
GpuRequest gpu_request(const Resources& resources);

/// Whether one of the pattern's alternatives, "H200|A100*80GB", stands in the name as whole words:
/// "A10" is no A100. `*` is any text. Case does not matter.
bool matches_model(std::string_view pattern, std::string_view name);
/// Whether the device is such as is asked for. An instance of a GPU is for who asks for one or for
/// a part: a process sees one instance only.
bool is_such(const GpuRequest& request, const Gpu& gpu);
/// And it has not failed.
bool suits(const GpuRequest& request, const Gpu& gpu);

/// Whether anything that the plan runs, or may call, asks for one: else nobody need look for them.
bool may_ask_for_gpus(const Plan& plan);

/// What the machine can't give a task, as a clause ("asks for gpus = 2, and this machine has 1:
/// …"), or "". `why_none` says why it has none.
std::string gpu_unsatisfiable_reason(const Resources& resources, const std::vector<Gpu>& gpus,
                                     const std::string& why_none);
/// "gpus = 2 with gpu = \"H200\" and gpu_memory = 80 GiB"
std::string words_of(const GpuRequest& request);
/// "GPU 0 (NVIDIA H200, 139 GiB)", of one that failed also what it did
std::string words_of(const Gpu& gpu);

}  // namespace flow
