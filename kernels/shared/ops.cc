// The operations' names, as in Lua and the parity report.
#include "kernels/shared/ops.hpp"

namespace flow::kernels {

const char* name_of(Unary op) {
  constexpr const char* names[kUnaryCount] = {
      "identity", "neg",       "abs",   "sign",       "square", "relu", "exp",  "expm1",   "log",
      "log1p",    "sqrt",      "rsqrt", "reciprocal", "sin",    "cos",  "tanh", "sigmoid", "erf",
      "gelu",     "gelu_tanh", "silu",  "softplus",   "floor",  "ceil", "round"};
  return names[static_cast<int>(op)];
}

const char* name_of(Binary op) {
  constexpr const char* names[kBinaryCount] = {"add",     "sub",     "mul",       "div", "pow",
                                               "maximum", "minimum", "floor_div", "mod"};
  return names[static_cast<int>(op)];
}

const char* name_of(Compare op) {
  constexpr const char* names[kCompareCount] = {"eq", "ne", "lt", "le", "gt", "ge"};
  return names[static_cast<int>(op)];
}

const char* name_of(Reduce op) {
  constexpr const char* names[kReduceCount] = {"sum",  "mean", "product", "max", "min",
                                               "norm", "var",  "any",     "all"};
  return names[static_cast<int>(op)];
}

}  // namespace flow::kernels
