// A tool for NVTX: NVTX_INJECTION64_PATH names this library. It appends each range of the domain
// `flow` to the file of FLOW_TEST_RANGES: "PID push NAME" and "PID pop", one per line.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

int domain;  // its address is the handle of `flow`

/// Of the process at its start: an attempt has another environment.
std::string& path_at_start() {
  static std::string path;
  return path;
}

void record(const std::string& what) {
  const char* own = std::getenv("FLOW_TEST_RANGES");
  std::string path = own != nullptr ? own : path_at_start();
  if (path.empty()) return;
  std::string line = std::to_string(::getpid()) + " " + what + "\n";
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  bool is_written = file >= 0 && ::write(file, line.data(), line.size()) >= 0;
  if (!is_written) std::abort();
  ::close(file);
}

nvtxDomainHandle_t create_domain(const char* name) {
  bool is_flow = name == std::string("flow");
  return is_flow ? reinterpret_cast<nvtxDomainHandle_t>(&domain) : nullptr;
}
int push(nvtxDomainHandle_t at, const nvtxEventAttributes_t* range) {
  if (at == reinterpret_cast<nvtxDomainHandle_t>(&domain))
    record(std::string("push ") + range->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t at) {
  if (at == reinterpret_cast<nvtxDomainHandle_t>(&domain)) record("pop");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  if (const char* path = std::getenv("FLOW_TEST_RANGES")) path_at_start() = path;
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
  bool has_them = callbacks != nullptr &&
                  callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &size) != 0 &&
                  size > NVTX_CBID_CORE2_DomainCreateA;
  if (!has_them) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
