// Shared by the tensor's files and the libraries that make or read tensors.
//
// A tensor is a userdata of plain bytes: a view, and as user value 1 the userdata that holds the
// elements. Both belong to Lua's collector, which therefore knows what tensors weigh, and the VM's
// memory limit covers them.
#pragma once
#include <string>
#include <vector>

#include "kernels/shared/view.hpp"
#include "lua/internal.hpp"

namespace flow::lua {

constexpr int64_t kTensorBytesMax = int64_t{1} << 40;

// ---- tensor.cc
/// The view of the tensor at `index`, or null where it is none.
const kernels::View* test_tensor(lua_State* L, int index);
/// The same, or an error: "`what` is a tensor, not a string".
const kernels::View& check_tensor(lua_State* L, int index, const char* what);
/// Pushes a dense tensor whose elements are not set yet.
kernels::View new_tensor(lua_State* L, DType dtype, const kernels::Shape& shape);
/// Pushes a tensor that shares the elements of the one at `owner`.
void push_view(lua_State* L, const kernels::View& view, int owner);
/// `view`, or where it is of another type or not dense, a copy pushed to keep it alive. Pushes one
/// value in any case.
kernels::View as_dense(lua_State* L, const kernels::View& view, DType dtype);
/// "tensor f32 [2, 3]", "a handle", "a string": for messages.
std::string describe(lua_State* L, int index);
std::string describe(const kernels::View& view);
DType check_dtype(lua_State* L, int index);
/// A dimension at `index`, given 1-based, as 0-based.
int check_dim(lua_State* L, int index, const kernels::View& view, const char* function);
/// Pushes the first element as a number or boolean.
void push_first(lua_State* L, const kernels::View& view);
/// f16 and bf16 are computed in f32, bool in u8.
DType compute_type(DType dtype);
/// A number from the attempt's math.random, for those who gave no seed.
uint64_t next_seed(lua_State* L);

// ---- tensor_make.cc
void open_tensor_makers(lua_State* L, int flow_table);
/// Pushes a tensor of the nested lists at `index`.
void push_tensor_of_table(lua_State* L, int index, const DType* dtype);

// ---- tensor_index.cc
int tensor_index(lua_State* L);  // upvalue 1: the methods
int tensor_new_index(lua_State* L);
int tensor_pairs(lua_State* L);

// ---- methods, each a list for luaL_setfuncs
extern const luaL_Reg kTensorOperators[];   // tensor_ops.cc: metamethods
extern const luaL_Reg kTensorMath[];        // tensor_ops.cc
extern const luaL_Reg kTensorReductions[];  // tensor_reduce.cc
extern const luaL_Reg kTensorShapes[];      // tensor_shape.cc
extern const luaL_Reg kTensorNetworks[];    // tensor_nn.cc
int tensor_text(lua_State* L);              // tensor_text.cc

}  // namespace flow::lua
