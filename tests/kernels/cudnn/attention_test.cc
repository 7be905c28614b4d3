// Attention by cuDNN, with the fake cuDNN.
#include <dlfcn.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cuda/cudnn_attention.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/own_products.hpp"
#include "tests/kernels/cudnn/fake_cudnn.hpp"
#include "tests/kernels/emulator/emulator.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::emulator {
extern size_t library_memory_max;  // as in kernels/cuda/cudnn_device.hpp
}

namespace flow::cuda::dnn {
namespace {

using Catch::Contains;
using suite::Array;
using suite::Layout;

FakeCudnn& fake() {
  static void* file = dlopen(FAKE_CUDNN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(file);
  return *static_cast<FakeCudnn*>(dlsym(file, "fake_cudnn"));
}
FakeCudnn& fresh_fake() {
  int64_t alive = fake().alive;
  fake() = {};
  fake().alive = alive;
  return fake();
}

struct Sizes {
  int64_t b = 1, h = 2, g = 1, t = 64, s = 64, d = 16;
};

// The operands of both directions.
struct Operands {
  Attention options{true, 0.25};
  Array q, k, v, out, lse, grad, dq, dk, dv;
  Stream stream;
  std::vector<char> room;
  std::vector<std::string> log;

  explicit Operands(const Sizes& n = {}, DType dtype = DType::bf16, Layout layout = Layout::dense)
      : q(dtype, {n.b, n.h, n.t, n.d}, layout),
        k(dtype, {n.b, n.g, n.s, n.d}, layout),
        v(dtype, {n.b, n.g, n.s, n.d}, layout),
        out(dtype, {n.b, n.h, n.t, n.d}, layout),
        lse(DType::f64, {n.b, n.h, n.t}),
        grad(dtype, {n.b, n.h, n.t, n.d}, layout),
        dq(dtype, {n.b, n.h, n.t, n.d}, layout),
        dk(dtype, {n.b, n.g, n.s, n.d}, layout),
        dv(dtype, {n.b, n.g, n.s, n.d}, layout) {
    unsigned seed = 1;
    for (Array* each : {&q, &k, &v, &grad})
      for (int64_t i = 0; i < each->count(); i++) {
        seed = seed * 1103515245 + 12345;
        each->set(i, static_cast<double>(seed >> 16 & 0xff) / 64 - 2);
      }
  }
  AttentionCall forward() {
    return {options, &q.view(), &k.view(), &v.view(), &out.view(), &lse.view()};
  }
  AttentionCall backward() {
    return {options,     &q.view(),    &k.view(),  &v.view(),  &out.view(),
            &lse.view(), &grad.view(), &dq.view(), &dk.view(), &dv.view()};
  }
  // With exactly the scratch that is requested.
  template <typename F>
  int with_scratch(F call) {
    ProductWarnings warnings([&](const std::string& text) { log.push_back(text); });
    stream.scratch = {};
    int code = call();
    if (code != kNeedsScratch) return code;
    size_t bytes = stream.scratch.needed;
    room.assign(bytes + 256, '\xff');
    auto start = reinterpret_cast<uintptr_t>(room.data());
    stream.scratch = {room.data() + (256 - start % 256) % 256, bytes, 0, 0};
    return call();
  }
  int run(DnnLibrary& library, const AttentionCall& call) {
    return with_scratch([&] { return library.run(stream, 0, call); });
  }
  int run_table() {
    const Kernels& table = *cuda_kernels();
    return with_scratch([&] {
      return table.attention(stream, options, q.view(), k.view(), v.view(), out.view(), lse.view());
    });
  }
  int run_table_backward() {
    const Kernels& table = *cuda_kernels();
    return with_scratch([&] {
      return table.attention_backward(stream, options, q.view(), k.view(), v.view(), out.view(),
                                      lse.view(), grad.view(), dq.view(), dk.view(), dv.view());
    });
  }
};

const char* const kForward = "product * largest - exp sum log + / product";
const char* const kForwardCausal =
    "product * index index >= select largest - exp sum log + / product";
const char* const kForwardCausalMoreKeys =
    "product * index index + - >= select largest - exp sum log + / product";
const char* const kBackward =
    "* sum * product * - exp turn product product - * * turn product turn product";
const char* const kBackwardCausalGroups =
    "* sum * product * - index index >= select exp turn product sum product - * * turn product sum "
    "turn product";

TEST_CASE("cuDNN's attention: the graphs are those that cuDNN recognizes") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  struct Case {
    Sizes sizes;
    bool causal;
    const char *forward, *backward;
  };
  for (const Case& c : {Case{{1, 2, 2}, false, kForward, kBackward},
                        Case{{1, 2, 1}, true, kForwardCausal, kBackwardCausalGroups},
                        Case{{1, 2, 2, 64, 128}, true, kForwardCausalMoreKeys, nullptr}}) {
    Operands all(c.sizes);
    all.options.causal = c.causal;
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.graph == std::string(c.forward));
    REQUIRE(all.run(library, all.backward()) == kDone);
    if (c.backward) CHECK(dnn.graph == std::string(c.backward));
  }
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("cuDNN's attention: a plan is made and checked once for each shape") {
  FakeCudnn& dnn = fresh_fake();
  int64_t before = dnn.alive;
  {
    DnnLibrary library(FAKE_CUDNN);
    Operands all, wider({1, 2, 1, 64, 64, 24});
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.plans == 1);
    CHECK(dnn.graphs == 3);  // the check runs twice
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.plans == 1);
    CHECK(dnn.graphs == 4);
    all.options.scale = 0.5;
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.plans == 1);
    all.options.causal = false;
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.plans == 2);
    REQUIRE(wider.run(library, wider.forward()) == kDone);
    CHECK(dnn.plans == 3);
    REQUIRE(all.run(library, all.backward()) == kDone);
    CHECK(dnn.plans == 4);
    CHECK(all.stream.scratch.used == 0);
  }
  CHECK(dnn.alive == before);
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("cuDNN's attention: flow's own kernels compute what cuDNN cannot") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  SECTION("the plan is refused, which is remembered") {
    dnn.plan_status = kNotSupported;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    dnn.plan_status = 0;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    CHECK(dnn.heuristics == 1);
  }
  SECTION("the only engine's bits vary") {
    dnn.only_random = true;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    CHECK(dnn.plans == 0);
  }
  SECTION("the workspace is too large") {
    dnn.workspace = kWorkspaceMax + 1;
    CHECK(all.run(library, all.forward()) == kUnsupported);
  }
  SECTION("the run is refused, which is remembered") {
    dnn.run_status = kNotSupported + 1;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    CHECK(all.stream.scratch.used == 0);
    dnn.run_status = 0;
    CHECK(all.run(library, all.forward()) == kUnsupported);
  }
  SECTION("an old release") {
    dnn.version = 91001;
    CHECK(all.run(library, all.forward()) == kUnsupported);
  }
  CHECK(library.attention_problem().empty());
  CHECK(dnn.graphs == 0);
  CHECK(all.log.empty());
}

TEST_CASE("cuDNN's attention: an error of a run has cuDNN's status") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  REQUIRE(all.run(library, all.forward()) == kDone);
  dnn.run_status = 5000;
  CHECK(all.run(library, all.forward()) == kDnnErrors + 5000);
}

TEST_CASE("cuDNN's attention: a failure that may pass is tried again a few times") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  const char* what = "";
  std::function<void()> mend = [&] { dnn.plan_status = dnn.run_status = 0; };
  SECTION("of a plan") {
    dnn.plan_status = 4001;
    what = "cuDNN 9.19.0 made no plan: ";
  }
  SECTION("of an earlier engine's plan: the next one would have other bits") {
    dnn.second_plan_status = 4001;
    what = "cuDNN 9.19.0 made no plan: ";
    mend = [&] { dnn.second_plan_status = kNotSupported; };
  }
  SECTION("of the heuristics") {
    dnn.offers_status = 4001;
    what = "cuDNN 9.19.0 made no plan: ";
    mend = [&] { dnn.offers_status = 0; };
  }
  SECTION("of the check's run") {
    dnn.run_status = 5000;
    what = "cuDNN 9.19.0 failed: CUDNN_STATUS_EXECUTION_FAILED. cuDNN is tried again";
  }
  SECTION("no memory for the check") {
    emulator::library_memory_max = 1000;
    what = "(bf16, queries [1, 2, 64, 16], keys [1, 1, 64, 16], causal): the GPU has no memory";
    mend = [] { emulator::library_memory_max = SIZE_MAX; };
  }
  Operands other({1, 2, 1, 64, 64, 24});
  for (int i = 1; i < kTriesMax; i++) CHECK(all.run(library, all.forward()) == kUnsupported);
  for (int i = 0; i < kTriesMax; i++) CHECK(other.run(library, other.forward()) == kUnsupported);
  mend();
  CHECK(all.run(library, all.forward()) == kDone);
  CHECK(other.run(library, other.forward()) == kUnsupported);
  CHECK(other.log.size() == 1);
  REQUIRE(all.log.size() == 1);
  CHECK_THAT(all.log[0], Contains(what));
  CHECK(library.attention_problem().empty());
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("cuDNN's attention: flow's own kernels compute what has no room for a workspace") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  dnn.workspace = 1 << 20;
  REQUIRE(all.run(library, all.forward()) == kDone);
  // The scratch is small again, and cannot grow.
  emulator::library_memory_max = 1 << 20;
  all.stream.scratch = {};
  CHECK(library.run(all.stream, 0, all.forward()) == kUnsupported);
  CHECK(all.stream.scratch.used == 0);
  emulator::library_memory_max = SIZE_MAX;
  CHECK(library.run(all.stream, 0, all.forward()) == kNeedsScratch);
  CHECK(all.run(library, all.forward()) == kDone);
}

// Keeps what is launched, as a graph does.
struct Recording {
  std::vector<std::function<int()>> work;
  std::function<void(std::function<int()>)> add = [this](std::function<int()> each) {
    work.push_back(std::move(each));
  };
  Recording() { emulator::recorder = &add; }
  ~Recording() { emulator::recorder = nullptr; }
  void end() { emulator::recorder = nullptr; }
};

TEST_CASE("cuDNN's attention: nothing is made, checked or awaited while a graph is recorded") {
  FakeCudnn& dnn = fresh_fake();
  int64_t before = dnn.alive;
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  {
    Recording recording;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    CHECK(recording.work.empty());
  }
  CHECK(dnn.alive == before);
  dnn.plan_status = 4001;
  CHECK(all.run(library, all.forward()) == kUnsupported);
  dnn.plan_status = 0;
  {  // a plan that is to be tried again
    Recording recording;
    CHECK(all.run(library, all.forward()) == kUnsupported);
    CHECK(recording.work.empty());
  }
  CHECK(dnn.plans == 0);
  REQUIRE(all.run(library, all.forward()) == kDone);
  REQUIRE(all.run(library, all.backward()) == kDone);
  int64_t runs = dnn.graphs;
  Recording recording;
  REQUIRE(all.run(library, all.forward()) == kDone);
  CHECK(all.run(library, all.backward()) == kDone);
  recording.end();
  CHECK(dnn.graphs == runs);
  CHECK(recording.work.size() == 4);  // a copy of the logarithms each
}

TEST_CASE("cuDNN's attention: a recorded graph runs the plan") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  REQUIRE(all.run(library, all.forward()) == kDone);
  std::vector<double> out = all.out.values(), lse = all.lse.values();
  Recording recording;
  REQUIRE(all.run(library, all.forward()) == kDone);
  recording.end();
  for (int64_t i = 0; i < all.out.count(); i++) all.out.set(i, 7);
  for (int64_t i = 0; i < all.lse.count(); i++) all.lse.set(i, 7);
  for (const auto& each : recording.work) CHECK(each() == 0);
  CHECK(all.out.values() == out);
  CHECK(all.lse.values() == lse);
  CHECK(dnn.complaint == nullptr);
}

TEST_CASE("cuDNN's attention: plans are kept") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  dnn.only_random = true;  // none is made: this is quick
  Operands all;
  AttentionCall call = all.forward();
  View q = *call.q, out = *call.out;
  call.q = &q, call.out = &out;
  ProductWarnings warnings([&](const std::string& text) { all.log.push_back(text); });
  for (int64_t i = 0; i < 1030; i++) {
    q.strides[1] = 1024 + 8 * i;
    CHECK(library.run(all.stream, 0, call) == kUnsupported);
  }
  CHECK(dnn.heuristics == 1024);
  REQUIRE(all.log.size() == 1);
  CHECK_THAT(all.log[0], Contains("attention of 1024 shapes: flow's own kernels compute further"));
  q.strides[1] = 1024;
  CHECK(library.run(all.stream, 0, call) == kUnsupported);
  CHECK(dnn.heuristics == 1024);  // the first one is still known
}

TEST_CASE("cuDNN's attention: a wrong result is found, and cuDNN is not used any more") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  std::string what;
  bool is_backward = false;
  SECTION("without the mask") {
    dnn.ignores_mask = true;
    what = "the logarithm of a sum differs";
  }
  SECTION("the result") {
    dnn.factor = 1.25;
    what = "the result differs";
  }
  SECTION("other bits the second time") {
    dnn.varies = true;
    what = "a second computation of the result has other bits";
  }
  SECTION("other signs of zeros the second time") {
    dnn.varies_in_sign = true;
    what = "a second computation of the result has other bits";
  }
  SECTION("another scale, of queries that are all 0") {
    dnn.scale_factor = 2;
    for (int64_t i = 0; i < all.q.count(); i++) all.q.set(i, 0);
    what = "the logarithm of a sum differs";
  }
  SECTION("a result of zeros") {
    dnn.factor = 2;
    for (int64_t i = 0; i < all.v.count(); i++) all.v.set(i, 0);
    what = "the result differs";
  }
  SECTION("the last row of a gradient") {
    REQUIRE(all.run(library, all.forward()) == kDone);
    is_backward = true;
    dnn.zero_rows = 1;
    what = "dv differs";
  }
  SECTION("no number") {
    dnn.factor = NAN;
    what = "the result differs from that of flow's own kernel by inf";
  }
  SECTION("a gradient") {
    REQUIRE(all.run(library, all.forward()) == kDone);
    is_backward = true;
    dnn.factor = 0.75;
    what = "dq differs";
  }
  SECTION("a gradient, the second time") {
    REQUIRE(all.run(library, all.forward()) == kDone);
    is_backward = true;
    dnn.varies = true;
    what = "a second computation of dq has other bits";
  }
  AttentionCall call = is_backward ? all.backward() : all.forward();
  CHECK(all.run(library, call) == kUnsupported);
  CHECK(all.stream.scratch.used == 0);
  REQUIRE(all.log.size() == 1);
  CHECK_THAT(all.log[0], Catch::StartsWith("cuDNN 9.19.0 computes attention wrongly (bf16, queries "
                                           "[1, 2, 64, 16], keys [1, 1, 64, 16], causal" +
                                           std::string(is_backward ? ", gradients" : "") + "): "));
  CHECK_THAT(all.log[0], Contains(what));
  CHECK_THAT(library.attention_problem(), Contains(what));
  int64_t runs = dnn.graphs;
  dnn.factor = 1, dnn.varies = dnn.ignores_mask = false;
  Operands other({1, 2, 2, 64, 128, 24});
  CHECK(other.run(library, other.forward()) == kUnsupported);
  CHECK(dnn.graphs == runs);
  CHECK(all.log.size() == 1);
}

TEST_CASE("cuDNN's attention: which operands it gets") {
  AttentionNumbers n;
  auto takes = [&](const Sizes& sizes, DType dtype = DType::f16, Layout layout = Layout::dense,
                   bool causal = true) {
    Operands all(sizes, dtype, layout);
    all.options.causal = causal;
    bool forward = numbers_of(all.forward(), n);
    CHECK(numbers_of(all.backward(), n) == forward);
    return forward;
  };
  CHECK(takes({}));
  CHECK(n.is_backward);
  CHECK(n.type == kHalf);
  CHECK(takes({}, DType::bf16));
  CHECK(n.type == kBfloat16);
  CHECK_FALSE(takes({}, DType::f32));
  CHECK(takes({}, DType::f16, Layout::heads));
  CHECK(n.strides[kOfQ][1] == 16);
  CHECK(n.strides[kOfQ][2] == 32);
  CHECK_FALSE(takes({}, DType::f16, Layout::shifted));
  CHECK_FALSE(takes({1, 2, 1, 63, 64}));
  CHECK_FALSE(takes({1, 2, 1, 64, 65}));
  CHECK_FALSE(takes({1, 2, 1, 1, 64}));
  CHECK(takes({1, 2, 1, 64, 64, 8}));
  CHECK_FALSE(takes({1, 2, 1, 64, 64, 12}));
  CHECK(takes({1, 2, 1, 64, 64, 256}));
  CHECK_FALSE(takes({1, 2, 1, 64, 64, 264}));
  CHECK_FALSE(takes({0, 2, 1, 64, 64}));
  CHECK_FALSE(takes({1, 2, 1, 128, 64}));
  CHECK(takes({1, 2, 1, 128, 64}, DType::f16, Layout::dense, false));
  // A gradient that repeats its rows.
  Operands all;
  AttentionCall call = all.backward();
  View grad = all.grad.view();
  grad.strides[1] = 0;
  call.grad = &grad;
  CHECK_FALSE(numbers_of(call, n));
  // The stride of a dimension of size 1 does not matter.
  View one = all.k.view();
  REQUIRE(numbers_of(all.forward(), n));
  AttentionNumbers before = n;
  one.strides[1] = 8;
  call = all.forward();
  call.k = &one;
  REQUIRE(numbers_of(call, n));
  CHECK(n == before);
}

TEST_CASE("cuDNN's attention: which releases and GPUs compute it") {
  AttentionNumbers n;
  n.queries = n.keys = 64;
  CHECK(supports(n, 91002, 80));
  CHECK(supports(n, 92801, 120));
  CHECK_FALSE(supports(n, 91001, 90));
  CHECK_FALSE(supports(n, 91900, 75));
  n.is_backward = true;
  CHECK(supports(n, 91900, 90));
  CHECK_FALSE(supports(n, 91900, 100));
  CHECK_FALSE(supports(n, 91500, 90));
  n.keys = 128;
  CHECK(supports(n, 91500, 90));
  // Wide heads' gradients only on 9.x.
  n.width = 128;
  CHECK(supports(n, 91900, 80));
  n.width = 136;
  CHECK_FALSE(supports(n, 91900, 80));
  CHECK_FALSE(supports(n, 91900, 89));
  CHECK(supports(n, 91900, 90));
  n.is_backward = false;
  CHECK(supports(n, 91900, 80));
}

TEST_CASE("cuDNN's attention: what is within rounding") {
  // Two blocks of 64 rows of norm 2 and 1/256.
  std::vector<float> squares(128, 4);
  std::fill(squares.begin() + 64, squares.end(), 0x1p-16f);
  auto apart = [&](size_t row, float difference, DType dtype = DType::bf16) {
    std::vector<float> differences(128, 0);
    differences[row] = difference;
    return judge_rows(differences, squares, dtype, 64, 64);
  };
  CHECK(apart(0, 0).is_right());
  CHECK(apart(0, 0.0625f).apart == Approx(0.125));
  CHECK(apart(0, 0.0625f).is_right());
  CHECK_FALSE(apart(1, 0.063f).is_right());
  CHECK_FALSE(apart(0, 0.0625f, DType::f16).is_right());
  CHECK(apart(0, 0.0009f, DType::f16).is_right());
  CHECK_FALSE(apart(0, NAN).is_right());
  CHECK_FALSE(apart(0, INFINITY).is_right());
  // Zeros instead of the small rows.
  CHECK(apart(127, 0x1p-16f).apart == Approx(1));
  // A small row of a block with larger ones counts as 1/16 of them.
  squares[5] = 0;
  CHECK(apart(5, 2e-4f).is_right());
  CHECK_FALSE(apart(5, 3e-4f).is_right());
  // All rows are a little apart.
  squares[5] = 4;
  std::vector<float> all(128, 0);
  std::fill(all.begin(), all.begin() + 64, 0.015f);
  CHECK(judge_rows(all, squares, DType::bf16, 64, 64).is_right());
  std::fill(all.begin(), all.begin() + 64, 0.017f);
  CHECK_FALSE(judge_rows(all, squares, DType::bf16, 64, 64).is_right());
  // One unit of the smallest f16 in each of 64 elements that are sums of one term.
  squares.assign(128, 0);
  CHECK(judge_rows(std::vector<float>(128, 0x1p-44f), squares, DType::f16, 64, 4).is_right());
  CHECK_FALSE(judge_rows(std::vector<float>(128, 0x1p-40f), squares, DType::f16, 64, 4).is_right());
  CHECK_FALSE(
      judge_rows(std::vector<float>(128, 0x1p-44f), squares, DType::bf16, 64, 4).is_right());

  CHECK(judge_logarithms({1, 2}, {1, 2 + 1.0 / 1024}).is_right());
  CHECK_FALSE(judge_logarithms({1, 2}, {1, 2 + 1.2 / 1024}).is_right());
  CHECK(judge_logarithms({1024}, {1024 + 1.0 / 16}).is_right());
  CHECK_FALSE(judge_logarithms({NAN}, {1}).is_right());
}

TEST_CASE("cuDNN's attention: the rows of the table") {
  FakeCudnn& dnn = fresh_fake();
  AttentionUse before = attention_use();
  suite::HostRunner runner(*cuda_kernels(), [](bool on) { emulator::reversed = on; });
  suite::Suite all(runner, suite::test_seed());
  suite::check_whole_attention(all);
  for (const std::string& miss : all.misses) FAIL_CHECK(miss);
  CHECK(dnn.complaint == nullptr);
  AttentionUse use = attention_use();
  CHECK(use.problem.empty());
  CHECK(use.done > before.done);
  CHECK(use.done - before.done == use.asked - before.asked);
  int64_t runs = dnn.graphs;
  use_cudnn(false);
  suite::Suite own(runner, suite::test_seed());
  suite::check_whole_attention(own);
  use_cudnn(true);
  for (const std::string& miss : own.misses) FAIL_CHECK(miss);
  CHECK(dnn.graphs == runs);
}

TEST_CASE("cuDNN's attention: forward and backward by different makers") {
  fresh_fake();
  for (bool is_forward_own : {false, true}) {
    Operands all({1, 2, 1, 64, 128, 24}), own({1, 2, 1, 64, 128, 24});
    use_cudnn(false);
    REQUIRE(own.run_table() == kDone);
    REQUIRE(own.run_table_backward() == kDone);
    use_cudnn(!is_forward_own);
    REQUIRE(all.run_table() == kDone);
    use_cudnn(is_forward_own);
    REQUIRE(all.run_table_backward() == kDone);
    use_cudnn(true);
    for (int64_t i = 0; i < all.dq.count(); i++)
      REQUIRE(all.dq.at(i) == Approx(own.dq.at(i)).margin(0.03));
    for (int64_t i = 0; i < all.dk.count(); i++)
      REQUIRE(all.dk.at(i) == Approx(own.dk.at(i)).margin(0.06));
  }
}

// These use the library of the process, each in its own.

TEST_CASE("the table's attention: after a wrong result the table has flow's own", "[.wrong]") {
  FakeCudnn& dnn = fresh_fake();
  Operands all, own;
  use_cudnn(false);
  REQUIRE(own.run_table() == kDone);
  use_cudnn(true);
  dnn.factor = 1.5;
  CHECK(all.run_table() == kDone);
  CHECK(all.log.size() == 1);
  CHECK(all.out.values() == own.out.values());
  CHECK(all.lse.values() == own.lse.values());
  CHECK_FALSE(attention_use().problem.empty());
  CHECK(all.run_table_backward() == kDone);
  CHECK(all.log.size() == 1);
  CHECK(dnn.plans == 1);
  CHECK(attention_use().done == 0);
}

TEST_CASE("the table's attention: the environment selects flow's own kernels", "[.own]") {
  FakeCudnn& dnn = fresh_fake();
  Operands all;
  CHECK(all.run_table() == kDone);
  CHECK(all.run_table_backward() == kDone);
  CHECK(dnn.plans == 0);
  CHECK(attention_use().is_off);
}

TEST_CASE("the table's attention: what cuDNN cannot compute does not load it", "[.missing]") {
  Operands decoding({1, 2, 1, 1, 64});
  CHECK(decoding.run_table() == kDone);
  Operands all;
  CHECK(all.run_table() == kDnnErrors);
}

TEST_CASE("the table's attention: an unknown maker is an error", "[.unknown]") {
  Operands all({}, DType::f32);
  int code = all.run_table();
  CHECK(code == kAttentionVariableError);
  CHECK(std::string(cuda_kernels()->error_text(code)) ==
        "the environment has FLOW_ATTENTION=cudnn: its only value is `own`");
}

}  // namespace
}  // namespace flow::cuda::dnn
