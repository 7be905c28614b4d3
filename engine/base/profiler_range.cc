#include "engine/base/profiler_range.hpp"

#ifdef FLOW_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace flow {

#ifdef FLOW_HAS_NVTX

namespace {

/// Null without a tool.
nvtxDomainHandle_t flow_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("flow");
  return domain;
}

}  // namespace

bool has_profiler() { return flow_domain() != nullptr; }

void ProfilerRange::open(const std::string& name) {
  std::string shown = name.substr(0, kNameMax);
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = shown.c_str();
  nvtxDomainRangePushEx(flow_domain(), &range);
}

void ProfilerRange::close() { nvtxDomainRangePop(flow_domain()); }

#else

bool has_profiler() { return false; }
void ProfilerRange::open(const std::string&) {}
void ProfilerRange::close() {}

#endif

}  // namespace flow
