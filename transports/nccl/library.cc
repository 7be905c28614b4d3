#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <cstdlib>

#include "engine/base/cuda_libraries.hpp"
#include "transports/nccl/calls.hpp"
#include "transports/nccl/nccl.hpp"

namespace flow {
namespace nccl {
namespace {

constexpr int kFirst = 21403;  // the first with non-blocking communicators
// Known to hang when a rank is lost and the others continue.
constexpr int kBadFirst = 22803, kBadLast = 22808;

template <typename Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(::dlsym(library, name));
  return out != nullptr;
}

/// The first missing name, or null.
const char* find_all(void* library, NcclCalls& calls) {
  const char* missing = nullptr;
  auto need = [&](const char* name, auto& out) {
    if (missing == nullptr && !find(library, name, out)) missing = name;
  };
  need("ncclGetVersion", calls.get_version);
  need("ncclGetUniqueId", calls.get_unique_id);
  need("ncclCommInitRankConfig", calls.init_rank);
  need("ncclCommGetAsyncError", calls.get_async_error);
  need("ncclCommFinalize", calls.finalize);
  need("ncclCommDestroy", calls.destroy);
  need("ncclCommAbort", calls.abort);
  need("ncclGroupStart", calls.group_start);
  need("ncclGroupEnd", calls.group_end);
  need("ncclAllReduce", calls.all_reduce);
  need("ncclReduceScatter", calls.reduce_scatter);
  need("ncclAllGather", calls.all_gather);
  need("ncclBroadcast", calls.broadcast);
  need("ncclSend", calls.send);
  need("ncclRecv", calls.recv);
  need("ncclGetErrorString", calls.error_string);
  find(library, "ncclCommShrink", calls.shrink);
  return missing;
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Config config_of(const char* name) {
  Config config{};
  config.size = sizeof config;
  config.magic = 0xcafebeef;
  config.version = 22809;
  for (int* unset :
       {&config.cga_cluster_size, &config.min_ctas, &config.max_ctas, &config.split_share,
        &config.traffic_class, &config.collnet_enable, &config.cta_policy, &config.shrink_share,
        &config.nvls_ctas, &config.channels_per_peer, &config.nvlink_centric})
    *unset = INT_MIN;
  config.blocking = 0;
  config.comm_name = name;
  return config;
}

NcclLibrary load(const std::string& path) {
  NcclLibrary library;
  void* handle = nullptr;
  std::string problem;
  if (path.empty()) {
    LoadedCudaLibrary loaded = load_cuda_library({"", {"libnccl.so.2"}});
    handle = loaded.handle;
    library.path = loaded.path;
    problem = loaded.problem;
  } else {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.path = path;
    if (handle == nullptr) problem = ::dlerror();
  }
  if (handle == nullptr) {
    library.problem = fmt::format("it can't be loaded: {}. Install libnccl2, or name it by {}",
                                  problem, kNcclVariable);
    return library;
  }
  if (const char* missing = find_all(handle, library.calls)) {
    library.problem = fmt::format("it has no {}: it is too old, or is not NCCL", missing);
    return library;
  }
  Code code = library.calls.get_version(&library.version);
  if (code != kSuccess)
    library.problem = fmt::format("its version cannot be read: error {}", code);
  else if (library.version < kFirst)
    library.problem = fmt::format("{} is too old: 2.14.3 is the first that can be aborted",
                                  version_text(library.version));
  else if (library.version >= kBadFirst && library.version <= kBadLast)
    library.problem = fmt::format("{} hangs where a rank is lost: use 2.28.9 or later",
                                  version_text(library.version));
  return library;
}

const NcclLibrary& library() {
  static const NcclLibrary loaded = [] {
    const char* named = std::getenv(kNcclVariable);
    NcclLibrary off;
    off.problem = fmt::format("it is disabled by {}", kNcclVariable);
    bool is_off = named != nullptr && std::string_view(named) == "off";
    return is_off ? off : load(named != nullptr ? named : "");
  }();
  return loaded;
}

}  // namespace nccl

std::string nccl_path() { return nccl::library().path; }

Result<std::string> nccl_version() {
  const nccl::NcclLibrary& library = nccl::library();
  if (!library.problem.empty()) return environment_error("NCCL can't be used: " + library.problem);
  return nccl::version_text(library.version);
}

}  // namespace flow
