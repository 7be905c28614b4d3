// A whole dense tensor in its compute type: in place, or, for f16 and bf16, in scratch.
#pragma once
#include <cstdint>

#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {

enum class OperandAccess : uint8_t { read, write, both };

class ComputeTensor {
 public:
  ComputeTensor(Stream& stream, const View& view, OperandAccess way) : view_(view), way_(way) {
    if (!is_small(view.dtype)) {
      data_ = view.data;
      return;
    }
    data_ = stream.scratch.take<char>(view.count() * 4);
    fits_ = data_ != nullptr || view.count() == 0;
  }
  bool fits() const { return fits_; }
  /// Call after all scratch is allocated: loads operands that are read.
  void begin(Stream& stream) const {
    if (is_small(view_.dtype) && way_ != OperandAccess::write)
      copy_elements(stream, view_, dense(DType::f32, view_.shape, data_));
  }
  /// Stores results.
  int end(Stream& stream) const {
    if (is_small(view_.dtype) && way_ != OperandAccess::read)
      copy_elements(stream, dense(DType::f32, view_.shape, data_), view_);
    return kDone;
  }
  template <typename T>
  T* at() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  const View& view_;
  OperandAccess way_;
  char* data_ = nullptr;
  bool fits_ = true;
};

}  // namespace flow::cpu
