// cuDNN itself makes plans of attention, without a GPU: by a description of one, and with
// no_driver.cc. plans.py runs this.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "kernels/cuda/cudnn_library.hpp"

namespace flow::cuda::dnn {
namespace {

// As cuDNN describes an A100 and an H200.
const char* const kA100 =
    R"({"deviceVer": 800, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "multiProcessorCount": 108, "smCountOrigin": 0, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": 166912, "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024,
"maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
"isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1410000, "memClockRateKHz": 1593000, "memoryBusWidth": 5120,
"l2CacheSize": 41943040, "deviceName": "NVIDIA A100-SXM4-80GB", "driverVer": 13000, "cudaDeviceId": 0,
"totalGlobalMem": 85000000000})";
const char* const kH200 =
    R"({"deviceVer": 900, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": 232448, "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024,
"maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
"isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "memoryBusWidth": 6144,
"l2CacheSize": 62914560, "deviceName": "NVIDIA H200", "driverVer": 13000, "cudaDeviceId": 0,
"totalGlobalMem": 150000000000})";

struct Device {
  Device(const DnnCalls& from, const std::string& json) : calls(from) {
    REQUIRE(calls.BackendCreateDescriptor(DescriptorKind::device_properties, &at) == kSuccess);
    REQUIRE(calls.BackendSetAttribute(at, Attribute::device_json, AttributeType::characters,
                                      static_cast<int64_t>(json.size()), json.data()) == kSuccess);
    REQUIRE(calls.BackendFinalize(at) == kSuccess);
  }
  ~Device() { calls.BackendDestroyDescriptor(at); }

  const DnnCalls& calls;
  CudnnDescriptor at = nullptr;
};

struct Case {
  bool is_backward;
  int64_t b, h, g, t, s, d;
  bool causal;
  DType dtype = DType::bf16;
  /// The rows of heads lie side by side, of so many operands: 1 or 3; 0: head after head.
  int64_t beside = 0;

  View view(int64_t heads, int64_t rows) const {
    alignas(16) static char memory[16];
    View view = dense(dtype, {b, heads, rows, d}, memory);
    if (beside == 0) return view;
    view.strides[0] = beside * heads * rows * d;
    view.strides[1] = d;
    view.strides[2] = beside * heads * d;
    return view;
  }
  AttentionNumbers numbers() const {
    View q = view(h, t), k = view(g, s);
    AttentionCall call{{causal, 0.125}, &q, &k, &k, &q, nullptr};
    if (is_backward) call.grad = call.dq = &q, call.dk = call.dv = &k;
    AttentionNumbers n;
    REQUIRE(numbers_of(call, n));
    return n;
  }
};

TEST_CASE("cuDNN itself makes plans for the graphs of attention", "[.plans]") {
  const char* path = std::getenv("FLOW_TEST_CUDNN");
  DnnLibrary library(path ? path : "");
  if (!library.works() || library.calls().GetVersion() < kAttentionVersionMin) {
    WARN("skipped: there is no cuDNN 9.10.2 or later: " << library.text());
    return;
  }
  const Case cases[] = {
      {false, 4, 16, 16, 2048, 2048, 128, true},
      {false, 4, 16, 16, 2048, 2048, 128, false, DType::f16, 1},
      {false, 16, 12, 12, 1024, 1024, 64, true, DType::bf16, 3},
      {false, 2, 16, 4, 64, 1024, 64, true, DType::bf16, 1},
      {false, 2, 4, 4, 192, 192, 40, true},
      {true, 4, 16, 16, 2048, 2048, 128, true},
      {true, 4, 16, 16, 1024, 1024, 128, false, DType::f16, 1},
      {true, 16, 12, 12, 1024, 1024, 64, true, DType::bf16, 3},
      {true, 2, 16, 4, 128, 1024, 64, true, DType::bf16, 1},
  };
  for (int capability : {80, 90}) {
    Device device(library.calls(), capability == 80 ? kA100 : kH200);
    for (const Case& c : cases) {
      CAPTURE(library.text(), capability, c.is_backward, c.t, c.s, c.d, c.causal);
      AttentionNumbers numbers = c.numbers();
      REQUIRE(supports(numbers, library.calls().GetVersion(), capability));
      AttentionPlan plan(library.calls(), numbers);
      CHECK(plan.make(nullptr, device.at, kWorkspaceMax) == kSuccess);
      // The gradients of all scores: else each block would add to dq when it is ready.
      auto scores = static_cast<size_t>(c.b * c.h * c.t * c.s * 2);
      CHECK((plan.workspace() >= scores) == c.is_backward);
    }
    AttentionPlan too_large(library.calls(), cases[5].numbers());
    CHECK(too_large.make(nullptr, device.at, size_t{1} << 29) == kNotSupported);
  }
  // One that cuDNN refuses: the test would notice a library that takes everything.
  Device device(library.calls(), kA100);
  AttentionPlan wide(library.calls(), Case{true, 1, 1, 1, 128, 128, 256, true}.numbers());
  CHECK(is_refusal(wide.make(nullptr, device.at, kWorkspaceMax)));
}

}  // namespace
}  // namespace flow::cuda::dnn
