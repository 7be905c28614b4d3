// Which GPUs match a task's request. The core decides whether they are free.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"
#include "flow/gpu.hpp"

namespace flow {

constexpr int32_t kWholeGpuMilli = 1000;

/// GPU request of an attempt (of each rank): `milli` / 1000 whole GPUs, or a share of one.
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

/// Whether one alternative of the pattern, such as "H200|A100*80GB", occurs in the name as whole
/// words: "A10" does not match A100. `*` matches any text. Case does not matter.
bool matches_model(std::string_view pattern, std::string_view name);
/// Whether the device matches the request. A MIG instance matches only requests for one device or a
/// share, because a process sees one instance only.
bool matches_request(const GpuRequest& request, const Gpu& gpu);
/// As matches_request; and the device has not failed.
bool suits(const GpuRequest& request, const Gpu& gpu);

/// Whether any task of the plan may request a GPU. If not, the driver need not be queried.
bool may_request_gpus(const Plan& plan);

/// The GPU request that the machine cannot satisfy, as a clause ("asks for gpus = 2, and this
/// machine has 1: …"), or "". `why_none` says why the machine has no GPU.
std::string gpu_unsatisfiable_reason(const Resources& resources, const std::vector<Gpu>& gpus,
                                     const std::string& why_none);
/// "gpus = 2 with gpu = \"H200\" and gpu_memory = 80 GiB"
std::string words_of(const GpuRequest& request);
/// "GPU 0 (NVIDIA H200, 139 GiB)", followed by the fault of a failed one.
std::string words_of(const Gpu& gpu);

}  // namespace flow
