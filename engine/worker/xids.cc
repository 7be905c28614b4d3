#include "engine/worker/xids.hpp"

#include <fmt/format.h>

#include <array>

namespace flow {

namespace {

struct XidMeaning {
  uint32_t xid;
  const char* what;
  bool is_dead;  // whether work on the GPU has failed too
};

// From NVIDIA's catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: the
// Xids whose remedy is a reset of the GPU, a restart of the machine or a repair. Not included are
// those that a program causes, for which Kubernetes' device plugin does not disable a GPU either
// (13, 31, 43, 45, 68 and 109), and those whose remedy is to restart the program.
constexpr std::array kMeanings = std::to_array<XidMeaning>({
    {46, "stopped processing its work", true},
    {48, "has an uncorrectable memory error", true},
    {61, "has a controller that stopped", false},
    {62, "has a controller that halted", true},
    {63, "has retired memory; a reset completes it", false},
    {64, "could not retire memory that has errors", false},
    {74, "has an error on NVLink", false},
    {79, "fell off the bus", true},
    {92, "has corrected too many memory errors", false},
    {94, "had a contained memory error", false},
    {95, "had an uncontained memory error", true},
    {119, "has a system processor that does not answer", true},
    {120, "has a system processor that failed", true},
    {140, "has memory with errors that it did not recover from", true},
    {143, "could not be started", true},
});

}  // namespace

std::optional<GpuError> gpu_error_of(uint32_t xid) {
  if (xid == 0) return GpuError{"is lost to its driver", true};
  for (const XidMeaning& meaning : kMeanings)
    if (meaning.xid == xid)
      return GpuError{fmt::format("{} (Xid {})", meaning.what, xid), meaning.is_dead};
  return std::nullopt;
}

}  // namespace flow
