#include "engine/executor/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace flow {

namespace {

// As nvml.h has them. A name's ending is the version of the call, which never changes again.
using Device = void*;
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0, kNotFound = 6;
constexpr unsigned kTextMax = 96;
constexpr const char* kLibrary = "libnvidia-ml.so.1";

struct Calls {
  int (*init)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  // of drivers that know MIG
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  int (*mig_count)(Device, unsigned*) = nullptr;
  int (*mig_device)(Device, unsigned, Device*) = nullptr;
};

template <typename Call>
bool find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  return call != nullptr;
}

/// The name of what the library lacks, or "".
std::string load(void* library, Calls& calls) {
  std::string lacks;
  auto need = [&](const char* name, auto& call) {
    if (!find(library, name, call) && lacks.empty()) lacks = name;
  };
  need("nvmlInit_v2", calls.init);
  need("nvmlErrorString", calls.error_text);
  need("nvmlDeviceGetCount_v2", calls.count);
  need("nvmlDeviceGetHandleByIndex_v2", calls.device);
  need("nvmlDeviceGetUUID", calls.uuid);
  need("nvmlDeviceGetName", calls.name);
  need("nvmlDeviceGetMemoryInfo", calls.memory);
  need("nvmlDeviceGetPciInfo_v3", calls.pci);
  find(library, "nvmlDeviceGetMigMode", calls.mig_mode);
  find(library, "nvmlDeviceGetMaxMigDeviceCount", calls.mig_count);
  find(library, "nvmlDeviceGetMigDeviceHandleByIndex", calls.mig_device);
  return lacks;
}

/// As sysfs names it: "00000000:1B:00.0" is "0000:1b:00.0".
std::string sysfs_name(std::string id) {
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr size_t kDomain = 4;
  size_t colon = id.find(':');
  return colon != std::string::npos && colon > kDomain ? id.substr(colon - kDomain) : id;
}

int32_t numa_of(const std::string& pci) {
  int32_t node = -1;
  std::ifstream("/sys/bus/pci/devices/" + pci + "/numa_node") >> node;
  return node;
}

class Machine {
 public:
  explicit Machine(const Calls& calls) : calls_(calls) {}

  MachineGpus look() {
    unsigned count = 0;
    if (!succeeds("be started", calls_.init()) ||
        !succeeds("count the GPUs", calls_.count(&count))) {
      found_.why_none = found_.problems.front();
      return std::move(found_);
    }
    for (unsigned index = 0; index < count; index++) {
      what_ = fmt::format("GPU {}: ", index);
      add(index);
    }
    if (!found_.gpus.empty()) return std::move(found_);
    found_.why_none = count == 0                ? "the NVIDIA driver knows no GPU"
                      : found_.problems.empty() ? "its GPUs are in MIG mode and have no instance"
                                                : found_.problems.front();
    return std::move(found_);
  }

 private:
  bool succeeds(const char* what, int status) {
    if (status == kSuccess) return true;
    found_.problems.push_back(fmt::format("{}the NVIDIA driver's library can't {}: {} (status {})",
                                          what_, what, calls_.error_text(status), status));
    return false;
  }

  void add(unsigned index) {
    Device device = nullptr;
    PciInfo pci{};
    if (!succeeds("open it", calls_.device(index, &device))) return;
    if (!succeeds("tell its place", calls_.pci(device, &pci))) return;
    pci.id[sizeof pci.id - 1] = '\0';
    Gpu gpu;
    gpu.index = index;
    gpu.pci = sysfs_name(pci.id);
    gpu.numa = numa_of(gpu.pci);
    unsigned is_mig = 0, pending = 0;
    bool knows_mig = calls_.mig_mode && calls_.mig_count && calls_.mig_device;
    // What has no MIG mode says that it does not support it.
    if (!knows_mig || calls_.mig_mode(device, &is_mig, &pending) != kSuccess) is_mig = 0;
    if (is_mig == 0) return add_device(device, std::move(gpu));
    gpu.is_mig = true;
    unsigned instances_max = 0;
    if (!succeeds("count its instances", calls_.mig_count(device, &instances_max))) return;
    for (unsigned i = 0; i < instances_max; i++) {
      Device instance = nullptr;
      int status = calls_.mig_device(device, i, &instance);
      if (status == kNotFound) continue;
      if (succeeds("open an instance", status)) add_device(instance, gpu);
    }
  }

  void add_device(Device device, Gpu gpu) {
    char uuid[kTextMax] = "", name[kTextMax] = "";
    Memory memory{};
    if (!succeeds("tell its UUID", calls_.uuid(device, uuid, sizeof uuid)) ||
        !succeeds("tell its name", calls_.name(device, name, sizeof name)) ||
        !succeeds("tell its memory", calls_.memory(device, &memory)))
      return;
    gpu.uuid = uuid;
    gpu.name = name;
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    found_.gpus.push_back(std::move(gpu));
  }

  const Calls& calls_;
  std::string what_;
  MachineGpus found_;
};

}  // namespace

MachineGpus nvml_gpus() {
  const char* named = std::getenv(kNvmlVariable);
  bool is_named = named != nullptr && *named != '\0';
  MachineGpus none;
  void* library = ::dlopen(is_named ? named : kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr && !is_named) {
    none.why_none = fmt::format("the NVIDIA driver's library {} is not here", kLibrary);
    return none;
  }
  if (library == nullptr) {
    none.why_none =
        fmt::format("the library that {} names can't be loaded: {}", kNvmlVariable, ::dlerror());
    none.problems = {none.why_none};
    return none;
  }
  Calls calls;
  std::string lacks = load(library, calls);
  if (lacks.empty()) return Machine(calls).look();
  none.why_none =
      fmt::format("{} has no {}: its driver is too old", is_named ? named : kLibrary, lacks);
  none.problems = {none.why_none};
  return none;
}

}  // namespace flow
