#include "kernels/cuda/driver_version.hpp"

#include <cstdlib>
#include <fstream>

namespace flow::cuda {
namespace {

std::string version_text(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// The first release of the driver for a CUDA, by NVIDIA's tables; "": unknown here.
std::string first_release(int version) {
  switch (version / 1000) {
    case 12:
      return "525";
    case 13:
      return "580";
    default:
      return "";
  }
}

}  // namespace

std::string old_driver_text(const std::string& release, int supported, int needed) {
  if (supported == 0 || supported >= needed) return "";
  std::string first = first_release(needed);
  std::string text = "driver " + (release.empty() ? "" : release + " ") + "(" +
                     version_text(supported) + "), flow needs ";
  return text + (first.empty() ? version_text(needed) : first + " (" + version_text(needed) + ")");
}

std::string driver_release() {
  const char* named = std::getenv("FLOW_SYSFS");
  std::string release;
  std::ifstream(std::string(named == nullptr ? "/sys" : named) + "/module/nvidia/version") >>
      release;
  return release;
}

}  // namespace flow::cuda
