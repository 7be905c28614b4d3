// The GPUs of a machine, as the driver's management library tells them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace flow {

/// A device that an attempt may be given: a GPU, or an instance of one in MIG mode.
struct Gpu {
  uint32_t index = 0;  ///< of the GPU, as nvidia-smi numbers them
  std::string uuid;    ///< "GPU-…", of an instance "MIG-…"
  std::string name;    ///< its model: "NVIDIA H200"
  std::string pci;     ///< "0000:1b:00.0"
  int64_t memory_bytes = 0;
  int32_t numa = -1;  ///< the NUMA node that it hangs on; -1: unknown
  bool is_mig = false;
  int32_t nvlink = -1;   ///< NVLink joins those of a machine that have one number; -1: no other
  std::string fabric{};  ///< NVLink joins those of one text on all machines: "CLUSTER/CLIQUE"
  /// What it did when it failed, as "fell off the bus (Xid 79)": nothing more is given to it until
  /// its worker, or its engine, starts again. "": it works.
  std::string fault{};
  bool is_dead = false;  ///< and what held it then has ended
  bool operator==(const Gpu&) const = default;
};

/// What of this machine's GPUs a flow may use: those that CUDA_VISIBLE_DEVICES leaves to it.
struct MachineGpus {
  std::vector<Gpu> gpus;              ///< in the order in which CUDA numbers them
  std::string why_none{};             ///< where there are none
  std::vector<std::string> problems;  ///< what of the driver or of a device does not work
};

/// A library of NVIDIA's that kernels load when they first need it.
struct GpuLibrary {
  std::string name;
  bool is_fine = false;  ///< it is there, or left out on purpose
  std::string text;      ///< its version, or what is missing, what that means and what to do
};

}  // namespace flow
