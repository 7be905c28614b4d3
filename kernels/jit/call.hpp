// A call of a kernel: what was given, checked against the signature, what comes out, and the
// launch. What does not fit is thrown as a tensors::Failure.
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

class Call {
 public:
  explicit Call(const Source& source);

  /// `at` counts the signature's parameters.
  void give_number(size_t at, tensors::Number number);
  void give_tensor(size_t at, tensors::Tensor tensor);
  const KernelArgument& argument(size_t at) const { return arguments_[at]; }

  /// All tensors lie on one device, which this is; false where there is no tensor yet.
  bool find_device(tensors::Device& device) const;
  /// The tensors that the caller gave.
  std::vector<tensors::Tensor> operands() const;
  /// Before the kernel, or what stands for it, changes its `inout`.
  void note_writes() const;

  /// Of an `out` that is like another; false where a function must say.
  bool shape_of(size_t at, tensors::Shape& shape) const;
  /// What stands for the kernel gave this for the `out` at `at`, which has `shape` unless that is
  /// null.
  void check_result(size_t at, const tensors::Tensor& result, const tensors::Shape* shape) const;

  /// One thread for `per_thread` elements of the first result.
  Grid grid_over_elements(int64_t block, int64_t per_thread) const;
  /// All tensors are there, the `out` ones too.
  void run(const Driver& driver, Function& function, const Grid& grid, void* stream);

 private:
  const Parameter& parameter(size_t at) const { return source_.signature.parameters[at]; }
  int64_t size_of(const Parameter& parameter) const;
  void copy_back(const std::vector<std::pair<size_t, tensors::Tensor>>& copies) const;

  const Source& source_;
  std::vector<KernelArgument> arguments_;
};

}  // namespace flow::jit
