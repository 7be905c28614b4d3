// One result an element: arithmetic, comparison and functions of one number.
#include "kernels/cpu/elementwise.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/walk.hpp"
#include "kernels/shared/types.hpp"

namespace flow::cpu {
namespace {

// Signed overflow is undefined in C++, wrapping is not.
template <typename T>
T wrap(T a, T b, auto op) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(op(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return op(a, b);
  }
}

template <typename T, typename Out = T>
void each_pair(const View& a, const View& b, const View& out, auto op) {
  for_each_run<3>({a, b, out}, [op](auto at, auto stride, int64_t length) {
    const T* x = reinterpret_cast<const T*>(at[0]);
    const T* y = reinterpret_cast<const T*>(at[1]);
    Out* to = reinterpret_cast<Out*>(at[2]);
    if (stride[0] == 1 && stride[1] == 1 && stride[2] == 1) {
      for (int64_t i = 0; i < length; i++) to[i] = op(x[i], y[i]);
    } else if (stride[0] == 1 && stride[1] == 0 && stride[2] == 1) {
      T same = *y;
      for (int64_t i = 0; i < length; i++) to[i] = op(x[i], same);
    } else {
      for (int64_t i = 0; i < length; i++)
        to[i * stride[2]] = op(x[i * stride[0]], y[i * stride[1]]);
    }
  });
}

template <typename T>
void binary_of(Binary op, const View& a, const View& b, const View& out) {
  switch (op) {
    case Binary::add:
      return each_pair<T>(
          a, b, out, [](T x, T y) { return wrap(x, y, [](auto p, auto q) { return p + q; }); });
    case Binary::sub:
      return each_pair<T>(
          a, b, out, [](T x, T y) { return wrap(x, y, [](auto p, auto q) { return p - q; }); });
    case Binary::mul:
      return each_pair<T>(
          a, b, out, [](T x, T y) { return wrap(x, y, [](auto p, auto q) { return p * q; }); });
    case Binary::maximum:
      return each_pair<T>(a, b, out, [](T x, T y) { return x > y || is_nan(x) ? x : y; });
    case Binary::minimum:
      return each_pair<T>(a, b, out, [](T x, T y) { return x < y || is_nan(x) ? x : y; });
    case Binary::div:
    case Binary::pow:
      if constexpr (std::is_floating_point_v<T>) {
        if (op == Binary::div) return each_pair<T>(a, b, out, [](T x, T y) { return x / y; });
        return each_pair<T>(a, b, out, [](T x, T y) { return std::pow(x, y); });
      }
      FLOW_CHECK(!"integers are divided as floats");
  }
}

template <typename T>
void compare_of(Compare op, const View& a, const View& b, const View& out) {
  auto run = [&](auto test) {
    each_pair<T, uint8_t>(a, b, out, [test](T x, T y) { return uint8_t{test(x, y)}; });
  };
  switch (op) {
    case Compare::eq:
      return run([](T x, T y) { return x == y; });
    case Compare::ne:
      return run([](T x, T y) { return x != y; });
    case Compare::lt:
      return run([](T x, T y) { return x < y; });
    case Compare::le:
      return run([](T x, T y) { return x <= y; });
    case Compare::gt:
      return run([](T x, T y) { return x > y; });
    case Compare::ge:
      return run([](T x, T y) { return x >= y; });
  }
}

template <typename T>
void each(const View& in, const View& out, auto op) {
  for_each_run<2>({in, out}, [op](auto at, auto stride, int64_t length) {
    const T* x = reinterpret_cast<const T*>(at[0]);
    T* to = reinterpret_cast<T*>(at[1]);
    for (int64_t i = 0; i < length; i++) to[i * stride[1]] = op(x[i * stride[0]]);
  });
}

template <typename T>
void unary_of(Unary op, const View& in, const View& out) {
  auto negate = [](T x) { return wrap(T{0}, x, [](auto p, auto q) { return p - q; }); };
  switch (op) {
    case Unary::neg:
      if constexpr (std::is_floating_point_v<T>) return each<T>(in, out, [](T x) { return -x; });
      return each<T>(in, out, negate);
    case Unary::abs:
      if constexpr (std::is_floating_point_v<T>)
        return each<T>(in, out, [](T x) { return std::fabs(x); });
      return each<T>(in, out, [negate](T x) { return x < T{0} ? negate(x) : x; });
    case Unary::relu:
      return each<T>(in, out, [](T x) { return x > T{0} || is_nan(x) ? x : T{0}; });
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == Unary::exp) return each<T>(in, out, [](T x) { return std::exp(x); });
    if (op == Unary::log) return each<T>(in, out, [](T x) { return std::log(x); });
    if (op == Unary::sqrt) return each<T>(in, out, [](T x) { return std::sqrt(x); });
    if (op == Unary::tanh) return each<T>(in, out, [](T x) { return std::tanh(x); });
    if (op == Unary::sigmoid) return each<T>(in, out, [](T x) { return 1 / (1 + std::exp(-x)); });
  }
  FLOW_CHECK(!"this function is of floats");
}

}  // namespace

void binary(Binary op, const View& a, const View& b, const View& out) {
  FLOW_CHECK(a.shape == out.shape && b.shape == out.shape && a.dtype == b.dtype);
  FLOW_CHECK(a.dtype == out.dtype);
  visit_number(out.dtype, [&](auto type) { binary_of<decltype(type)>(op, a, b, out); });
}

void compare(Compare op, const View& a, const View& b, const View& out) {
  FLOW_CHECK(a.shape == out.shape && b.shape == out.shape && a.dtype == b.dtype);
  FLOW_CHECK(out.dtype == DType::boolean);
  visit_number(a.dtype, [&](auto type) { compare_of<decltype(type)>(op, a, b, out); });
}

void unary(Unary op, const View& in, const View& out) {
  FLOW_CHECK(in.shape == out.shape && in.dtype == out.dtype);
  visit_number(in.dtype, [&](auto type) { unary_of<decltype(type)>(op, in, out); });
}

void relu_backward(const View& in, const View& grad, const View& out) {
  FLOW_CHECK(in.dtype == DType::f32 && grad.dtype == DType::f32 && out.dtype == DType::f32);
  FLOW_CHECK(in.shape == out.shape && grad.shape == out.shape);
  each_pair<float>(in, grad, out, [](float x, float g) { return x > 0 ? g : 0; });
}

}  // namespace flow::cpu
