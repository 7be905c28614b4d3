// Conversion between tensors and bytes: files, blobs, checkpoints.
#pragma once
#include "flow/bytes.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// Pushes a tensor of these bytes; the caller checked their number. It uses them in place if it may
/// own them and they are aligned, otherwise it copies.
void push_bytes(lua_State* L, DType dtype, const kernels::Shape& shape, const Bytes& bytes);
/// Dense bytes: the tensor's own memory if it is dense and on the host, so they change with it.
/// Throws a Failure.
Bytes shared_bytes(const tensors::Tensor& x);
/// Dense bytes in memory of their own. Throws a Failure.
Bytes copied_bytes(const tensors::Tensor& x);

}  // namespace flow::lua
