// A call of a kernel: its arguments, checked against the signature, its results, and the launch. A
// mismatch throws a tensors::TensorError.
#pragma once
#include <string>
#include <vector>

#include "kernels/jit/program.hpp"
#include "kernels/tensor/tensor.hpp"

namespace flow::jit {

/// Of one parameter.
struct KernelArgument {
  tensors::Number number;
  tensors::Tensor tensor;
};

class KernelLaunch {
 public:
  explicit KernelLaunch(const KernelSource& source);

  /// `at` is an index of the signature's parameters.
  void set_number(size_t at, tensors::Number number);
  void set_tensor(size_t at, tensors::Tensor tensor);
  const KernelArgument& argument(size_t at) const { return arguments_[at]; }

  /// Sets the device of all tensors; false if there is no tensor yet.
  bool find_device(tensors::Device& device) const;
  /// The tensors that the caller passed.
  std::vector<tensors::Tensor> operands() const;
  /// Call before the kernel, or its fallback, changes its `inout`.
  void note_writes() const;

  /// The shape of an `out` that is like another; false if a function computes it.
  bool shape_of(size_t at, tensors::Shape& shape) const;
  /// Checks the fallback's result for the `out` at `at`; its shape must be `shape` unless that is
  /// null.
  void check_result(size_t at, const tensors::Tensor& result, const tensors::Shape* shape) const;

  /// One thread per `per_thread` elements of the first result.
  Grid grid_over_elements(int64_t block, int64_t per_thread) const;
  /// Requires all tensors, including those of `out`.
  void run(const Driver& driver, LoadedFunction& function, const Grid& grid, void* stream);

 private:
  const KernelParameter& parameter(size_t at) const { return source_.signature.parameters[at]; }
  int64_t size_of(const KernelParameter& parameter) const;
  void copy_back(const std::vector<std::pair<size_t, tensors::Tensor>>& copies) const;

  const KernelSource& source_;
  std::vector<KernelArgument> arguments_;
};

}  // namespace flow::jit
