#include "engine/executor/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "engine/base/clock.hpp"
#include "kernels/cuda/driver_version.hpp"

namespace flow {

namespace {

// Declarations as in nvml.h. The suffix of a name is the version of the call, which is stable.
using NvmlDevice = void*;
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kXidEvent = 8;
constexpr unsigned kWaitMs = 5000;
constexpr int64_t kSampleMs = 4000;  // less than a wait, so that each wait is followed by a sample
constexpr int kGpuSensor = 0;
constexpr unsigned kPauseS = 1;  // after a failed wait
constexpr unsigned kFabricVersion = sizeof(FabricInfo) | 2u << 24;
constexpr unsigned char kFabricJoined = 3;
constexpr unsigned kLinksMax = 18;
constexpr int kSwitch = 2;
constexpr int kSuccess = 0, kNotFound = 6, kTimeout = 10, kLost = 15;
constexpr unsigned kTextMax = 96;
constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr const char* kKeepGpus = "keep";

struct NvmlFunctions {
  int (*init)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*pci)(NvmlDevice, PciInfo*) = nullptr;
  int (*driver_release)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  // in drivers with MIG
  int (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*mig_count)(NvmlDevice, unsigned*) = nullptr;
  int (*mig_device)(NvmlDevice, unsigned, NvmlDevice*) = nullptr;
  // in drivers with NVLink, NVSwitch and NVLink between machines
  int (*link_state)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*link_end)(NvmlDevice, unsigned, PciInfo*) = nullptr;
  int (*link_end_type)(NvmlDevice, unsigned, int*) = nullptr;
  int (*fabric)(NvmlDevice, FabricInfo*) = nullptr;
  // in drivers that report errors
  int (*new_events)(void**) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long, void*) = nullptr;
  int (*wait_event)(void*, NvmlEvent*, unsigned) = nullptr;
  // not on all GPUs
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*energy)(NvmlDevice, unsigned long long*) = nullptr;
};

template <typename Call>
bool find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  return call != nullptr;
}

/// Loads the functions. Returns the name of a missing one, or "".
std::string load(void* library, NvmlFunctions& functions) {
  std::string lacks;
  auto need = [&](const char* name, auto& call) {
    if (!find(library, name, call) && lacks.empty()) lacks = name;
  };
  need("nvmlInit_v2", functions.init);
  need("nvmlErrorString", functions.error_text);
  need("nvmlDeviceGetCount_v2", functions.count);
  need("nvmlDeviceGetHandleByIndex_v2", functions.device);
  need("nvmlDeviceGetUUID", functions.uuid);
  need("nvmlDeviceGetName", functions.name);
  need("nvmlDeviceGetMemoryInfo", functions.memory);
  need("nvmlDeviceGetPciInfo_v3", functions.pci);
  find(library, "nvmlSystemGetDriverVersion", functions.driver_release);
  find(library, "nvmlSystemGetCudaDriverVersion_v2", functions.cuda_version);
  find(library, "nvmlDeviceGetMigMode", functions.mig_mode);
  find(library, "nvmlDeviceGetMaxMigDeviceCount", functions.mig_count);
  find(library, "nvmlDeviceGetMigDeviceHandleByIndex", functions.mig_device);
  find(library, "nvmlDeviceGetNvLinkState", functions.link_state);
  find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", functions.link_end);
  find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", functions.link_end_type);
  find(library, "nvmlDeviceGetGpuFabricInfoV", functions.fabric);
  find(library, "nvmlEventSetCreate", functions.new_events);
  find(library, "nvmlDeviceRegisterEvents", functions.register_events);
  find(library, "nvmlEventSetWait_v2", functions.wait_event);
  find(library, "nvmlDeviceGetUtilizationRates", functions.utilization);
  find(library, "nvmlDeviceGetTemperature", functions.temperature);
  find(library, "nvmlDeviceGetPowerUsage", functions.power);
  find(library, "nvmlDeviceGetTotalEnergyConsumption", functions.energy);
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

/// FLOW_SYSFS: a replacement for /sys in tests.
int32_t numa_of(const std::string& pci) {
  const char* named = std::getenv("FLOW_SYSFS");
  std::string root = named == nullptr ? "/sys" : named;
  int32_t node = -1;
  std::ifstream(root + "/bus/pci/devices/" + pci + "/numa_node") >> node;
  return node;
}

class NvmlMachine {
 public:
  explicit NvmlMachine(const NvmlFunctions& functions) : functions_(functions) {}

  MachineGpus list_gpus() {
    unsigned count = 0;
    if (!succeeds("be started", functions_.init()) ||
        !succeeds("count the GPUs", functions_.count(&count))) {
      inventory_.why_none = inventory_.problems.front();
      return std::move(inventory_);
    }
    has_counted_ = true;
    for (unsigned index = 0; index < count; index++) {
      what_ = fmt::format("GPU {}: ", index);
      add(index);
    }
    join();
    if (!inventory_.gpus.empty()) return std::move(inventory_);
    inventory_.why_none = count == 0 ? "the NVIDIA driver knows no GPU"
                          : inventory_.problems.empty()
                              ? "its GPUs are in MIG mode and have no instance"
                              : inventory_.problems.front();
    return std::move(inventory_);
  }

  /// Why flow's kernels cannot run on these GPUs: "" unless the driver is known to be too old.
  std::string old_driver() const {
    char release[kTextMax] = "";
    int version = 0;
    if (!functions_.cuda_version || functions_.cuda_version(&version) != kSuccess) return "";
    if (functions_.driver_release) functions_.driver_release(release, sizeof release);
    return cuda::old_driver_text(release, version, cuda::needed_driver());
  }

  /// Whether the driver responds at all.
  bool has_counted() const { return has_counted_; }

  /// Watches the GPUs that list_gpus() found, and measures those of `uuids`.
  std::string watch(const std::vector<Gpu>& gpus, const std::vector<std::string>& uuids,
                    const NvmlListeners& listeners) {
    const OnXid& on_xid = listeners.on_xid;
    void* events = nullptr;
    bool can_watch = functions_.new_events && functions_.register_events && functions_.wait_event;
    if (!can_watch) return "the NVIDIA driver is too old to report errors";
    if (int status = functions_.new_events(&events); status != kSuccess) return refusal(status);
    int refused = kSuccess;
    std::set<uint32_t> watched;
    for (const auto& [index, device] : devices_) {
      int status = functions_.register_events(device, kXidEvent, events);
      if (status == kSuccess) watched.insert(index);
      if (status != kSuccess) refused = status;
    }
    if (watched.empty()) return refusal(refused);
    std::set<uint32_t> measured = indices_of(gpus, uuids);
    int64_t sampled_ms = -kSampleMs;
    while (true) {
      if (listeners.on_sample && monotonic_us() / 1000 - sampled_ms >= kSampleMs) {
        for (uint32_t index : measured) listeners.on_sample(sample_of(index));
        sampled_ms = monotonic_us() / 1000;
      }
      NvmlEvent event{};
      int status = functions_.wait_event(events, &event, kWaitMs);
      if (status == kSuccess && event.type == kXidEvent) report_event(gpus, event, on_xid);
      if (status == kSuccess || status == kTimeout) continue;
      report_lost(gpus, on_xid);
      ::sleep(kPauseS);
    }
  }

  /// Of those of `uuids` that are whole GPUs. The driver measures no instances.
  std::vector<GpuSample> measure(const std::vector<Gpu>& gpus,
                                 const std::vector<std::string>& uuids) const {
    std::vector<GpuSample> samples;
    for (const Gpu& gpu : gpus) {
      bool is_meant = std::find(uuids.begin(), uuids.end(), gpu.uuid) != uuids.end();
      if (is_meant && !gpu.is_mig) samples.push_back(sample_of(gpu.index));
    }
    return samples;
  }

 private:
  using OnXid = std::function<void(const std::string& uuid, uint32_t xid)>;

  static std::set<uint32_t> indices_of(const std::vector<Gpu>& gpus,
                                       const std::vector<std::string>& uuids) {
    std::set<uint32_t> indices;
    for (const Gpu& gpu : gpus)
      if (std::find(uuids.begin(), uuids.end(), gpu.uuid) != uuids.end()) indices.insert(gpu.index);
    return indices;
  }

  GpuSample sample_of(uint32_t index) const {
    NvmlDevice device = devices_.at(index);
    GpuSample sample;
    sample.index = index;
    char uuid[kTextMax] = "";
    if (functions_.uuid(device, uuid, sizeof uuid) == kSuccess) sample.uuid = uuid;
    NvmlUtilization used{};
    if (functions_.utilization && functions_.utilization(device, &used) == kSuccess)
      sample.utilization_percent = used.gpu;
    NvmlMemory memory{};
    if (functions_.memory(device, &memory) == kSuccess) {
      sample.memory_used_bytes = static_cast<int64_t>(memory.used);
      sample.memory_bytes = static_cast<int64_t>(memory.total);
    }
    unsigned number = 0;
    if (functions_.temperature && functions_.temperature(device, kGpuSensor, &number) == kSuccess)
      sample.temperature_celsius = static_cast<int32_t>(number);
    if (functions_.power && functions_.power(device, &number) == kSuccess)
      sample.power_milliwatts = number;
    unsigned long long energy = 0;
    if (functions_.energy && functions_.energy(device, &energy) == kSuccess)
      sample.energy_millijoules = energy;
    return sample;
  }

  std::string refusal(int status) const {
    return fmt::format("the NVIDIA driver does not report errors: {} (status {})",
                       functions_.error_text(status), status);
  }

  void report_xid(const std::vector<Gpu>& gpus, uint32_t index, uint32_t xid, const OnXid& on_xid) {
    for (const Gpu& gpu : gpus)
      if (gpu.index == index) on_xid(gpu.uuid, xid);
  }

  // All instances of the GPU are reported: they share its memory and its bus.
  void report_event(const std::vector<Gpu>& gpus, const NvmlEvent& event, const OnXid& on_xid) {
    for (const auto& [index, device] : devices_)
      if (device == event.device)
        report_xid(gpus, index, static_cast<uint32_t>(event.data), on_xid);
  }

  // A wait returns this error when any of the GPUs is gone.
  void report_lost(const std::vector<Gpu>& gpus, const OnXid& on_xid) {
    for (const auto& [index, device] : devices_) {
      NvmlMemory memory{};
      bool is_lost = functions_.memory(device, &memory) == kLost;
      if (is_lost && lost_.insert(index).second) report_xid(gpus, index, 0, on_xid);
    }
  }

  bool succeeds(const char* what, int status) {
    if (status == kSuccess) return true;
    inventory_.problems.push_back(
        fmt::format("{}the NVIDIA driver's library can't {}: {} (status {})", what_, what,
                    functions_.error_text(status), status));
    return false;
  }

  void add(unsigned index) {
    NvmlDevice device = nullptr;
    PciInfo pci{};
    if (!succeeds("open it", functions_.device(index, &device))) return;
    devices_[index] = device;
    if (!succeeds("return its PCI address", functions_.pci(device, &pci))) return;
    pci.id[sizeof pci.id - 1] = '\0';
    Gpu gpu;
    gpu.index = index;
    gpu.pci = sysfs_name(pci.id);
    gpu.numa = numa_of(gpu.pci);
    unsigned is_mig = 0, pending = 0;
    bool supports_mig = functions_.mig_mode && functions_.mig_count && functions_.mig_device;
    // A GPU without MIG returns "not supported".
    if (!supports_mig || functions_.mig_mode(device, &is_mig, &pending) != kSuccess) is_mig = 0;
    if (is_mig == 0) {  // MIG instances have no NVLink
      gpu.fabric = fabric_of(device);
      ends_[gpu.index] = link_ends(device);
      return add_device(device, std::move(gpu));
    }
    gpu.is_mig = true;
    unsigned instances_max = 0;
    if (!succeeds("count its instances", functions_.mig_count(device, &instances_max))) return;
    for (unsigned i = 0; i < instances_max; i++) {
      NvmlDevice instance = nullptr;
      int status = functions_.mig_device(device, i, &instance);
      if (status == kNotFound) continue;
      if (succeeds("open an instance", status)) add_device(instance, gpu);
    }
  }

  void add_device(NvmlDevice device, Gpu gpu) {
    char uuid[kTextMax] = "", name[kTextMax] = "";
    NvmlMemory memory{};
    if (!succeeds("return its UUID", functions_.uuid(device, uuid, sizeof uuid)) ||
        !succeeds("return its name", functions_.name(device, name, sizeof name)) ||
        !succeeds("return its memory", functions_.memory(device, &memory)))
      return;
    gpu.uuid = uuid;
    gpu.name = name;
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    inventory_.gpus.push_back(std::move(gpu));
  }

  /// The remote ends of its active links: PCI names of GPUs, or a name for the switches.
  std::set<std::string> link_ends(NvmlDevice device) const {
    std::set<std::string> ends;
    if (!functions_.link_state || !functions_.link_end) return ends;
    for (unsigned link = 0; link < kLinksMax; link++) {
      unsigned is_up = 0;
      int type = -1;
      PciInfo pci{};
      if (functions_.link_state(device, link, &is_up) != kSuccess || is_up == 0) continue;
      if (functions_.link_end_type) functions_.link_end_type(device, link, &type);
      if (type == kSwitch) {
        ends.insert(kSwitches);
        continue;
      }
      if (functions_.link_end(device, link, &pci) != kSuccess) continue;
      pci.id[sizeof pci.id - 1] = '\0';
      ends.insert(sysfs_name(pci.id));
    }
    return ends;
  }

  std::string fabric_of(NvmlDevice device) const {
    FabricInfo info{};
    info.version = kFabricVersion;
    bool is_joined = functions_.fabric && functions_.fabric(device, &info) == kSuccess &&
                     info.state == kFabricJoined && info.status == kSuccess;
    std::string cluster;
    for (unsigned char byte : info.cluster) cluster += fmt::format("{:02x}", byte);
    // A machine with its own switches belongs to no cluster.
    bool is_any = cluster.find_first_not_of('0') != std::string::npos;
    return is_joined && is_any ? fmt::format("{}/{}", cluster, info.clique) : "";
  }

  bool are_joined(const Gpu& a, const Gpu& b) const {
    if (a.is_mig || b.is_mig) return false;
    if (!a.fabric.empty() && a.fabric == b.fabric) return true;
    const std::set<std::string>&from_a = ends_.at(a.index), &from_b = ends_.at(b.index);
    if (from_a.contains(b.pci) || from_b.contains(a.pci)) return true;
    return from_a.contains(kSwitches) && from_b.contains(kSwitches);
  }

  /// Numbers connected components: each GPU gets the index of the first GPU that it reaches.
  void join() {
    std::vector<Gpu>& gpus = inventory_.gpus;
    for (size_t first = 0; first < gpus.size(); first++) {
      if (gpus[first].nvlink >= 0) continue;
      std::vector<size_t> island{first};
      for (size_t i = 0; i < island.size(); i++) {
        for (size_t other = 0; other < gpus.size(); other++) {
          bool is_in = std::find(island.begin(), island.end(), other) != island.end();
          if (!is_in && are_joined(gpus[island[i]], gpus[other])) island.push_back(other);
        }
      }
      if (island.size() == 1) continue;
      for (size_t at : island) gpus[at].nvlink = static_cast<int32_t>(gpus[first].index);
    }
  }

  static constexpr const char* kSwitches = "switches";

  const NvmlFunctions& functions_;
  std::string what_;
  std::map<uint32_t, std::set<std::string>> ends_;  // by index of the GPU, as are these
  std::map<uint32_t, NvmlDevice> devices_;
  std::set<uint32_t> lost_;
  bool has_counted_ = false;
  MachineGpus inventory_;
};

}  // namespace

namespace {

/// Opens the library. Returns why it cannot be used, or ""; a missing library on a machine with
/// GPUs is added to the problems.
std::string open_library(NvmlFunctions& functions, MachineGpus& none) {
  const char* named = std::getenv(kNvmlVariable);
  bool is_named = named != nullptr && *named != '\0';
  void* library = ::dlopen(is_named ? named : kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr && !is_named)
    return fmt::format("the NVIDIA driver's library {} is not installed", kLibrary);
  std::string why;
  if (library == nullptr) {
    why = fmt::format("the library that {} names can't be loaded: {}", kNvmlVariable, ::dlerror());
  } else if (std::string lacks = load(library, functions); !lacks.empty()) {
    why = fmt::format("{} has no {}: its driver is too old", is_named ? named : kLibrary, lacks);
  }
  if (!why.empty()) none.problems = {why};
  return why;
}

}  // namespace

MachineGpus nvml_gpus() {
  MachineGpus none;
  NvmlFunctions functions;
  none.why_none = open_library(functions, none);
  if (!none.why_none.empty()) return none;
  NvmlMachine machine(functions);
  MachineGpus found = machine.list_gpus();
  std::string old = found.gpus.empty() ? "" : machine.old_driver();
  if (old.empty()) return found;
  const char* kept = std::getenv(kOldDriverVariable);
  if (kept != nullptr && std::string_view(kept) == kKeepGpus) {
    found.problems.push_back(fmt::format("{}: tasks in Lua cannot use the GPUs", old));
    return found;
  }
  none.why_none = fmt::format(
      "{}: its GPUs are not used. Update the driver, or set {}={} if only commands use them, with "
      "a CUDA of their own",
      old, kOldDriverVariable, kKeepGpus);
  none.problems = std::move(found.problems);
  none.problems.push_back(none.why_none);
  return none;
}

std::string nvml_watch(const std::vector<std::string>& uuids, const NvmlListeners& listeners) {
  MachineGpus none;
  NvmlFunctions functions;
  std::string why = open_library(functions, none);
  if (!why.empty()) return why;
  NvmlMachine machine(functions);
  MachineGpus found = machine.list_gpus();
  for (const std::string& uuid : uuids) {
    bool is_there = std::any_of(found.gpus.begin(), found.gpus.end(),
                                [&](const Gpu& gpu) { return gpu.uuid == uuid; });
    if (machine.has_counted() && !is_there) listeners.on_xid(uuid, 0);
  }
  return found.gpus.empty() ? found.why_none : machine.watch(found.gpus, uuids, listeners);
}

void nvml_measure(const std::function<std::optional<std::vector<std::string>>()>& next,
                  const std::function<void(const std::vector<GpuSample>&)>& on_samples) {
  MachineGpus none;
  NvmlFunctions functions;
  if (!open_library(functions, none).empty()) return;
  NvmlMachine machine(functions);
  MachineGpus found = machine.list_gpus();
  while (auto uuids = next()) on_samples(machine.measure(found.gpus, *uuids));
}

}  // namespace flow
