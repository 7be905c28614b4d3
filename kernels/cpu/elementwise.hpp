// One result an element: arithmetic, comparison and functions of one number.
#pragma once
#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

enum class Binary : uint8_t { add, sub, mul, div, pow, maximum, minimum };
enum class Compare : uint8_t { eq, ne, lt, le, gt, ge };
enum class Unary : uint8_t { neg, abs, exp, log, sqrt, tanh, sigmoid, relu };

/// out = a op b. All of one shape (stretched) and one type: f32, f64, i64, i32 or u8; div and pow
/// f32 or f64 only. `out` may be `a` or `b`. Integers wrap.
void binary(Binary op, const View& a, const View& b, const View& out);
/// out (bool) = a op b. As binary.
void compare(Compare op, const View& a, const View& b, const View& out);
/// out = op(in): one shape, one type; neg, abs and relu of any, the others f32 or f64 only.
void unary(Unary op, const View& in, const View& out);
/// out = grad where in > 0, else 0. All f32 of one shape.
void relu_backward(const View& in, const View& grad, const View& out);

}  // namespace flow::cpu
