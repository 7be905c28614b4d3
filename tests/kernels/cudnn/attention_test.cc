// Attention by cuDNN, with the fake cuDNN.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/cudnn_attention.hpp"
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
    CHECK(dnn.graphs == 2);  // twice, for the same bits
    REQUIRE(all.run(library, all.forward()) == kDone);
    CHECK(dnn.plans == 1);
    CHECK(dnn.graphs == 3);
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
  dnn.run_status = 5000;
  CHECK(all.run(library, all.forward()) == kDnnErrors + 5000);
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
    what = "a second computation of the result differs";
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
    what = "a second computation of dq differs";
  }
  AttentionCall call = is_backward ? all.backward() : all.forward();
  CHECK(all.run(library, call) == kUnsupported);
  CHECK(all.stream.scratch.used == 0);
  REQUIRE(all.log.size() == 1);
  CHECK_THAT(all.log[0], Catch::StartsWith("cuDNN 9.19.0 computes attention wrongly (bf16, queries "
                                           "[1, 2, 64, 16], keys [1, 1, 64, 16], causal): "));
  CHECK_THAT(all.log[0], Contains(what));
  CHECK_THAT(library.attention_problem(), Contains(what));
  int64_t runs = dnn.graphs;
  dnn.factor = 1, dnn.varies = dnn.ignores_mask = false;
  Operands other({1, 2, 2, 64, 128, 24});
  CHECK(other.run(library, other.forward()) == kUnsupported);
  CHECK(dnn.graphs == runs);
  CHECK(all.log.size() == 1);
}

TEST_CASE("cuDNN's attention: a result of zeros says nothing, so that the next one is checked") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  std::vector<double> values = all.v.values();
  for (int64_t i = 0; i < all.v.count(); i++) all.v.set(i, 0);
  dnn.factor = 2;
  CHECK(all.run(library, all.forward()) == kUnsupported);
  CHECK(all.log.empty());
  for (int64_t i = 0; i < all.v.count(); i++) all.v.set(i, values[static_cast<size_t>(i)]);
  CHECK(all.run(library, all.forward()) == kUnsupported);
  CHECK(all.log.size() == 1);
}

TEST_CASE("cuDNN's attention: after some results of zeros the shape is left to flow's kernels") {
  FakeCudnn& dnn = fresh_fake();
  DnnLibrary library(FAKE_CUDNN);
  Operands all;
  for (int64_t i = 0; i < all.v.count(); i++) all.v.set(i, 0);
  for (int i = 0; i < 20; i++) CHECK(all.run(library, all.forward()) == kUnsupported);
  CHECK(dnn.graphs == 8);
  CHECK(all.log.empty());
  CHECK(library.attention_problem().empty());
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
}

TEST_CASE("cuDNN's attention: what is within rounding") {
  std::vector<float> squares{4, 4, 0, 4};  // their mean is 3
  auto apart = [&](std::vector<float> differences, DType dtype = DType::bf16) {
    return judge_rows(differences, squares, dtype, 64);
  };
  CHECK(apart({0, 0, 0, 0}).is_right());
  CHECK(apart({0.0625f, 0, 0, 0}).apart == Approx(0.125));
  CHECK(apart({0.0625f, 0, 0, 0}).is_right());
  CHECK_FALSE(apart({0, 0.063f, 0, 0}).is_right());
  CHECK(apart({0, 0, 0.046f, 0}).is_right());
  CHECK_FALSE(apart({0, 0, 0.048f, 0}).is_right());
  CHECK_FALSE(apart({0.0625f, 0, 0, 0}, DType::f16).is_right());
  CHECK(apart({0.0009f, 0, 0, 0}, DType::f16).is_right());
  CHECK_FALSE(apart({0, NAN, 0, 0}).is_right());
  CHECK_FALSE(apart({0, INFINITY, 0, 0}).is_right());
  squares = {0, 0, 0, 0};
  CHECK_FALSE(apart({1, 1, 1, 1}).is_decided);
  squares = {3.8e-6f, 3.8e-6f, 3.8e-6f, 3.8e-6f};  // 64 times the square of 2^-12
  CHECK_FALSE(apart({0, 0, 0, 0}, DType::f16).is_decided);
  CHECK(apart({0, 0, 0, 0}).is_decided);
  squares = {1, NAN, 1, 1};
  CHECK_FALSE(apart({0, NAN, 0, 0}).is_decided);

  CHECK(judge_logarithms({1, 2}, {1, 2 + 1.0 / 1024}).is_right());
  CHECK_FALSE(judge_logarithms({1, 2}, {1, 2 + 1.2 / 1024}).is_right());
  CHECK(judge_logarithms({1024}, {1024 + 1.0 / 16}).is_right());
  CHECK_FALSE(judge_logarithms({NAN}, {1}).is_right());
  CHECK_FALSE(judge_logarithms({NAN}, {NAN}).is_decided);
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

TEST_CASE("the table's attention: an unknown maker is an error", "[.unknown]") {
  Operands all({}, DType::f32);
  int code = all.run_table();
  CHECK(code == kAttentionVariableError);
  CHECK(std::string(cuda_kernels()->error_text(code)) ==
        "the environment has FLOW_ATTENTION=cudnn: its only value is `own`");
}

}  // namespace
}  // namespace flow::cuda::dnn
