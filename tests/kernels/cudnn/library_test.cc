// One call from the row's operands to cuDNN's functions, with the fake cuDNN.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/own_products.hpp"
#include "tests/kernels/cudnn/fake_cudnn.hpp"
#include "tests/kernels/emulator/emulator.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::cuda::dnn {
namespace {

using Catch::Contains;
using suite::Array;

// Set for the table's own library, before it is loaded.
const int is_named = ::setenv(kCudnnVariable, FAKE_CUDNN, 0);

FakeCudnn& fake() {
  static void* file = dlopen(FAKE_CUDNN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(file);
  return *static_cast<FakeCudnn*>(dlsym(file, "fake_cudnn"));
}

// Resets the fake, except for the objects that the table's library owns.
FakeCudnn& fresh_fake() {
  int64_t alive = fake().alive;
  fake() = {};
  fake().alive = alive;
  return fake();
}

// y = x * 2 + bias: a 3 by 3 image with a window of 1.
struct Doubled {
  alignas(16) float x[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  alignas(16) float w[1] = {2};
  alignas(16) float y[9] = {};
  alignas(16) float b[1] = {100};
  alignas(16) char room[8192] = {};
  View bias = view({1}, b);
  Convolution convolution{ConvolutionDirection::forward,
                          {},
                          view({1, 1, 3, 3}, x),
                          view({1, 1, 1, 1}, w),
                          view({1, 1, 3, 3}, y)};
  Stream stream;

  Doubled() { stream.scratch = {room, sizeof room, 0, 0}; }
  static View view(const Shape& shape, float* data) {
    return dense(DType::f32, shape, reinterpret_cast<char*>(data));
  }
  int run(DnnLibrary& library) { return library.run(stream, 0, convolution); }
};

TEST_CASE("a convolution of f32 uses TF32 only if the stream's precision allows it") {
  FakeCudnn& dnn = fresh_fake();
  dnn.takes_tf32 = true;
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  call.stream.precision = MatmulPrecision::high;
  REQUIRE(call.run(library) == kDone);
  CHECK(dnn.math != kFmaMath);
  call.stream.precision = MatmulPrecision::highest;
  call.stream.scratch.used = 0;
  REQUIRE(call.run(library) == kDone);
  CHECK(dnn.math == kFmaMath);
}

TEST_CASE("cuDNN computes a convolution and all descriptors are destroyed") {
  FakeCudnn& dnn = fresh_fake();
  int64_t before = dnn.alive;
  int mark = 0;
  {
    DnnLibrary library(FAKE_CUDNN);
    CHECK(library.text() == "cuDNN 9.19.0");
    Doubled call;
    call.stream.native = &mark;
    REQUIRE(call.run(library) == kDone);
    CHECK(call.y[8] == 16);
    CHECK(dnn.forward == 1);
    CHECK(dnn.algorithm == kForwardImplicitPrecompGemm);
    CHECK(dnn.math == kFmaMath);
    CHECK(dnn.stream == &mark);
    CHECK(call.stream.scratch.used == 4096);
    CHECK(dnn.alive == before + 1);  // the handle
    call.convolution.bias = &call.bias;
    call.stream.scratch.used = 0;
    REQUIRE(call.run(library) == kDone);
    CHECK(call.y[8] == 116);
    CHECK(dnn.with_bias == 1);
  }
  CHECK(dnn.alive == before);
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("the workspace size is queried before the call") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  call.stream.scratch = {};
  CHECK(call.run(library) == kNeedsScratch);
  CHECK(call.stream.scratch.needed == 4096);
  CHECK(dnn.runs() == 0);
  call.stream.scratch = {call.room, 4096, 0, 0};
  CHECK(call.run(library) == kDone);
}

TEST_CASE("the heuristics are queried once per shape, direction, bias and device") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  auto run = [&](int device) {
    call.stream.scratch.used = 0;
    REQUIRE(library.run(call.stream, device, call.convolution) == kDone);
  };
  run(0), run(0);
  CHECK(dnn.heuristics == 1);
  run(1), run(1);
  CHECK(dnn.heuristics == 2);
  call.convolution.way = ConvolutionDirection::backward_input;
  run(0), run(0);
  CHECK(dnn.heuristics == 3);
  CHECK(dnn.algorithm == kBackwardData1);
  call.convolution.way = ConvolutionDirection::backward_weight;
  run(0), run(0);
  CHECK(dnn.heuristics == 4);
  CHECK(dnn.algorithm == kBackwardFilter1);
  call.convolution.way = ConvolutionDirection::forward;
  call.convolution.bias = &call.bias;
  run(0), run(0);
  CHECK(dnn.heuristics == 5);
  // No effect on a window of 1: the same result with another key.
  call.convolution.o.dilation[0] = 2;
  run(0), run(0);
  CHECK(dnn.heuristics == 6);
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("flow's kernels compute a convolution that cuDNN cannot") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  SECTION("all algorithms add in an arbitrary order") {
    dnn.only_random = true;
    for (ConvolutionDirection way :
         {ConvolutionDirection::forward, ConvolutionDirection::backward_input,
          ConvolutionDirection::backward_weight}) {
      call.convolution.way = way;
      CHECK(call.run(library) == kUnsupported);
    }
    CHECK(dnn.heuristics == 3);
  }
  SECTION("the heuristics fail") {
    dnn.offers_status = kNotSupported;
    CHECK(call.run(library) == kUnsupported);
    CHECK(call.run(library) == kUnsupported);
    CHECK(dnn.heuristics == 1);
  }
  SECTION("all algorithms need too much workspace") {
    dnn.workspace = kWorkspaceMax + 1;
    call.convolution.bias = &call.bias;
    CHECK(call.run(library) == kUnsupported);
  }
  SECTION("the call fails, and is not repeated") {
    dnn.run_status = kNotSupported + 2;
    CHECK(call.run(library) == kUnsupported);
    CHECK(call.stream.scratch.used == 0);
    dnn.run_status = 0;
    CHECK(call.run(library) == kUnsupported);
  }
  SECTION("the device is not supported, and is checked a few times") {
    dnn.create_status = 1001;
    for (int i = 0; i < kTriesMax; i++) CHECK(call.run(library) == kUnsupported);
    dnn.create_status = 0;
    CHECK(call.run(library) == kUnsupported);
    CHECK(library.run(call.stream, 1, call.convolution) == kDone);
  }
  SECTION("the descriptors are rejected") {
    call.convolution.y.shape[2] = 2;
    CHECK(call.run(library) == kUnsupported);
    CHECK(dnn.complaint == std::string("the result's size"));
  }
  if (dnn.runs() == 0) CHECK(call.y[8] == 0);
}

TEST_CASE("cuDNN is started again if that failed, but not while a graph is recorded") {
  FakeCudnn& dnn = fresh_fake();
  int64_t before = dnn.alive;
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  std::vector<std::string> log;
  ProductWarnings warnings([&](const std::string& text) { log.push_back(text); });
  std::function<void(std::function<int()>)> record = [](const std::function<int()>&) {};
  emulator::recorder = &record;
  CHECK(call.run(library) == kUnsupported);
  emulator::recorder = nullptr;
  CHECK(dnn.alive == before);
  CHECK(log.empty());
  dnn.create_status = 1001;
  CHECK(call.run(library) == kUnsupported);
  CHECK(call.run(library) == kUnsupported);
  CHECK(log == std::vector<std::string>{"cuDNN 9.19.0 does not start on GPU 0: "
                                        "CUDNN_STATUS_OF_THE_TESTS. flow's own kernels are "
                                        "used"});
  dnn.create_status = 0;
  CHECK(call.run(library) == kDone);
}

TEST_CASE("an algorithm without a workspace is chosen if the others need too much") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  dnn.workspace = kWorkspaceMax + 1;
  call.stream.scratch = {};
  CHECK(call.run(library) == kDone);
  CHECK(dnn.algorithm == kForwardImplicitGemm);
  CHECK(call.y[8] == 16);
}

TEST_CASE("an error has cuDNN's message") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Doubled call;
  dnn.run_status = 5000;
  int code = call.run(library);
  CHECK(code == kDnnErrors + 5000);
  CHECK(std::string(cuda_kernels()->error_text(code)) ==
        "cuDNN failed in an operation that it had accepted: CUDNN_STATUS_EXECUTION_FAILED");
}

TEST_CASE("another version, or a library that lacks a function, is not used") {
  FakeCudnn& dnn = fresh_fake();
  dnn.version = 8907;
  DnnLibrary old(FAKE_CUDNN);
  CHECK_FALSE(old.works());
  CHECK(old.text() == "its version is 8907: flow knows cuDNN 9");
  Doubled call;
  CHECK(call.run(old) == kUnsupported);
  fresh_fake();
  DnnLibrary part(FAKE_CUDNN_WITHOUT_BIAS);
  CHECK(part.text() == "it has no cudnnConvolutionBiasActivationForward");
  CHECK(call.run(part) == kUnsupported);
  DnnLibrary none("/nowhere/libcudnn.so");
  CHECK_THAT(none.text(), Contains("/nowhere/libcudnn.so"));
  CHECK(call.run(none) == kUnsupported);
}

void check_conv_pool() {
  suite::HostRunner runner(*cuda_kernels(), [](bool on) { emulator::reversed = on; });
  suite::Suite all(runner, suite::test_seed());
  suite::check_conv_pool(all);
  for (const std::string& miss : all.misses) FAIL_CHECK(miss);
  CHECK(all.lines.at("conv2d").checks > 20);
}

TEST_CASE("the table's conv_pool rows, by cuDNN") {
  FakeCudnn& dnn = fresh_fake();
  CudnnUse before = cudnn_use();
  check_conv_pool();
  CHECK(dnn.complaint == nullptr);
  CHECK(dnn.backward_data >= 40);
  CHECK(dnn.backward_filter >= 40);
  CHECK(dnn.forward + dnn.with_bias >= 40);
  CudnnUse use = cudnn_use();
  CHECK(use.library == "cuDNN 9.19.0");
  CHECK(use.done - before.done == dnn.runs());
  // The weight's gradient of an empty batch: zeros, for each of the types in both orders.
  CHECK(use.asked - use.done == 8);
}

TEST_CASE("a program can disable cuDNN temporarily") {
  FakeCudnn& dnn = fresh_fake();
  use_cudnn(false);
  check_conv_pool();
  use_cudnn(true);
  CHECK(dnn.runs() == 0);
}

int run_table(Doubled& call) {
  const Convolution& v = call.convolution;
  return cuda_kernels()->conv2d(call.stream, v.o, v.x, v.w, nullptr, v.y);
}

TEST_CASE("a library that the environment names and that does not exist is an error",
          "[.missing]") {
  Doubled call;
  int code = run_table(call);
  CHECK(code == kDnnErrors);
  CHECK_THAT(cuda_kernels()->error_text(code),
             Catch::StartsWith("the library that FLOW_CUDNN_LIB names cannot be used: /nowhere"));
}

TEST_CASE("the environment disables cuDNN", "[.off]") {
  Doubled call;
  CHECK(run_table(call) == kDone);
  CHECK(call.y[8] == 16);
  CHECK(cudnn_use().library == "disabled by FLOW_CUDNN_LIB");
}

}  // namespace
}  // namespace flow::cuda::dnn
