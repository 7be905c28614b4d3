// flow.kernel: CUDA C++ in a script. A kernel is a userdata that owns a jit::ScriptKernel; its user
// value is a table of the script's arguments, which are part of a task's key.
#pragma once
#include <string>

#include "kernels/jit/program.hpp"
#include "lua/state/vm_context.hpp"

namespace flow::lua {

// ---- kernel.cc
/// The kernel at `index`, or null.
jit::ScriptKernel* test_kernel(lua_State* L, int index);
/// Pushes the script's arguments of the kernel at `index`, and one field of them.
void push_kernel_table(lua_State* L, int index);
int push_kernel_field(lua_State* L, int index, const char* field);
bool kernel_has(lua_State* L, int index, const char* field);
/// The state's cache of compiled kernels. In a task.
jit::Cache kernel_cache(lua_State* L);

// ---- kernel_call.cc
/// Reads up to `count_max` sizes from `first` to the top, or in a list there; other items of `out`
/// stay.
void read_sizes(lua_State* L, const std::string& what, int first, int count_max, int64_t* out);
int call_kernel(lua_State* L);  // __call

}  // namespace flow::lua
