// What is used of NCCL, declared here: nothing of it is needed to build. Numbers and layouts are
// its ABI's; a test holds them against nccl.h where that is installed.
#pragma once
#include <cstddef>
#include <string>

namespace flow::nccl {

struct Comm;  // opaque
using Handle = Comm*;
using Code = int;
constexpr Code kSuccess = 0, kInProgress = 7;

struct UniqueId {
  char bytes[128];
};

/// As of 2.28: a library reads as much of it as `size` says, and takes what is unset for its
/// default.
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

struct Calls {
  Code (*get_version)(int*);
  Code (*get_unique_id)(UniqueId*);
  Code (*init_rank)(Handle*, int, UniqueId, int, Config*);
  Code (*get_async_error)(Handle, Code*);
  Code (*finalize)(Handle);
  Code (*destroy)(Handle);
  Code (*abort)(Handle);
  Code (*group_start)();
  Code (*group_end)();
  Code (*all_reduce)(const void*, void*, size_t, int, int, Handle, void*);
  Code (*reduce_scatter)(const void*, void*, size_t, int, int, Handle, void*);
  Code (*all_gather)(const void*, void*, size_t, int, Handle, void*);
  Code (*broadcast)(const void*, void*, size_t, int, int, Handle, void*);
  Code (*send)(const void*, size_t, int, int, Handle, void*);
  Code (*recv)(void*, size_t, int, int, Handle, void*);
  const char* (*error_string)(Code);
  Code (*shrink)(Handle, int*, int, Handle*, Config*, int);  // null before 2.27
};

/// Of one process, loaded at the first call. `problem` is empty where it may be used.
struct Library {
  Calls calls{};
  int version = 0;
  std::string problem;
};
const Library& library();
Library load(const std::string& path);  // empty: where the system has it
std::string version_text(int version);

}  // namespace flow::nccl
