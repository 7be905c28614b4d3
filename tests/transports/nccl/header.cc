// Compares our declarations of NCCL with its header.
#include <nccl.h>

#include <catch2/catch.hpp>
#include <cstddef>

#include "transports/nccl/calls.hpp"

using namespace flow;

TEST_CASE("Our declarations of NCCL match its header") {
  CHECK(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
  CHECK(int{ncclInProgress} == nccl::kInProgress);
  CHECK(int{ncclUint8} == nccl::kUint8);
  CHECK(int{ncclInt32} == nccl::kInt32);
  CHECK(int{ncclInt64} == nccl::kInt64);
  CHECK(int{ncclFloat16} == nccl::kFloat16);
  CHECK(int{ncclFloat32} == nccl::kFloat32);
  CHECK(int{ncclFloat64} == nccl::kFloat64);
  CHECK(int{ncclBfloat16} == nccl::kBfloat16);
  CHECK(int{ncclSum} == nccl::kSum);
  CHECK(int{ncclMax} == nccl::kMax);
  CHECK(int{ncclMin} == nccl::kMin);
  CHECK(int{ncclAvg} == nccl::kAvg);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  CHECK(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
  CHECK(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
  CHECK(offsetof(nccl::Config, comm_name) == offsetof(ncclConfig_t, commName));
  CHECK(offsetof(nccl::Config, nvlink_centric) == offsetof(ncclConfig_t, nvlinkCentricSched));
  CHECK(nccl::kShrinkAbort == NCCL_SHRINK_ABORT);
#endif
  nccl::Config ours = nccl::config_of("gang");
  ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  CHECK(ours.magic == theirs.magic);
  CHECK(ours.min_ctas == theirs.minCTAs);
  CHECK(ours.split_share == theirs.splitShare);
}
