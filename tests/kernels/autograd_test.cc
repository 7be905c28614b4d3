// The gradient of every operation against finite differences in f64, and the rules of autograd.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

uint64_t fresh_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("FLOW_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

Tensor random_input(const Shape& shape, uint64_t number, double low = -1, double high = 1) {
  return uniform(DType::f64, shape, fresh_seed() + number, low, high);
}

double dot(const Tensor& a, const Tensor& b) {
  return item_of(reduce(Reduce::sum, binary(Binary::mul, a, b), all_dims(a)));
}

double* elements(const Tensor& x) { return x.view().at<double>(); }

// Moves each element of each input a little in both directions.
void check_gradients(const char* name, const Inputs& inputs, const Function& function,
                     double tolerance = 1e-7) {
  INFO(name << ", FLOW_TEST_SEED=" << fresh_seed());
  for (Tensor each : inputs) {
    each.want_gradient(true);
    each.set_gradient({});
  }
  Tensor out = function(inputs);
  Tensor direction = uniform(DType::f64, out.shape(), fresh_seed() + 99, 0.5, 1.5);
  backward(out, direction);
  NoRecord off;
  for (size_t input = 0; input < inputs.size(); input++) {
    REQUIRE(inputs[input].gradient());
    Tensor gradient = contiguous(inputs[input].gradient());
    for (int64_t i = 0; i < inputs[input].count(); i++) {
      constexpr double kStep = 1e-6;
      double& element = elements(inputs[input])[i];
      double before = element;
      element = before + kStep;
      double above = dot(function(inputs), direction);
      element = before - kStep;
      double below = dot(function(inputs), direction);
      element = before;
      double numeric = (above - below) / (2 * kStep), exact = elements(gradient)[i];
      INFO("input " << input << ", element " << i << ": " << exact << " and " << numeric);
      CHECK(std::abs(exact - numeric) <= tolerance * std::max(1.0, std::abs(numeric)) + 1e-7);
    }
  }
}

TEST_CASE("the gradients of unary functions equal finite differences") {
  for (int op = 0; op < kernels::kUnaryCount; op++) {
    auto unary_op = static_cast<Unary>(op);
    if (unary_op == Unary::floor || unary_op == Unary::ceil || unary_op == Unary::round) continue;
    // Away from 0, where some functions have a corner.
    Tensor x = random_input({3, 4}, 1, 0.3, 1.7);
    check_gradients(kernels::name_of(unary_op), {x},
                    [&](const Inputs& in) { return unary(unary_op, in[0]); });
    bool below_zero = unary_op != Unary::log && unary_op != Unary::sqrt &&
                      unary_op != Unary::rsqrt && unary_op != Unary::log1p;
    if (!below_zero) continue;
    check_gradients(kernels::name_of(unary_op), {random_input({5}, 2, -1.7, -0.3)},
                    [&](const Inputs& in) { return unary(unary_op, in[0]); });
  }
}

TEST_CASE("arithmetic sums the gradients of broadcast operands") {
  for (Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::div, Binary::pow,
                    Binary::maximum, Binary::minimum, Binary::mod}) {
    Tensor a = random_input({2, 1, 3}, 3, 1, 2), b = random_input({4, 1}, 4, 0.4, 0.9);
    check_gradients(kernels::name_of(op), {a, b},
                    [&](const Inputs& in) { return binary(op, in[0], in[1]); });
    for (bool reversed : {false, true})
      check_gradients(
          kernels::name_of(op), {random_input({5}, 5, 0.5, 1.4)},
          [&](const Inputs& in) { return binary(op, in[0], Number::of(1.45), reversed); });
  }
  check_gradients("lerp", {random_input({3, 2}, 6), random_input({2}, 7)},
                  [](const Inputs& in) { return lerp(in[0], in[1], 0.3); });
  check_gradients("add_product",
                  {random_input({3, 2}, 8), random_input({2}, 9), random_input({3, 1}, 10)},
                  [](const Inputs& in) { return add_product(in[0], in[1], in[2], 0.7); });
  check_gradients("add_quotient",
                  {random_input({3, 2}, 8), random_input({2}, 9), random_input({3, 1}, 10, 0.5, 1)},
                  [](const Inputs& in) { return add_quotient(in[0], in[1], in[2], 0.7); });
  check_gradients("clamp", {random_input({7}, 11)},
                  [](const Inputs& in) { return clamp(in[0], Number::of(-0.4), Number::of(0.6)); });
  check_gradients("dropout", {random_input({4, 9}, 12)},
                  [](const Inputs& in) { return dropout(in[0], 0.4, 17); });
}

TEST_CASE("shape changes, slices and concatenations return gradients to their inputs") {
  Tensor x = random_input({3, 4, 5}, 20), y = random_input({3, 2, 5}, 21);
  check_gradients("reshape", {x}, [](const Inputs& in) { return reshape(in[0], {6, 10}); });
  check_gradients("permute", {x}, [](const Inputs& in) {
    int order[] = {2, 0, 1};
    return unary(Unary::square, permute(in[0], order));
  });
  check_gradients("narrow", {x}, [](const Inputs& in) { return narrow(in[0], 1, 3, 2, -2); });
  check_gradients("select", {x}, [](const Inputs& in) { return select(in[0], 2, 4); });
  check_gradients("expand", {random_input({3, 1}, 22)}, [](const Inputs& in) {
    return expand(in[0], {2, 3, 4});
  });
  check_gradients("cat", {x, y}, [](const Inputs& in) { return cat({in[0], in[1], in[0]}, 1); });
  check_gradients("stack", {y}, [](const Inputs& in) { return stack({in[0], in[0]}, 3); });
}

TEST_CASE("reductions distribute their gradients") {
  Tensor x = random_input({3, 4, 2}, 30, 0.5, 1.5);
  for (Reduce op :
       {Reduce::sum, Reduce::mean, Reduce::product, Reduce::norm, Reduce::max, Reduce::min})
    for (const Dims& dims : {Dims{1}, Dims{0, 2}, Dims{0, 1, 2}})
      check_gradients(kernels::name_of(op), {contiguous(copy_of(x))}, [&](const Inputs& in) {
        bool extreme = op == Reduce::max || op == Reduce::min;
        return extreme ? extreme_of(op == Reduce::max, in[0], dims) : reduce(op, in[0], dims, true);
      });
  check_gradients("var", {copy_of(x)}, [](const Inputs& in) { return variance(in[0], {0, 2}, 1); });
  check_gradients("cumsum", {copy_of(x)}, [](const Inputs& in) { return cumsum(in[0], 1); });
  check_gradients("extreme", {copy_of(x)},
                  [](const Inputs& in) { return extreme(true, in[0], 1, 0).value; });
  check_gradients("top_k", {copy_of(x)},
                  [](const Inputs& in) { return top_k(swap_dims(in[0], 1, 2), 2, 0).values; });
}

TEST_CASE("matmul") {
  check_gradients("matmul", {random_input({3, 4}, 40), random_input({4, 2}, 41)},
                  [](const Inputs& in) { return matmul(in[0], in[1]); });
  check_gradients("batches", {random_input({2, 1, 3, 4}, 42), random_input({3, 4, 2}, 43)},
                  [](const Inputs& in) { return matmul(in[0], in[1]); });
  check_gradients("linear",
                  {random_input({2, 3, 4}, 44), random_input({5, 4}, 45), random_input({5}, 46)},
                  [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
}

Tensor indices(std::initializer_list<int64_t> values) {
  Tensor out = Tensor::empty(DType::i64, Shape{static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), out.view().at<int64_t>());
  return out;
}

TEST_CASE("nn_ops") {
  Tensor x = random_input({3, 6}, 50);
  for (bool logarithm : {false, true})
    check_gradients("softmax", {copy_of(x)},
                    [&](const Inputs& in) { return softmax(in[0], 0, logarithm); });
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    check_gradients("cross_entropy", {copy_of(x)}, [&](const Inputs& in) {
      return cross_entropy(in[0], indices({0, -1, 5}), 0, -1, reduction);
    });
  check_gradients(
      "layer_norm", {copy_of(x), random_input({6}, 51), random_input({6}, 52)},
      [](const Inputs& in) { return layer_norm(in[0], in[1], in[2], 1e-5); }, 1e-6);
  check_gradients(
      "rms_norm", {copy_of(x), random_input({6}, 51)},
      [](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); }, 1e-6);
  // A norm adds its gradient to the one that its operand has from the addition.
  for (bool centered : {true, false})
    check_gradients(
        "a residual stream", {copy_of(x), random_input({6}, 51)},
        [=](const Inputs& in) {
          Tensor stream = reshape(unary(Unary::square, in[0]), {1, 3, 6});
          for (int i = 0; i < 2; i++) {
            Tensor y = centered ? layer_norm(stream, in[1], {}, 1e-2) : rms_norm(stream, in[1], 1);
            stream = binary(Binary::add, stream, unary(Unary::square, y));
          }
          return stream;
        },
        1e-5);
  check_gradients(
      "a norm of an input that has a gradient", {copy_of(x)},
      [](const Inputs& in) {
        return binary(Binary::mul, layer_norm(in[0], {}, {}, 1e-2), unary(Unary::exp, in[0]));
      },
      1e-5);
  check_gradients("embedding", {random_input({4, 3}, 53)}, [](const Inputs& in) {
    return embedding(in[0], indices({1, 3, 1}), 0);
  });
  check_gradients("index_select", {random_input({2, 4, 3}, 53)}, [](const Inputs& in) {
    return index_select(in[0], 1, indices({1, 3, 1}), 0);
  });
  check_gradients("gather", {random_input({3, 4}, 54)}, [](const Inputs& in) {
    return gather(in[0], 0, reshape(indices({0, 2, 2, 1}), {2, 2}), 0);
  });
  check_gradients("scatter_add", {random_input({3, 4}, 54), random_input({2, 2}, 55)},
                  [](const Inputs& in) {
                    return scatter_add(in[0], 1, reshape(indices({0, 2, 2, 3}), {2, 2}), in[1], 0);
                  });
  Tensor q = random_input({2, 4, 3, 4}, 56), k = random_input({2, 2, 5, 4}, 57),
         v = random_input({2, 2, 5, 4}, 58);
  for (bool causal : {false, true})
    check_gradients(
        "attention", {copy_of(q), copy_of(k), copy_of(v)},
        [&](const Inputs& in) { return attention(in[0], in[1], in[2], causal, 0.6); }, 1e-6);
  check_gradients(
      "self_attention", {random_input({2, 3, 16}, 59)},
      [](const Inputs& in) { return self_attention(in[0], 2, 1, true, std::nullopt); }, 1e-6);
  check_gradients("rotary", {copy_of(q)}, [](const Inputs& in) { return rotary(in[0], 2, 100); });
}

TEST_CASE("conv_pool") {
  kernels::Conv2d conv;
  conv.stride[0] = 2;
  conv.padding[1] = 1;
  conv.groups = 2;
  check_gradients(
      "conv2d",
      {random_input({2, 4, 5, 4}, 60), random_input({2, 2, 3, 2}, 61), random_input({2}, 62)},
      [&](const Inputs& in) { return conv2d(in[0], in[1], in[2], conv); });
  kernels::Pool2d pool;
  pool.window[0] = pool.window[1] = 2;
  pool.stride[0] = 2;
  pool.padding[0] = 1;
  check_gradients("max_pool2d", {random_input({2, 2, 4, 5}, 63)},
                  [&](const Inputs& in) { return max_pool2d(in[0], pool); });
  check_gradients("avg_pool2d", {random_input({2, 2, 4, 5}, 64)},
                  [&](const Inputs& in) { return avg_pool2d(in[0], pool); });
  for (bool bilinear : {false, true})
    check_gradients("resize", {random_input({1, 2, 4, 3}, 65)},
                    [&](const Inputs& in) { return resize(in[0], 7, 2, bilinear); });
}

// ---- the rules

Tensor leaf(std::initializer_list<double> values) {
  Tensor out = Tensor::empty(DType::f64, Shape{static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), elements(out));
  out.want_gradient(true);
  return out;
}

TEST_CASE("a tensor that is used twice gets the sum, and a second backward adds to the first") {
  Tensor x = leaf({3});
  backward(binary(Binary::add, binary(Binary::mul, x, x), x), {});
  CHECK(elements(x.gradient())[0] == 7);
  backward(binary(Binary::mul, x, Number::of(2.0)), {});
  CHECK(elements(x.gradient())[0] == 9);
}

TEST_CASE("an operation that was not recorded has no gradient, and the error says so") {
  Tensor x = leaf({1, 2});
  {
    NoRecord off;
    CHECK_FALSE(unary(Unary::exp, x).is_tracked());
  }
  CHECK_FALSE(unary(Unary::exp, x.detached()).is_tracked());
  CHECK_THROWS_WITH(backward(x.detached(), {}), Catch::Contains("has no gradients to compute"));
  CHECK_THROWS_WITH(backward(unary(Unary::exp, x), {}), Catch::Contains("starts from one number"));
  Tensor whole = Tensor::zeros(DType::i64, {1});
  CHECK_THROWS_WITH(whole.want_gradient(true), Catch::Contains("only floats have gradients"));
}

TEST_CASE("backward runs through a graph once") {
  Tensor x = leaf({1});
  Tensor y = unary(Unary::exp, x);
  backward(y, {});
  CHECK_THROWS_WITH(backward(y, {}), Catch::Contains("has already passed `exp`"));
}

TEST_CASE("a tensor that backward needs must not be changed in place") {
  Tensor x = leaf({1}), scale = leaf({2}).detached();
  Tensor y = binary(Binary::mul, x, scale);
  fill_in_place(scale, Number::of(5.0));
  CHECK_THROWS_WITH(backward(y, {}), Catch::Contains("changed in place"));
  CHECK_THROWS_WITH(fill_in_place(x, Number::of(1.0)), Catch::Contains("behind autograd's"));
}

TEST_CASE("a leaf owns its gradient") {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Tensor start = copy_of(leaf({1, 1}).detached());
  backward(binary(Binary::add, x, y), start);
  fill_in_place(x.gradient(), Number::of(9.0));
  CHECK(elements(y.gradient())[0] == 1);
  CHECK(elements(start)[0] == 1);
}

TEST_CASE("a recorded graph without backward is released with its result") {
  Tensor x = leaf({1, 2, 3}), rows = reshape(x, {1, 3});
  const std::function<Tensor()> results[] = {
      [&] { return unary(Unary::exp, x); },
      [&] { return softmax(x, 0, false); },
      [&] { return binary(Binary::div, x, x); },
      [&] { return binary(Binary::pow, x, Number::of(0.5)); },
      [&] { return variance(x, {0}, 1); },
      [&] { return reduce(Reduce::norm, x, {0}); },
      [&] { return top_k(x, 2, 0).values; },
      [&] { return layer_norm(rows, {}, {}, 1e-5); },
      [&] {
        return self_attention(reshape(x, {1, 1, 3}), 1, 1, true, {});
      },
      [&] { return cross_entropy(rows, Tensor::zeros(DType::i64, {1}), 0, -1, Reduction::none); }};
  for (const auto& result : results) {
    RefPtr<Storage> memory;
    {
      Tensor out = result();
      REQUIRE(out.is_tracked());
      memory = out.storage();
    }
    CHECK_FALSE(memory->is_shared());
  }
}

TEST_CASE("a backward function that returns another shape or type is rejected at any input") {
  for (bool leaf_operand : {true, false}) {
    Tensor x = leaf({1, 2});
    Tensor operand = leaf_operand ? x : unary(Unary::exp, x);
    Tensor y =
        record("wrong", copy_of(operand.detached()), {operand},
               [](const Tensor&, Gradients& to) { to.set(0, Tensor::zeros(DType::f64, {3})); });
    Tensor sum = reduce(Reduce::sum, y, {0});
    CHECK_THROWS_WITH(backward(sum, {}), Catch::Contains("the backward of `wrong` gave"));
  }
}

TEST_CASE(
    "a million operations in a row run backward, and are dropped without it, in a small stack") {
  Tensor x = leaf({1});
  Tensor walked = x, dropped = x;
  for (int i = 0; i < 1'000'000; i++) {
    walked = binary(Binary::add, walked, Number::of(1.0));
    dropped = binary(Binary::add, dropped, Number::of(1.0));
  }
  backward(walked, {});
  CHECK(elements(x.gradient())[0] == 1);
  dropped = {};
}

TEST_CASE("with mixed precision products are rounded, and weights keep their type") {
  Tensor x = leaf({1.001}), w = leaf({3});
  Tensor a = cast(reshape(x, {1, 1}), DType::f32), b = cast(reshape(w, {1, 1}), DType::f32);
  runtime().casts = true;
  Tensor y = matmul(a, b);
  runtime().casts = false;
  CHECK(y.dtype() == DType::bf16);
  CHECK(item_of(y) == 3);  // 1.001 is 1 in bf16
  backward(y, {});
  CHECK(x.gradient().dtype() == DType::f64);
  CHECK(elements(x.gradient())[0] == 3);
  CHECK(elements(w.gradient())[0] == 1);
}

TEST_CASE("gradients are clipped by their common norm") {
  Tensor a = leaf({3}).detached(), b = leaf({4}).detached();
  CHECK(clip_norm({a, b}, 10) == 5);
  CHECK(elements(a)[0] == 3);
  CHECK(clip_norm({a, b}, 1) == 5);
  CHECK(std::abs(elements(b)[0] - 0.8) < 1e-6);
}

}  // namespace
}  // namespace flow::tensors
