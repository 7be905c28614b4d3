// The GPUs of a machine, as NVML (the driver's management library) reports them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace flow {

/// A device that can be assigned to an attempt: a GPU, or a MIG instance of one.
struct Gpu {
  uint32_t index = 0;  ///< index of the GPU in nvidia-smi
  std::string uuid;    ///< "GPU-…"; of a MIG instance "MIG-…"
  std::string name;    ///< the model: "NVIDIA H200"
  std::string pci;     ///< "0000:1b:00.0"
  int64_t memory_bytes = 0;
  int32_t numa = -1;  ///< NUMA node; -1: unknown
  bool is_mig = false;
  int32_t nvlink = -1;   ///< GPUs of a machine with the same number share NVLink; -1: no NVLink
  std::string fabric{};  ///< GPUs of all machines with the same text share NVLink: "CLUSTER/CLIQUE"
  /// The fault that took the GPU out of use until its worker restarts, such as "fell off the bus
  /// (Xid 79)". "": the GPU works.
  std::string fault{};
  bool is_dead = false;  ///< the fault also ended the attempts that used the GPU
  bool operator==(const Gpu&) const = default;
};

/// The GPUs of this machine that flow may use, within CUDA_VISIBLE_DEVICES.
struct MachineGpus {
  std::vector<Gpu> gpus;              ///< in CUDA's order
  std::string why_none{};             ///< the reason if `gpus` is empty
  std::vector<std::string> problems;  ///< problems of the driver or of single devices
};

/// An NVIDIA library that kernels load on first use.
struct GpuLibrary {
  std::string name;
  bool is_fine = false;  ///< it was found, or is disabled on purpose
  std::string text;      ///< its version; or what is missing, the consequence and the remedy
};

}  // namespace flow
