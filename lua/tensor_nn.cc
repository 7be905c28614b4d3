// What training needs beyond arithmetic; stdlib/flow/nn.lua and optim.lua are written on these.
#include <fmt/format.h>

#include "kernels/cpu/adamw.hpp"
#include "kernels/cpu/bias.hpp"
#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/cross_entropy.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::View;

// What is written in place: f32 and dense, as every tensor is that flow.zeros or a layer made.
View check_target(lua_State* L, int index, const char* what) {
  View view = check_tensor(L, index, what);
  if (view.dtype != DType::f32 || !kernels::is_dense(view))
    raise(L,
          fmt::format("{} is a dense f32 tensor, not {}{}", what, describe(view),
                      kernels::is_dense(view) ? "" : " that is a part or a transpose of another"));
  return view;
}

View check_matrix(lua_State* L, int index, const char* what) {
  const View& view = check_tensor(L, index, what);
  if (view.rank() != 2 || !kernels::is_float(view.dtype))
    raise(L, fmt::format("{} is a matrix of floats, not {}", what, describe(view)));
  return as_dense(L, view, DType::f32);
}

int relu_backward(lua_State* L) {  // x:relu_backward(grad)
  View in = check_tensor(L, 1, "x in x:relu_backward(grad)");
  View grad = check_tensor(L, 2, "grad in x:relu_backward(grad)");
  if (!(in.shape == grad.shape))
    raise(L,
          fmt::format("the gradient {} is not of the shape of {}", describe(grad), describe(in)));
  in = as_dense(L, in, DType::f32);
  grad = as_dense(L, grad, DType::f32);
  cpu::relu_backward(in, grad, new_tensor(L, DType::f32, in.shape));
  return 1;
}

int add_bias(lua_State* L) {  // x:add_bias_(b)
  View matrix = check_target(L, 1, "x in x:add_bias_(b)");
  View bias = check_tensor(L, 2, "b in x:add_bias_(b)");
  if (matrix.rank() != 2 || bias.rank() != 1 || bias.shape[0] != matrix.shape[1])
    raise(L, fmt::format("cannot add the bias {} to the rows of {}", describe(bias),
                         describe(matrix)));
  bias = as_dense(L, bias, DType::f32);
  cpu::add_bias(matrix.at<float>(), bias.at<float>(), matrix.shape[0], matrix.shape[1]);
  lua_settop(L, 1);
  return 1;
}

int add_sum_of_rows(lua_State* L) {  // b:add_sum_of_rows_(grad)
  View bias = check_target(L, 1, "b in b:add_sum_of_rows_(grad)");
  View matrix = check_matrix(L, 2, "grad in b:add_sum_of_rows_(grad)");
  if (bias.rank() != 1 || bias.shape[0] != matrix.shape[1])
    raise(L, fmt::format("cannot add the rows of {} to {}", describe(matrix), describe(bias)));
  cpu::add_sum_of_rows(matrix.at<float>(), bias.at<float>(), matrix.shape[0], matrix.shape[1]);
  lua_settop(L, 1);
  return 1;
}

template <void (*kernel)(const float*, float*, int64_t, int64_t)>
int rows_to_rows(lua_State* L) {
  const View& in = check_tensor(L, 1, "the operand");
  if (in.rank() == 0) raise(L, "softmax is along the last dimension, and this tensor has none");
  View dense = as_dense(L, in, DType::f32);
  View out = new_tensor(L, DType::f32, in.shape);
  int64_t columns = in.shape[in.rank() - 1];
  if (columns > 0) kernel(dense.at<float>(), out.at<float>(), in.count() / columns, columns);
  return 1;
}

// logits:cross_entropy(labels) -> mean loss, gradient of it with regard to the logits
int cross_entropy(lua_State* L) {
  View logits = check_matrix(L, 1, "the logits of a cross entropy");
  const View& labels = check_tensor(L, 2, "the labels of a cross entropy");
  int64_t rows = logits.shape[0], columns = logits.shape[1];
  if (labels.rank() != 1 || labels.shape[0] != rows || kernels::is_float(labels.dtype) ||
      labels.dtype == DType::boolean)
    raise(L, fmt::format("the labels of {} are {} integers, one a row, not {}", describe(L, 1),
                         rows, describe(labels)));
  if (rows == 0) raise(L, "a cross entropy of no rows has no mean");
  std::vector<int64_t> classes(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; row++) {
    int64_t label = cpu::first_as_integer(kernels::select(labels, 0, row));
    if (label < 1 || label > columns)
      raise(L,
            fmt::format("label {} of row {} is outside 1..{}: a label is the number of its column; "
                        "if yours begin with 0, pass labels + 1",
                        label, row + 1, columns));
    classes[static_cast<size_t>(row)] = label - 1;
  }
  View grad = new_tensor(L, DType::f32, logits.shape);
  double loss =
      cpu::cross_entropy(logits.at<float>(), classes.data(), grad.at<float>(), rows, columns);
  lua_pushnumber(L, loss);
  lua_insert(L, -2);
  return 2;
}

double option(lua_State* L, int table, const char* name, double otherwise) {
  lua_getfield(L, table, name);
  double value = luaL_optnumber(L, -1, otherwise);
  lua_pop(L, 1);
  return value;
}

// weights:adamw_(grad, mean, square, { lr =, beta1 =, beta2 =, eps =, weight_decay =, step = })
int adamw(lua_State* L) {
  View weights = check_target(L, 1, "the weights of adamw_");
  View mean = check_target(L, 3, "the first moment of adamw_");
  View square = check_target(L, 4, "the second moment of adamw_");
  View grad = check_tensor(L, 2, "the gradient of adamw_");
  for (const View& other : {grad, mean, square})
    if (!(other.shape == weights.shape))
      raise(L, fmt::format("adamw_ of {}: {} is of another shape", describe(weights),
                           describe(other)));
  luaL_checktype(L, 5, LUA_TTABLE);
  cpu::AdamW options;
  options.lr = option(L, 5, "lr", options.lr);
  options.beta1 = option(L, 5, "beta1", options.beta1);
  options.beta2 = option(L, 5, "beta2", options.beta2);
  options.eps = option(L, 5, "eps", options.eps);
  options.weight_decay = option(L, 5, "weight_decay", options.weight_decay);
  options.step = static_cast<int64_t>(option(L, 5, "step", 1));
  grad = as_dense(L, grad, DType::f32);
  cpu::adamw(options, weights.at<float>(), grad.at<float>(), mean.at<float>(), square.at<float>(),
             weights.count());
  lua_settop(L, 1);
  return 1;
}

}  // namespace

const luaL_Reg kTensorNetworks[] = {{"relu_backward", relu_backward},
                                    {"add_bias_", add_bias},
                                    {"add_sum_of_rows_", add_sum_of_rows},
                                    {"softmax", rows_to_rows<cpu::softmax>},
                                    {"log_softmax", rows_to_rows<cpu::log_softmax>},
                                    {"cross_entropy", cross_entropy},
                                    {"adamw_", adamw},
                                    {nullptr, nullptr}};

}  // namespace flow::lua
