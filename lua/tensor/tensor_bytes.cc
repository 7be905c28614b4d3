// Tensors on memory of other objects, and bytes of tensors for other objects.
#include "lua/tensor/tensor_bytes.hpp"

#include <cstring>

#include "lua/tensor/memory_budget.hpp"

namespace flow::lua {
namespace {

// The bytes of a dense host tensor; they hold its storage.
Bytes bytes_of(const tensors::Tensor& dense) {
  std::string_view view(static_cast<const char*>(dense.view().data), dense.view().bytes());
  return {view, std::make_shared<const tensors::RefPtr<tensors::Storage>>(dense.storage())};
}

}  // namespace

void push_bytes(lua_State* L, DType dtype, const kernels::Shape& shape, const Bytes& bytes) {
  auto address = reinterpret_cast<uintptr_t>(bytes->data());
  bool in_place = bytes.is_own() && address % dtype_size(dtype) == 0 && !bytes->empty();
  if (in_place && dtype == DType::boolean) {  // such a file may have other bytes than 0 and 1
    for (char byte : *bytes) in_place = in_place && (byte == 0 || byte == 1);
  }
  if (in_place) {
    TensorBudget::note_mapped(bytes->size());
    kernels::View view = kernels::dense(dtype, shape, const_cast<char*>(bytes->data()));
    return push_object(
        L, {view, tensors::Storage::borrow(bytes->data(), bytes->size(), bytes.keep(), true)});
  }
  kernels::View view = new_tensor(L, dtype, shape);
  if (bytes->empty()) return;
  std::memcpy(view.data, bytes->data(), bytes->size());
  if (dtype != DType::boolean) return;
  auto* flags = static_cast<char*>(view.data);
  for (size_t i = 0; i < bytes->size(); i++) flags[i] = flags[i] != 0;
}

Bytes shared_bytes(const tensors::Tensor& x) {
  tensors::NoRecord off;
  tensors::Tensor plain = x.detached();
  if (x.device().kind != tensors::Device::cpu) plain = tensors::move(plain, {});
  return bytes_of(tensors::contiguous(plain));
}

Bytes copied_bytes(const tensors::Tensor& x) {
  tensors::NoRecord off;
  if (x.device().kind != tensors::Device::cpu) return shared_bytes(x);
  return bytes_of(tensors::copy_of(x.detached()));
}

}  // namespace flow::lua
