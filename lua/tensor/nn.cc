// Operations of neural networks, used by stdlib/flow/nn.lua and optim.lua. Indices and labels count
// from 1.
#include <fmt/format.h>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/capture.hpp"
#include "lua/state/arguments.hpp"
#include "lua/state/vm_context.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Tensor;

constexpr double kLayerNormEps = 1e-5;  // as in PyTorch
constexpr double kRmsNormEps = 1e-6;    // as in Llama; PyTorch uses the type's own, 1.2e-7 for f32

Tensor optional_tensor(lua_State* L, int index, const char* what) {
  return lua_isnoneornil(L, index) ? Tensor() : check_object(L, index, what);
}

// ---- options in a table

double number_option(lua_State* L, int table, const char* name, double otherwise) {
  if (!lua_istable(L, table)) return otherwise;
  lua_getfield(L, table, name);
  if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TNUMBER)
    raise(L, fmt::format("the option `{}` is a number, not {}", name, describe(L, -1)));
  double value = luaL_optnumber(L, -1, otherwise);
  lua_pop(L, 1);
  return value;
}

int64_t integer_option(lua_State* L, int table, const char* name, int64_t otherwise) {
  if (!lua_istable(L, table)) return otherwise;
  lua_getfield(L, table, name);
  int is_whole = 0;
  lua_Integer value = lua_tointegerx(L, -1, &is_whole);
  if (lua_isnil(L, -1)) value = otherwise;
  bool is_number = lua_type(L, -1) == LUA_TNUMBER;
  if (!lua_isnil(L, -1) && (is_whole == 0 || !is_number))
    raise(L, fmt::format("the option `{}` is a whole number, not {}", name,
                         is_number ? lua_tostring(L, -1) : describe(L, -1)));
  lua_pop(L, 1);
  return value;
}

bool boolean_option(lua_State* L, int table, const char* name) {
  if (!lua_istable(L, table)) return false;
  lua_getfield(L, table, name);
  bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

// A number for both sides, or {rows, columns}.
void pair_option(lua_State* L, int table, const char* name, int64_t* pair) {
  if (!lua_istable(L, table)) return;
  lua_getfield(L, table, name);
  if (lua_isinteger(L, -1)) {
    pair[0] = pair[1] = lua_tointeger(L, -1);
  } else if (lua_istable(L, -1) && lua_rawlen(L, -1) == 2) {
    for (int i = 0; i < 2; i++) {
      lua_rawgeti(L, -1, i + 1);
      pair[i] = luaL_checkinteger(L, -1);
      lua_pop(L, 1);
    }
  } else if (!lua_isnil(L, -1)) {
    raise(L, fmt::format("the option `{}` is an integer or {{rows, columns}}, not {}", name,
                         describe(L, -1)));
  }
  lua_pop(L, 1);
}

// ---- rows

template <bool logarithm>
int softmax(lua_State* L) {  // x:softmax([dim]): the last by default
  const Tensor& x = check_object(L, 1, "the operand of softmax");
  if (x.rank() == 0) raise(L, "softmax is along a dimension, and this tensor has none");
  int dim = lua_isnoneornil(L, 2)
                ? x.rank() - 1
                : check_dim(L, 2, x.view(), logarithm ? "log_softmax" : "softmax");
  push_object(L, tensors::softmax(x, dim, logarithm));
  return 1;
}

// logits:cross_entropy(labels [, { ignore =, reduction = "mean" | "sum" | "none" }])
int cross_entropy(lua_State* L) {
  check_options(L, 3, "x:cross_entropy", {"ignore", "reduction"});
  const Tensor& logits = check_object(L, 1, "the logits of a cross entropy");
  const Tensor& labels = check_object(L, 2, "the labels of a cross entropy");
  int64_t ignore = -100;  // as in PyTorch
  tensors::Reduction reduction = tensors::Reduction::mean;
  if (lua_istable(L, 3)) {
    ignore = integer_option(L, 3, "ignore", ignore);
    lua_getfield(L, 3, "reduction");
    std::string_view name = luaL_optstring(L, -1, "mean");
    if (name != "mean" && name != "sum" && name != "none")
      raise(L, fmt::format("a reduction is \"mean\", \"sum\" or \"none\", not \"{}\"", name));
    reduction = name == "mean"  ? tensors::Reduction::mean
                : name == "sum" ? tensors::Reduction::sum
                                : tensors::Reduction::none;
    lua_pop(L, 1);
  }
  push_object(L, tensors::cross_entropy(logits, labels, 1, ignore, reduction));
  return 1;
}

int layer_norm(lua_State* L) {  // x:layer_norm([weight [, bias [, eps [, for_product]]]])
  push_object(L, tensors::layer_norm(check_object(L, 1, "x in x:layer_norm()"),
                                     optional_tensor(L, 2, "the weight of layer_norm"),
                                     optional_tensor(L, 3, "the bias of layer_norm"),
                                     luaL_optnumber(L, 4, kLayerNormEps), lua_toboolean(L, 5)));
  return 1;
}

int rms_norm(lua_State* L) {  // x:rms_norm([weight [, eps [, for_product]]])
  push_object(L, tensors::rms_norm(check_object(L, 1, "x in x:rms_norm()"),
                                   optional_tensor(L, 2, "the weight of rms_norm"),
                                   luaL_optnumber(L, 3, kRmsNormEps), lua_toboolean(L, 4)));
  return 1;
}

int push_both(lua_State* L, const tensors::SumAndNorm& made) {
  push_object(L, made.sum);
  push_object(L, made.norm);
  return 2;
}

// x:add_layer_norm(y [, weight [, bias [, eps [, for_product]]]]): x + y, and its norm
int add_layer_norm(lua_State* L) {
  return push_both(
      L, tensors::add_layer_norm(check_object(L, 1, "x in x:add_layer_norm()"),
                                 check_object(L, 2, "y in x:add_layer_norm(y)"),
                                 optional_tensor(L, 3, "the weight of add_layer_norm"),
                                 optional_tensor(L, 4, "the bias of add_layer_norm"),
                                 luaL_optnumber(L, 5, kLayerNormEps), lua_toboolean(L, 6)));
}

int add_rms_norm(lua_State* L) {  // x:add_rms_norm(y [, weight [, eps [, for_product]]])
  return push_both(L,
                   tensors::add_rms_norm(check_object(L, 1, "x in x:add_rms_norm()"),
                                         check_object(L, 2, "y in x:add_rms_norm(y)"),
                                         optional_tensor(L, 3, "the weight of add_rms_norm"),
                                         luaL_optnumber(L, 4, kRmsNormEps), lua_toboolean(L, 5)));
}

tensors::Unary activation_argument(lua_State* L, int index) {
  std::string_view name = luaL_optstring(L, index, "");
  if (name.empty()) return tensors::Unary::identity;
  if (name == "relu") return tensors::Unary::relu;
  if (name == "gelu") return tensors::Unary::gelu;
  if (name == "gelu_tanh") return tensors::Unary::gelu_tanh;
  raise(L,
        fmt::format("the activation of x:linear is \"relu\", \"gelu\" or \"gelu_tanh\", not \"{}\"",
                    name));
}

// x:linear(weight [, bias [, activation]])
int linear(lua_State* L) {
  push_object(L, tensors::linear(check_object(L, 1, "x in x:linear(weight, bias)"),
                                 check_object(L, 2, "the weight of a linear layer"),
                                 optional_tensor(L, 3, "the bias of a linear layer"),
                                 activation_argument(L, 4)));
  return 1;
}

int embedding(lua_State* L) {  // table:embedding(index)
  push_object(L, tensors::embedding(check_object(L, 1, "the table of an embedding"),
                                    check_object(L, 2, "the index of an embedding"), 1));
  return 1;
}

// ---- attention

std::optional<double> scale_option(lua_State* L, int table) {
  if (!lua_istable(L, table)) return std::nullopt;
  bool is_given = lua_getfield(L, table, "scale") != LUA_TNIL;
  lua_pop(L, 1);
  return is_given ? std::optional(number_option(L, table, "scale", 0)) : std::nullopt;
}

int attention(lua_State* L) {  // q:attention(k, v [, { causal =, scale = }])
  check_options(L, 4, "q:attention", {"causal", "scale"});
  push_object(L, tensors::attention(check_object(L, 1, "the queries of attention"),
                                    check_object(L, 2, "the keys of attention"),
                                    check_object(L, 3, "the values of attention"),
                                    boolean_option(L, 4, "causal"), scale_option(L, 4)));
  return 1;
}

// packed:self_attention(heads [, { groups =, causal =, scale = }])
int self_attention(lua_State* L) {
  const Tensor& packed = check_object(L, 1, "x in x:self_attention(heads)");
  lua_Integer heads = luaL_checkinteger(L, 2);
  check_options(L, 3, "x:self_attention", {"groups", "causal", "scale"});
  int64_t groups = integer_option(L, 3, "groups", heads);
  push_object(L, tensors::self_attention(packed, heads, groups, boolean_option(L, 3, "causal"),
                                         scale_option(L, 3)));
  return 1;
}

int rotary(lua_State* L) {  // x:rotary([first position, from 0 [, theta]])
  push_object(L, tensors::rotary(check_object(L, 1, "x in x:rotary()"), luaL_optinteger(L, 2, 0),
                                 luaL_optnumber(L, 3, 10000)));
  return 1;
}

// ---- pictures

int conv2d(lua_State* L) {  // x:conv2d(weight, bias or nil [, { stride =, padding =, … }])
  check_options(L, 4, "x:conv2d", {"stride", "padding", "dilation", "groups"});
  kernels::Conv2d options;
  pair_option(L, 4, "stride", options.stride);
  pair_option(L, 4, "padding", options.padding);
  pair_option(L, 4, "dilation", options.dilation);
  options.groups = integer_option(L, 4, "groups", 1);
  push_object(L, tensors::conv2d(check_object(L, 1, "x in x:conv2d(weight, bias)"),
                                 check_object(L, 2, "the weight of conv2d"),
                                 optional_tensor(L, 3, "the bias of conv2d"), options));
  return 1;
}

template <Tensor (*pool)(const Tensor&, const kernels::Pool2d&)>
int pool2d(lua_State* L) {  // x:max_pool2d(window [, { stride =, padding = }])
  const Tensor& x = check_object(L, 1, "what is pooled");
  kernels::Pool2d options;
  lua_settop(L, 3);
  check_options(L, 3, "x:max_pool2d or x:avg_pool2d", {"stride", "padding"});
  if (lua_isnil(L, 2))
    raise(L, "a pool takes the size of its window: x:max_pool2d(2), x:avg_pool2d({3, 2})");
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, 2);
  lua_setfield(L, 4, "window");
  pair_option(L, 4, "window", options.window);
  std::copy(options.window, options.window + 2, options.stride);
  pair_option(L, 3, "stride", options.stride);
  pair_option(L, 3, "padding", options.padding);
  push_object(L, pool(x, options));
  return 1;
}

int resize(lua_State* L) {  // x:resize(height, width [, "bilinear" | "nearest"])
  std::string_view mode = luaL_optstring(L, 4, "bilinear");
  if (mode != "bilinear" && mode != "nearest")
    raise(L, fmt::format("x:resize takes \"bilinear\" or \"nearest\", not \"{}\"", mode));
  push_object(
      L, tensors::resize(check_object(L, 1, "x in x:resize(height, width)"),
                         luaL_checkinteger(L, 2), luaL_checkinteger(L, 3), mode == "bilinear"));
  return 1;
}

// Converts a list to a tensor on the device of the images.
Tensor channel_numbers(lua_State* L, int index, const char* what, const Tensor& pictures) {
  if (const Tensor* x = test_object(L, index)) return *x;
  if (!lua_istable(L, index))
    raise(L, fmt::format("{} is a list of numbers, not {}", what, describe(L, index)));
  DType dtype = DType::f32;
  push_tensor_of_table(L, index, &dtype);
  return tensors::move(*test_object(L, -1), pictures.device());
}

int normalize(lua_State* L) {  // x:normalize({ means }, { deviations })
  Tensor x = check_object(L, 1, "x in x:normalize(mean, deviation)");
  push_object(L, tensors::normalize(x, channel_numbers(L, 2, "the mean", x),
                                    channel_numbers(L, 3, "the deviation", x)));
  return 1;
}

// ---- choosing

int sample(lua_State* L) {  // logits:sample([temperature [, seed]])
  const Tensor& logits = check_object(L, 1, "the logits to sample from");
  double temperature = luaL_optnumber(L, 2, 1);
  kernels::Seed seed =
      lua_isnoneornil(L, 3) ? next_seed(L) : static_cast<uint64_t>(luaL_checkinteger(L, 3));
  push_object(L, tensors::sample(logits, temperature, seed, 1));
  return 1;
}

// ---- optimizers

kernels::AdamW adamw_options(lua_State* L, int table) {
  kernels::AdamW options;
  options.lr = number_option(L, table, "lr", options.lr);
  options.beta1 = number_option(L, table, "beta1", options.beta1);
  options.beta2 = number_option(L, table, "beta2", options.beta2);
  options.eps = number_option(L, table, "eps", options.eps);
  options.weight_decay = number_option(L, table, "weight_decay", options.weight_decay);
  options.step = integer_option(L, table, "step", 1);
  return options;
}

// The step of each of { weights, grad, mean, square, step } of the list at 1.
std::vector<int64_t> steps_of_list(lua_State* L) {
  std::vector<int64_t> steps;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, -1, 5);
    steps.push_back(luaL_checkinteger(L, -1));
    lua_pop(L, 2);
  }
  return steps;
}

// flow.adamw_(list of { weights, grad, mean, square, step }, { lr =, … [, grad_scale =] } [,
// factor [, recorded]]). Recorded by flow.graph, it returns a number, with which it is called by
// functions of flow.at_replay: then it sets the rates of that step.
int adamw_all(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  check_options(L, 2, "flow.adamw_",
                {"lr", "beta1", "beta2", "eps", "weight_decay", "step", "grad_scale"});
  if (!lua_isnoneornil(L, 4)) {
    tensors::set_adamw_rates(replayed_words(L), static_cast<size_t>(luaL_checkinteger(L, 4)),
                             adamw_options(L, 2), steps_of_list(L));
    return 0;
  }
  Tensor factor = optional_tensor(L, 3, "the factor of flow.adamw_");
  if (factor && factor.count() != 1)
    raise(L, fmt::format("the factor of flow.adamw_ is a tensor of one number, not {}",
                         tensors::text_of(factor)));
  std::vector<tensors::AdamWOperands> all;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
    if (lua_rawgeti(L, 1, i) != LUA_TTABLE)
      raise(L, "flow.adamw_ takes a list of { weights, grad, mean, square, step }");
    int item = lua_gettop(L);
    auto part = [&](int at, const char* what) {
      lua_rawgeti(L, item, at);
      return check_object(L, -1, what);
    };
    tensors::AdamWOperands operands;
    operands.weights = part(1, "the weights of flow.adamw_");
    operands.grad = part(2, "the gradient of flow.adamw_");
    operands.mean = part(3, "the first moment of flow.adamw_");
    operands.square = part(4, "the second moment of flow.adamw_");
    lua_rawgeti(L, item, 5);
    operands.step = luaL_checkinteger(L, -1);
    all.push_back(std::move(operands));
    lua_settop(L, item - 1);
  }
  tensors::NoRecord off;
  if (factor) factor = tensors::cast(factor.detached(), DType::f64);
  size_t recorded =
      tensors::adamw_steps(adamw_options(L, 2), all, number_option(L, 2, "grad_scale", 1), factor);
  if (tensors::runtime().capture == nullptr) return 0;
  lua_pushinteger(L, static_cast<lua_Integer>(recorded));
  return 1;
}

// weights:adamw_(grad, mean, square, { lr =, beta1 =, …, step =, grad_scale = })
int adamw(lua_State* L) {
  luaL_checktype(L, 5, LUA_TTABLE);
  check_options(L, 5, "x:adamw_",
                {"lr", "beta1", "beta2", "eps", "weight_decay", "step", "grad_scale"});
  kernels::AdamW options = adamw_options(L, 5);
  tensors::NoRecord off;
  tensors::adamw_step(options, check_object(L, 1, "the weights of adamw_"),
                      check_object(L, 2, "the gradient of adamw_"),
                      number_option(L, 5, "grad_scale", 1),
                      check_object(L, 3, "the first moment of adamw_"),
                      check_object(L, 4, "the second moment of adamw_"));
  lua_settop(L, 1);
  return 1;
}

// weights:sgd_(grad, momentum or nil, { lr =, momentum =, …, step =, grad_scale = })
int sgd(lua_State* L) {
  luaL_checktype(L, 4, LUA_TTABLE);
  check_options(L, 4, "x:sgd_",
                {"lr", "momentum", "dampening", "weight_decay", "nesterov", "step", "grad_scale"});
  kernels::Sgd options;
  options.lr = number_option(L, 4, "lr", options.lr);
  options.momentum = number_option(L, 4, "momentum", options.momentum);
  options.dampening = number_option(L, 4, "dampening", options.dampening);
  options.weight_decay = number_option(L, 4, "weight_decay", options.weight_decay);
  options.nesterov = boolean_option(L, 4, "nesterov");
  options.first = number_option(L, 4, "step", 1) == 1;
  tensors::NoRecord off;
  tensors::sgd_step(options, check_object(L, 1, "the weights of sgd_"),
                    check_object(L, 2, "the gradient of sgd_"),
                    number_option(L, 4, "grad_scale", 1),
                    optional_tensor(L, 3, "the momentum of sgd_"));
  lua_settop(L, 1);
  return 1;
}

// flow.set_float32_matmul_precision("highest" | "high" | "medium")
int set_precision(lua_State* L) {
  // A task's key depends on its code: a call there is part of it.
  if (context(L).phase != ScriptPhase::task)
    raise(L,
          "flow.set_float32_matmul_precision is called in a task: its results depend on it, and "
          "so does its key");
  std::string_view name = luaL_checkstring(L, 1);
  using kernels::MatmulPrecision;
  if (name != "highest" && name != "high" && name != "medium")
    raise(L, fmt::format("flow.set_float32_matmul_precision takes \"highest\", \"high\" or "
                         "\"medium\", not \"{}\"",
                         name));
  tensors::runtime().precision = name == "highest" ? MatmulPrecision::highest
                                 : name == "high"  ? MatmulPrecision::high
                                                   : MatmulPrecision::medium;
  return 0;
}

int get_precision(lua_State* L) {
  constexpr const char* names[] = {"highest", "high", "medium"};
  lua_pushstring(L, names[static_cast<int>(tensors::runtime().precision)]);
  return 1;
}

}  // namespace

void open_tensor_networks(lua_State* L, int flow_table) {
  luaL_Reg functions[] = {{"adamw_", protected_call<adamw_all>},
                          {"set_float32_matmul_precision", protected_call<set_precision>},
                          {"get_float32_matmul_precision", get_precision},
                          {nullptr, nullptr}};
  lua_pushvalue(L, flow_table);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

const luaL_Reg kTensorNetworks[] = {{"softmax", protected_call<softmax<false>>},
                                    {"log_softmax", protected_call<softmax<true>>},
                                    {"cross_entropy", protected_call<cross_entropy>},
                                    {"layer_norm", protected_call<layer_norm>},
                                    {"rms_norm", protected_call<rms_norm>},
                                    {"add_layer_norm", protected_call<add_layer_norm>},
                                    {"add_rms_norm", protected_call<add_rms_norm>},
                                    {"linear", protected_call<linear>},
                                    {"embedding", protected_call<embedding>},
                                    {"attention", protected_call<attention>},
                                    {"self_attention", protected_call<self_attention>},
                                    {"rotary", protected_call<rotary>},
                                    {"conv2d", protected_call<conv2d>},
                                    {"max_pool2d", protected_call<pool2d<tensors::max_pool2d>>},
                                    {"avg_pool2d", protected_call<pool2d<tensors::avg_pool2d>>},
                                    {"resize", protected_call<resize>},
                                    {"normalize", protected_call<normalize>},
                                    {"sample", protected_call<sample>},
                                    {"adamw_", protected_call<adamw>},
                                    {"sgd_", protected_call<sgd>},
                                    {nullptr, nullptr}};

}  // namespace flow::lua
