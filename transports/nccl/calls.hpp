// The part of NCCL's API that flow uses, declared here so that a build does not need nccl.h.
// Constants and layouts follow NCCL's ABI; a test compares them with nccl.h where that is
// installed.
#pragma once
#include <cstddef>
#include <string>

namespace flow::nccl {

struct Comm;  // opaque
using NcclHandle = Comm*;
using Code = int;
constexpr Code kSuccess = 0, kInProgress = 7;

struct UniqueId {
  char bytes[128];
};

/// ncclConfig_t of NCCL 2.28. A library reads the first `size` bytes and uses defaults for unset
/// fields.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
  const char* comm_name;
  int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_peer, nvlink_centric;
};
Config config_of(const char* name);

constexpr int kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8,
              kBfloat16 = 9;
constexpr int kSum = 0, kMax = 2, kMin = 3, kAvg = 4;
constexpr int kShrinkAbort = 1;

struct NcclCalls {
  Code (*get_version)(int*);
  Code (*get_unique_id)(UniqueId*);
  Code (*init_rank)(NcclHandle*, int, UniqueId, int, Config*);
  Code (*get_async_error)(NcclHandle, Code*);
  Code (*finalize)(NcclHandle);
  Code (*destroy)(NcclHandle);
  Code (*abort)(NcclHandle);
  Code (*group_start)();
  Code (*group_end)();
  Code (*all_reduce)(const void*, void*, size_t, int, int, NcclHandle, void*);
  Code (*reduce_scatter)(const void*, void*, size_t, int, int, NcclHandle, void*);
  Code (*all_gather)(const void*, void*, size_t, int, NcclHandle, void*);
  Code (*broadcast)(const void*, void*, size_t, int, int, NcclHandle, void*);
  Code (*send)(const void*, size_t, int, int, NcclHandle, void*);
  Code (*recv)(void*, size_t, int, int, NcclHandle, void*);
  const char* (*error_string)(Code);
  Code (*shrink)(NcclHandle, int*, int, NcclHandle*, Config*, int);  // null before 2.27
};

/// The loaded library, one per process. `problem` says why it cannot be used; empty if it can.
struct NcclLibrary {
  NcclCalls calls{};
  int version = 0;
  std::string path, problem;
};
const NcclLibrary& library();
NcclLibrary load(const std::string& path);  // empty: the search for NVIDIA's libraries
std::string version_text(int version);

}  // namespace flow::nccl
