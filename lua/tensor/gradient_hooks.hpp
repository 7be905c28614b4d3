// Functions of a script that x:backward() calls as gradients become complete.
#pragma once
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// x:backward(gradient) with the hooks of the attempt. An empty gradient means 1.
void backward_with_hooks(lua_State* L, const tensors::Tensor& root,
                         const tensors::Tensor& gradient);

/// flow.gradient_hook(tensors, ready, finished[, started]). In each backward that reaches one of
/// the tensors it calls ready(i) once the gradient of tensors[i] is complete, and finished() after
/// the backward. Before that it calls started(order) with the indices in order of completion.
int push_gradient_hook(lua_State* L);

/// Releases the objects of an attempt's hooks, at its end.
void end_gradient_hooks(lua_State* L);

}  // namespace flow::lua
