// A replacement for the driver's library. FLOW_FAKE_NVML names a text file that describes the
// machine:
//
//   driver RELEASE CUDA           the driver's release, and its CUDA, such as 12040
//   gpu UUID MIB NAME             a GPU; its index is its place
//   mig UUID MIB NAME             an instance of the GPU above, which is then in MIG mode
//   empty-mig                     the GPU above is in MIG mode without an instance
//   lost                          the GPU above can't be opened
//   nvlink A B                    a link from the GPU A to the GPU B, by index, and back
//   nvswitch                      the GPU above has a link to the machine's switches
//   down                          the newest link of the GPU above is down
//   fabric CLUSTER CLIQUE         the GPU above is in a clique of a cluster, named by a letter
//   fail CALL STATUS              that call, as nvml.h names it, gives this status
//   load PERCENT MIB CELSIUS MILLIWATTS   what the GPU above measures; without it, nothing
//   energy                        the GPU above counts its energy, of that power
//   hang / crash                  nvmlInit_v2 does
//   xid N NUMBER                  an Xid of the GPU N, by index. It may be told while a program
//   runs xid N gone                    the driver has lost the GPU N
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Device {
  std::string uuid, name;
  unsigned long long mib = 0;
  unsigned index = 0;
  bool is_mig = false, is_lost = false;
  struct Link {
    int to = -1;  // a GPU's index; -1: a switch
    bool is_up = true;
  };
  std::vector<Link> links;
  char cluster = 0;
  unsigned clique = 0;
  bool is_measured = false, counts_energy = false;
  unsigned percent = 0, celsius = 0, milliwatts = 0;
  unsigned long long used_mib = 0;
  std::vector<Device> instances;
};

struct Story {
  std::vector<Device> gpus;
  std::map<std::string, int> fails;
  bool hangs = false, crashes = false;
  std::string release;
  int cuda = 0;

  Story() {
    const char* path = std::getenv("FLOW_FAKE_NVML");
    std::ifstream file(path == nullptr ? "" : path);
    for (std::string line; std::getline(file, line);) tell(line);
  }

  void tell(const std::string& line) {
    std::istringstream words(line);
    std::string verb, call;
    words >> verb;
    if (verb == "gpu" || verb == "mig") {
      Device device;
      words >> device.uuid >> device.mib >> std::ws;
      std::getline(words, device.name);
      device.index = static_cast<unsigned>(gpus.size());
      if (verb == "gpu") gpus.push_back(device);
      if (verb == "mig") gpus.back().instances.push_back(device);
    }
    if (verb == "driver") words >> release >> cuda;
    if (verb == "mig" || verb == "empty-mig") gpus.back().is_mig = true;
    if (verb == "nvlink") {
      unsigned a = 0, b = 0;
      words >> a >> b;
      gpus.at(a).links.push_back({static_cast<int>(b)});
      gpus.at(b).links.push_back({static_cast<int>(a)});
    }
    if (verb == "nvswitch") gpus.back().links.push_back({});
    if (verb == "down") gpus.back().links.back().is_up = false;
    if (verb == "fabric") words >> gpus.back().cluster >> gpus.back().clique;
    if (verb == "load") {
      Device& gpu = gpus.back();
      gpu.is_measured = true;
      words >> gpu.percent >> gpu.used_mib >> gpu.celsius >> gpu.milliwatts;
    }
    if (verb == "energy") gpus.back().counts_energy = true;
    if (verb == "lost") gpus.back().is_lost = true;
    if (verb == "fail") words >> call >> fails[call];
    hangs = hangs || verb == "hang";
    crashes = crashes || verb == "crash";
  }
};

Story& story() {
  static Story told;
  return told;
}

constexpr int kNotSupported = 3, kNotFound = 6, kTooSmall = 7, kTimeout = 10, kLost = 15;
constexpr unsigned kPollMs = 10;
constexpr unsigned long long kXidEvent = 8;
size_t xids_told;

/// The current contents of the file, in complete lines: index of the GPU, and number or "gone".
std::vector<std::pair<unsigned, std::string>> xids() {
  const char* path = std::getenv("FLOW_FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  std::vector<std::pair<unsigned, std::string>> all;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    std::istringstream words(line);
    std::string verb, what;
    unsigned index = 0;
    if (words >> verb >> index >> what && verb == "xid") all.emplace_back(index, what);
  }
  return all;
}

int status_of(const char* call) {
  auto failed = story().fails.find(call);
  return failed == story().fails.end() ? 0 : failed->second;
}

int copy(const std::string& text, char* to, unsigned size) {
  if (text.size() >= size) return kTooSmall;
  std::strcpy(to, text.c_str());
  return 0;
}

}  // namespace

// As in nvml.h.
extern "C" {

struct FakePci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct FakeFabric {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
struct FakeMemory {
  unsigned long long total, free, used;
};
struct FakeEvent {
  Device* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() {
  if (story().crashes) std::abort();
  while (story().hangs) ::sleep(1);
  return status_of("nvmlInit_v2");
}
const char* nvmlErrorString(int status) {
  if (status == kLost) return "GPU is lost";
  return status == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* to, unsigned size) { return copy(story().release, to, size); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = story().cuda;
  return *version == 0 ? kNotSupported : status_of("nvmlSystemGetCudaDriverVersion_v2");
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(story().gpus.size());
  return status_of("nvmlDeviceGetCount_v2");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  *device = &story().gpus.at(index);
  return (*device)->is_lost ? kLost : status_of("nvmlDeviceGetHandleByIndex_v2");
}
int nvmlDeviceGetUUID(Device* device, char* to, unsigned size) {
  int status = status_of("nvmlDeviceGetUUID");
  return status != 0 ? status : copy(device->uuid, to, size);
}
int nvmlDeviceGetName(Device* device, char* to, unsigned size) {
  int status = status_of("nvmlDeviceGetName");
  return status != 0 ? status : copy(device->name, to, size);
}
int nvmlDeviceGetMemoryInfo(Device* device, FakeMemory* memory) {
  *memory = {device->mib << 20, (device->mib - device->used_mib) << 20, device->used_mib << 20};
  if (device->is_lost) return kLost;
  return status_of("nvmlDeviceGetMemoryInfo");
}
int nvmlDeviceGetPciInfo_v3(Device* device, FakePci* pci) {
  std::snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", 0xF0 + device->index);
  return status_of("nvmlDeviceGetPciInfo_v3");
}
int nvmlDeviceGetNvLinkState(Device* device, unsigned link, unsigned* is_up) {
  if (link >= device->links.size()) return kNotSupported;
  *is_up = device->links[link].is_up ? 1 : 0;
  return status_of("nvmlDeviceGetNvLinkState");
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device* device, unsigned link, int* type) {
  *type = device->links.at(link).to < 0 ? 2 : 0;
  return status_of("nvmlDeviceGetNvLinkRemoteDeviceType");
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device* device, unsigned link, FakePci* pci) {
  int to = device->links.at(link).to;
  std::snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", to < 0 ? 0xA0 : 0xF0 + to);
  return status_of("nvmlDeviceGetNvLinkRemotePciInfo_v2");
}
int nvmlDeviceGetGpuFabricInfoV(Device* device, FakeFabric* fabric) {
  if (fabric->version != (sizeof(FakeFabric) | 2u << 24)) return kNotSupported;
  std::memset(fabric->cluster, device->cluster, sizeof fabric->cluster);
  fabric->status = 0;
  fabric->clique = device->clique;
  fabric->state = 3;
  return status_of("nvmlDeviceGetGpuFabricInfoV");
}
int nvmlEventSetCreate(void** events) {
  *events = &xids_told;
  return status_of("nvmlEventSetCreate");
}
int nvmlDeviceRegisterEvents(Device*, unsigned long long types, void*) {
  return types == kXidEvent ? status_of("nvmlDeviceRegisterEvents") : kNotSupported;
}
int nvmlEventSetWait_v2(void*, FakeEvent* event, unsigned timeout_ms) {
  for (unsigned waited_ms = 0; waited_ms < timeout_ms; waited_ms += kPollMs) {
    auto now = xids();
    if (now.size() > xids_told) {
      auto [index, what] = now[xids_told++];
      Device& device = story().gpus.at(index);
      device.is_lost = what == "gone";
      if (device.is_lost) return kLost;
      *event = {&device, kXidEvent, std::stoull(what), ~0u, ~0u};
      return 0;
    }
    ::usleep(kPollMs * 1000);
  }
  return kTimeout;
}
struct FakeUtilization {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(Device* device, FakeUtilization* used) {
  *used = {device->percent, 0};
  return device->is_measured ? 0 : kNotSupported;
}
int nvmlDeviceGetTemperature(Device* device, int sensor, unsigned* celsius) {
  *celsius = device->celsius;
  return device->is_measured && sensor == 0 ? 0 : kNotSupported;
}
int nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
  *milliwatts = device->milliwatts;
  return device->is_measured ? 0 : kNotSupported;
}
int nvmlDeviceGetTotalEnergyConsumption(Device* device, unsigned long long* millijoules) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  *millijoules = static_cast<unsigned long long>(seconds * device->milliwatts);
  return device->counts_energy ? 0 : kNotSupported;
}
int nvmlDeviceGetMigMode(Device* device, unsigned* current, unsigned* pending) {
  *current = *pending = device->is_mig ? 1 : 0;
  return status_of("nvmlDeviceGetMigMode");
}
int nvmlDeviceGetMaxMigDeviceCount(Device*, unsigned* count) {
  *count = 7;
  return status_of("nvmlDeviceGetMaxMigDeviceCount");
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device* device, unsigned index, Device** instance) {
  if (index >= device->instances.size()) return kNotFound;
  *instance = &device->instances[index];
  return status_of("nvmlDeviceGetMigDeviceHandleByIndex");
}
}
