// Shared by the tensor's files and the libraries that make or read tensors.
//
// A tensor is a userdata that holds a tensors::Tensor. Its memory is reference-counted, and not
// managed by Lua's collector; the state's TensorBudget charges it to the VM's memory limit, and
// runs a collection when much was allocated since the last one.
#pragma once
#include <string>
#include <vector>

#include "kernels/tensor/ops.hpp"
#include "lua/state/vm_context.hpp"

namespace flow::lua {

// ---- tensor.cc
/// The tensor at `index`, or null.
const tensors::Tensor* test_object(lua_State* L, int index);
/// The same, or an error: "`what` is a tensor, not a string".
const tensors::Tensor& check_object(lua_State* L, int index, const char* what);
void push_object(lua_State* L, tensors::Tensor tensor);
/// Pushes a result: a number or boolean if it has no dimensions and no recorded gradient, otherwise
/// the tensor.
void push_result(lua_State* L, const tensors::Tensor& tensor);
/// Pushes a result without dimensions as push_first does.
void push_item(lua_State* L, const tensors::Tensor& tensor);
/// The view of the host tensor at `index`, or null.
const kernels::View* test_tensor(lua_State* L, int index);
const kernels::View& check_tensor(lua_State* L, int index, const char* what);
/// Pushes a dense tensor whose elements are uninitialized.
kernels::View new_tensor(lua_State* L, DType dtype, const kernels::Shape& shape);
/// Pushes a tensor that shares the elements of the tensor at `owner`.
void push_view(lua_State* L, const kernels::View& view, int owner);
/// `view`, or a dense copy of type `dtype`, pushed to keep it alive. Pushes one value in any case.
kernels::View as_dense(lua_State* L, const kernels::View& view, DType dtype);
/// Copies and casts; both are in host memory and of one shape.
void copy_view(const kernels::View& from, const kernels::View& to);
/// "tensor f32 [2, 3]", "a handle", "a string": for messages.
std::string describe(lua_State* L, int index);
std::string describe(const kernels::View& view);
DType check_dtype(lua_State* L, int index);
/// A dimension at `index`, given 1-based (from the end if negative), as 0-based.
int check_dim(lua_State* L, int index, const kernels::View& view, const char* function);
/// Dimensions at `index`: a number, a list, or all if it is none or nil.
tensors::Dims check_dims(lua_State* L, int index, const kernels::View& view, const char* function);
kernels::Number check_number(lua_State* L, int index, const char* what);
/// Pushes the first element as a number or boolean.
void push_first(lua_State* L, const kernels::View& view);
/// A number from the attempt's math.random, for calls without a seed. While flow.graph records, its
/// launches draw it anew.
kernels::Seed next_seed(lua_State* L);
/// Sizes from `index` on: numbers, or one list of them.
kernels::Shape check_shape(lua_State* L, int index, const char* function, bool open = false);
tensors::Device check_device(lua_State* L, int index);
bool is_device_name(lua_State* L, int index);

/// A C function for Lua that converts a tensors::TensorError to a Lua error.
using Function = int (*)(lua_State* L);
int call_protected(lua_State* L, Function function);
template <Function function>
int protected_call(lua_State* L) {
  return call_protected(L, function);
}

// ---- creation.cc
void open_tensor_makers(lua_State* L, int flow_table);
/// Pushes a tensor of the nested lists at `index`.
void push_tensor_of_table(lua_State* L, int index, const DType* dtype);

// ---- autograd.cc
void open_tensor_gradients(lua_State* L, int flow_table);
void open_tensor_networks(lua_State* L, int flow_table);
/// Pops a forward and a backward, pushes flow.custom_gradient of them.
void push_custom_gradient(lua_State* L);
/// Whether it is a function, or callable like a module.
bool is_callable(lua_State* L, int index);

// ---- graph.cc
void open_tensor_graphs(lua_State* L, int flow_table);
/// The next number of math.random, of all 64 bits.
uint64_t draw_seed(lua_State* L);
/// Its seed while flow.graph records.
kernels::Seed recorded_seed(lua_State* L);
/// Those of the graph for whose launch a function of flow.at_replay is called.
tensors::GraphWords& replayed_words(lua_State* L);

// ---- indexing.cc
int tensor_index(lua_State* L);  // upvalue 1: the methods
int tensor_new_index(lua_State* L);
int tensor_pairs(lua_State* L);

// ---- methods, each a list for luaL_setfuncs
extern const luaL_Reg kTensorOperators[];   // operators.cc: metamethods
extern const luaL_Reg kTensorMath[];        // operators.cc
extern const luaL_Reg kTensorReductions[];  // reductions.cc
extern const luaL_Reg kTensorShapes[];      // shapes.cc
extern const luaL_Reg kTensorNetworks[];    // nn.cc
extern const luaL_Reg kTensorGradients[];   // autograd.cc
int tensor_text(lua_State* L);              // to_string.cc

}  // namespace flow::lua
