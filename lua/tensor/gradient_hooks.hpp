// Functions of a script that are called while x:backward() runs, as gradients become complete.
#pragma once
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// x:backward(gradient), an empty one for 1, with the hooks of the attempt.
void backward_with_hooks(lua_State* L, const tensors::Tensor& root,
                         const tensors::Tensor& gradient);

/// flow.gradient_hook(tensors, ready, finished[, started]): in each backward that reaches one of
/// the tensors, ready(i) once the gradient of tensors[i] is complete, and finished() after it.
/// Before any, started(order), where order holds the places that it comes by.
int push_gradient_hook(lua_State* L);

/// At the end of an attempt: what its hooks hold is let go.
void end_gradient_hooks(lua_State* L);

}  // namespace flow::lua
