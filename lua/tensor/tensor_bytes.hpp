// Between tensors and bytes that others hold: files, content of the state, checkpoints.
#pragma once
#include "flow/bytes.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// Pushes a tensor of these bytes, whose number is right. It uses them where they lie if they are
/// its own and aligned, else a copy.
void push_bytes(lua_State* L, DType dtype, const kernels::Shape& shape, const Bytes& bytes);
/// Dense bytes: the tensor's memory itself where it is dense and on the host. They change with it.
/// Throws a Failure.
Bytes shared_bytes(const tensors::Tensor& x);
/// Dense bytes in memory of their own. Throws a Failure.
Bytes copied_bytes(const tensors::Tensor& x);

}  // namespace flow::lua
