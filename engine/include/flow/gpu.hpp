// The GPUs of a machine and their faults. NVML, the driver's management library, reports the GPUs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace flow {

/// A device that can be assigned to an attempt: a GPU, or a MIG instance of one.
struct Gpu {
  uint32_t index = 0;        ///< index of the GPU in nvidia-smi
  std::string uuid;          ///< "GPU-…"; of a MIG instance "MIG-…"
  std::string name;          ///< the model: "NVIDIA H200"
  std::string pci;           ///< "0000:1b:00.0"
  int64_t memory_bytes = 0;  ///< all of the device's memory
  int32_t numa = -1;         ///< NUMA node; -1: unknown
  bool is_mig = false;
  /// GPUs of a machine with the same number are connected by NVLink, directly or through others;
  /// -1: connected to no other GPU of the machine.
  int32_t nvlink = -1;
  std::string fabric{};  ///< GPUs of all machines with the same text share NVLink: "CLUSTER/CLIQUE"
  /// The fault that took the GPU out of use until its worker restarts, such as "fell off the bus
  /// (Xid 79)". "": no fault was reported.
  std::string fault{};
  /// The fault also fails the attempts that use the GPU. If false, they continue, and the GPU gets
  /// no new attempt.
  bool is_dead = false;
  bool operator==(const Gpu&) const = default;
};

/// The GPUs that were found on this machine.
struct MachineGpus {
  std::vector<Gpu> gpus;   ///< in the order of CUDA_VISIBLE_DEVICES if that was used, else of NVML
  std::string why_none{};  ///< the reason if `gpus` is empty
  std::vector<std::string> problems;  ///< of the driver, single devices or CUDA_VISIBLE_DEVICES
};

/// The state of an NVIDIA library that tasks on GPUs load when they first need it.
struct GpuLibrary {
  std::string name;
  bool is_fine = false;  ///< found, or disabled on purpose
  std::string text;      ///< the version, or what is missing, the effect and how to fix it
};

}  // namespace flow
