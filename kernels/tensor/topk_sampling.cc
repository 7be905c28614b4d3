// Top-k, sampling and counting.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/shared/philox.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {

using kernels::is_float;

TopK top_k(const Tensor& given, int64_t k, int64_t base) {
  Tensor x = given.dtype() == DType::boolean ? cast(given, DType::u8) : given;
  if (x.rank() == 0 || k < 0 || k > x.shape().last())
    throw TensorError(
        fmt::format("top_k takes at most the length of a row of {}, not {}", text_of(given), k));
  int64_t columns = x.shape().last(), rows = 1;
  for (int dim = 0; dim + 1 < x.rank(); dim++) rows *= x.size(dim);
  Shape shape = x.shape();
  shape[shape.rank - 1] = k;
  Tensor flat = reshape(x, Shape{rows, columns});
  TopK out{Tensor::empty(x.dtype(), Shape{rows, k}, x.device()),
           Tensor::empty(DType::i64, Shape{rows, k}, x.device())};
  if (rows > 0 && k > 0)
    call(x.device(), &Kernels::top_k, "top_k", flat.view(), base, out.values.view(),
         out.index.view());
  if (is_recording(flat)) {
    out.values = record("top_k", out.values, {flat},
                        [base, of_x = flat.shape(), index = SavedTensor(out.index)](
                            const Tensor& grad, Gradients& to) {
                          Tensor zero = Tensor::zeros(grad.dtype(), of_x, grad.device());
                          to.set(0, scatter_add(zero, 1, index.get(), grad, base));
                        });
  }
  return {reshape(out.values, shape), reshape(out.index, shape)};
}

// A NaN has no probability, and if all logits are -infinity none is above 0.
void reject_undrawable(const Tensor& logits) {
  if (logits.count() == 0) return;
  Tensor can = compare(Compare::gt, reduce(Reduce::max, logits, {1}), Number::of(-INFINITY));
  if (integer_of(reduce(Reduce::all, can, {0})) != 0) return;
  Tensor flags = contiguous(move(can, {}));
  const uint8_t* flag = flags.view().at<uint8_t>();
  int64_t row = std::find(flag, flag + flags.count(), 0) - flag;
  throw TensorError(
      fmt::format("sample cannot draw from row {} of {}: its logits have a NaN, or all of them are "
                  "-infinity",
                  row + 1, text_of(logits)));
}

Tensor sample(const Tensor& given, double temperature, kernels::Seed seed, int64_t base) {
  if (given.rank() != 2 || !is_float(given.dtype()) || given.size(1) < 1)
    throw TensorError(
        fmt::format("sample takes logits [n, classes] of floats, not {}", text_of(given)));
  if (!(temperature >= 0))
    throw TensorError(fmt::format("sample takes a temperature of 0 or more, not {}", temperature));
  NoRecord off;
  Tensor logits = contiguous(given);
  reject_undrawable(logits);
  Tensor out = Tensor::empty(DType::i64, Shape{given.size(0)}, given.device());
  call(given.device(), &Kernels::sample, "sample", logits.view(), temperature, seed, uint64_t{0},
       base, out.view());
  return out;
}

Tensor histogram(const Tensor& given, int64_t bins, double low, double high) {
  if (bins < 1 || !(low < high) || !std::isfinite(high - low))
    throw TensorError(
        fmt::format("histogram takes a number of bins of 1 or more and a finite range low < "
                    "high, not {} bins of {} to {}",
                    bins, low, high));
  NoRecord off;
  Tensor x = given.dtype() == DType::boolean ? cast(given, DType::u8) : given;
  Tensor out = Tensor::empty(DType::i64, Shape{bins}, x.device());
  call(x.device(), &Kernels::histogram, "histogram", x.view(), low, high, out.view());
  return out;
}

Tensor uniform(DType dtype, const Shape& shape, kernels::Seed seed, double low, double high,
               const Device& device) {
  Tensor out = Tensor::empty(dtype, shape, device);
  call(device, &Kernels::uniform, "rand", out.view(), seed, uint64_t{0}, low, high);
  return out;
}

Tensor normal(DType dtype, const Shape& shape, kernels::Seed seed, double mean, double deviation,
              const Device& device) {
  Tensor out = Tensor::empty(dtype, shape, device);
  call(device, &Kernels::normal, "randn", out.view(), seed, uint64_t{0}, mean, deviation);
  return out;
}

Tensor integers(DType dtype, const Shape& shape, kernels::Seed seed, int64_t low, int64_t high,
                const Device& device) {
  if (low > high)
    throw TensorError(fmt::format("randint takes low <= high, not {} and {}", low, high));
  if (!kernels::is_integer(dtype))
    throw TensorError(fmt::format("randint makes i64, i32 or u8, not {}", dtype_name(dtype)));
  checked(Number::of(low), dtype);
  checked(Number::of(high), dtype);
  Tensor out = Tensor::empty(dtype, shape, device);
  call(device, &Kernels::integers, "randint", out.view(), seed, uint64_t{0}, low, high);
  return out;
}

// Fisher and Yates, with numbers by position.
void fill_permutation(int64_t* out, int64_t count, uint64_t seed) {
  __extension__ typedef unsigned __int128 Wide;
  for (int64_t i = 0; i < count; i++) out[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    kernels::Random4 bits =
        kernels::random_block(seed, static_cast<uint64_t>(i), kernels::RandomUse::permutation);
    // The upper half of a 64 by 64 bit product: a number below i + 1, uniform up to 2^-64.
    auto pick = static_cast<int64_t>((static_cast<Wide>(kernels::join(bits.word[0], bits.word[1])) *
                                      static_cast<uint64_t>(i + 1)) >>
                                     64);
    std::swap(out[i], out[pick]);
  }
}

Tensor gbm(const kernels::Gbm& options, int64_t paths, bool ends_only, DType dtype,
           const Device& device) {
  if (paths < 0 || options.steps < 1 || !(options.years >= 0) || !(options.volatility >= 0) ||
      !(options.start > 0))
    throw TensorError(
        "gbm takes a number of paths and steps, a start above 0, and years and a "
        "volatility of 0 or more");
  if (dtype != DType::f32 && dtype != DType::f64)
    throw TensorError(fmt::format("gbm makes f32 or f64, not {}", dtype_name(dtype)));
  Tensor out =
      Tensor::empty(dtype, ends_only ? Shape{paths} : Shape{paths, options.steps + 1}, device);
  call(device, ends_only ? &Kernels::gbm_ends : &Kernels::gbm_paths, "gbm", options, out.view());
  return out;
}

}  // namespace flow::tensors
