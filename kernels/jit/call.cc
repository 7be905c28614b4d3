#include "kernels/jit/call.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "engine/base/profiler_range.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::jit {

using tensors::Number;
using tensors::Shape;
using tensors::Tensor;
using tensors::TensorError;

namespace {

// A number as the C++ parameter of that type; every type fits in 8 bytes.
struct PackedNumber {
  alignas(8) char bytes[8] = {};

  template <typename T>
  static PackedNumber of(T value) {
    PackedNumber packed;
    std::memcpy(packed.bytes, &value, sizeof value);
    return packed;
  }
};

PackedNumber packed_number(DType dtype, const Number& number) {
  switch (dtype) {
    case DType::f32:
      return PackedNumber::of(static_cast<float>(number.real));
    case DType::f64:
      return PackedNumber::of(number.real);
    case DType::i32:
      return PackedNumber::of(static_cast<int32_t>(number.integer));
    case DType::u8:
    case DType::boolean:
      return PackedNumber::of(static_cast<uint8_t>(number.integer));
    default:
      return PackedNumber::of(number.integer);
  }
}

bool fits(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::i32:
      return value >= INT32_MIN && value <= INT32_MAX;
    case DType::u8:
      return value >= 0 && value <= UINT8_MAX;
    case DType::boolean:
      return value == 0 || value == 1;
    default:
      return true;
  }
}

}  // namespace

KernelLaunch::KernelLaunch(const KernelSource& source)
    : source_(source), arguments_(source.signature.parameters.size()) {}

void KernelLaunch::set_number(size_t at, Number number) {
  const KernelParameter& own = parameter(at);
  if (!kernels::is_float(own.dtype) && (!number.is_integer || !fits(own.dtype, number.integer)))
    throw TensorError(fmt::format(
        "`{}` of the kernel `{}` is {}, not {}", own.name, source_.name, dtype_name(own.dtype),
        number.is_integer ? std::to_string(number.integer) : fmt::format("{}", number.real)));
  arguments_[at].number = number;
}

void KernelLaunch::set_tensor(size_t at, Tensor tensor) {
  const KernelParameter& own = parameter(at);
  if (tensor.dtype() != own.dtype)
    throw TensorError(fmt::format("`{}` of the kernel `{}` is {}, not {}: give it x:to(\"{}\")",
                                  own.name, source_.name, dtype_name(own.dtype),
                                  tensors::text_of(tensor), dtype_name(own.dtype)));
  arguments_[at].tensor = std::move(tensor);
}

bool KernelLaunch::find_device(tensors::Device& device) const {
  const KernelArgument* first = nullptr;
  for (const KernelArgument& each : arguments_) {
    if (!each.tensor) continue;
    if (first == nullptr) first = &each;
    if (!(each.tensor.device() == first->tensor.device()))
      throw TensorError(fmt::format(
          "the tensors of the kernel `{}` are on different devices, {} and {}", source_.name,
          tensors::text_of(first->tensor.device()), tensors::text_of(each.tensor.device())));
  }
  if (first != nullptr) device = first->tensor.device();
  return first != nullptr;
}

std::vector<Tensor> KernelLaunch::operands() const {
  std::vector<Tensor> found;
  for (size_t at = 0; at < arguments_.size(); at++)
    if (parameter(at).is_given() && arguments_[at].tensor) found.push_back(arguments_[at].tensor);
  return found;
}

void KernelLaunch::note_writes() const {
  for (size_t at = 0; at < arguments_.size(); at++)
    if (parameter(at).role == ParameterRole::inout)
      arguments_[at].tensor.note_write(source_.name.c_str());
}

bool KernelLaunch::shape_of(size_t at, Shape& shape) const {
  if (parameter(at).of < 0) return false;
  shape = arguments_[static_cast<size_t>(parameter(at).of)].tensor.shape();
  return true;
}

void KernelLaunch::check_result(size_t at, const Tensor& result, const Shape* shape) const {
  const KernelParameter& own = parameter(at);
  if (result.dtype() == own.dtype && (shape == nullptr || result.shape() == *shape)) return;
  throw TensorError(fmt::format("the fallback of the kernel `{}` gave {} for `{}`, which is {}{}",
                                source_.name, tensors::text_of(result), own.name,
                                dtype_name(own.dtype),
                                shape == nullptr ? "" : " " + kernels::text_of(*shape)));
}

int64_t KernelLaunch::size_of(const KernelParameter& own) const {
  const Tensor& of = arguments_[static_cast<size_t>(own.of)].tensor;
  if (own.dim > of.rank())
    throw TensorError(fmt::format("`{}` of the kernel `{}` has no dimension {}: it is {}",
                                  parameter(static_cast<size_t>(own.of)).name, source_.name,
                                  own.dim, tensors::text_of(of)));
  int64_t size = own.dim == 0 ? of.count() : of.size(own.dim - 1);
  if (!fits(own.dtype, size))
    throw TensorError(fmt::format("`{}` of the kernel `{}` is {}, which no {} holds: write `{}`",
                                  own.name, source_.name, size, dtype_name(own.dtype), "i64"));
  return size;
}

Grid KernelLaunch::grid_over_elements(int64_t block, int64_t per_thread) const {
  const Tensor* over = nullptr;
  for (ParameterRole role : {ParameterRole::inout, ParameterRole::out})  // an `out` is preferred
    for (size_t at = arguments_.size(); at-- > 0;)
      if (parameter(at).role == role && arguments_[at].tensor) over = &arguments_[at].tensor;
  Grid grid;
  grid.threads[0] = block;
  int64_t elements = block * per_thread;
  grid.blocks[0] = over->count() / elements + (over->count() % elements != 0);
  return grid;
}

void KernelLaunch::copy_back(const std::vector<std::pair<size_t, Tensor>>& copies) const {
  for (const auto& [at, copy] : copies)
    tensors::call(copy.device(), &kernels::Kernels::copy, "copy", copy.view(),
                  arguments_[at].tensor.view());
}

void KernelLaunch::run(const Driver& driver, LoadedFunction& function, const Grid& grid,
                       void* stream) {
  ProfilerRange range([&] { return source_.name; });
  tensors::NoRecord off;
  std::vector<PackedNumber> values;
  std::vector<Tensor> kept;
  std::vector<std::pair<size_t, Tensor>> copies;  // of an `inout` with gaps
  for (size_t at = 0; at < arguments_.size(); at++) {
    const KernelParameter& own = parameter(at);
    if (own.role == ParameterRole::size) {
      values.push_back(packed_number(own.dtype, Number::of(size_of(own))));
    } else if (!own.is_tensor()) {
      values.push_back(packed_number(own.dtype, arguments_[at].number));
    } else {
      Tensor dense = tensors::contiguous(arguments_[at].tensor.detached());
      if (own.role == ParameterRole::inout &&
          dense.view().data != arguments_[at].tensor.view().data)
        copies.emplace_back(at, dense);
      values.push_back(PackedNumber::of(dense.view().data));
      if (tensors::runtime().capture != nullptr) tensors::note_use(dense.view());
      kept.push_back(std::move(dense));
    }
  }
  std::vector<void*> addresses;
  for (PackedNumber& each : values) addresses.push_back(each.bytes);
  Status done = launch(driver, function, grid, stream, addresses);
  if (!done.ok())
    throw TensorError(fmt::format("the kernel `{}`: {}", source_.name, done.error().message));
  copy_back(copies);
}

}  // namespace flow::jit
