// Optimizers: one pass over the weights, in chunks that stay in the cache while the gradient is
// widened and the copy rounded.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/adamw.hpp"

namespace flow::cpu {
namespace {

constexpr int kPartsMax = 256;

bool are_dense(std::initializer_list<const View*> views) {
  return std::all_of(views.begin(), views.end(),
                     [](const View* view) { return view == nullptr || is_dense(*view); });
}

template <typename F>
int step_pieces(Stream& stream, const View& weights, const View& grad, const View* copy, F f) {
  auto size = static_cast<int64_t>(dtype_size(weights.dtype)),
       grad_size = static_cast<int64_t>(dtype_size(grad.dtype));
  bool direct = copy == nullptr && grad.dtype == weights.dtype;
  parallel_for(stream.threads, weights.count(), kGrainCostly * 2, [&](int64_t first, int64_t last) {
    alignas(64) char buffer[kChunk * 8];
    for (int64_t at = first; at < last;) {
      int64_t length = direct ? last - at : std::min(kChunk, last - at);
      const void* grad_data =
          load_converted(grad.dtype, grad.data + at * grad_size, 1, length, buffer);
      if (weights.dtype == DType::f64 && kind_of(grad.dtype) == kF32) {
        // A float gradient of double weights is widened.
        alignas(64) double wide[kChunk];
        loops().convert[kF32][kF64](grad_data, wide, length);
        std::copy(wide, wide + length, reinterpret_cast<double*>(buffer));
        grad_data = buffer;
      }
      f(grad_data, at, at * size, length);
      if (copy != nullptr) {
        const char* made = weights.data + at * size;
        alignas(64) float narrow[kChunk];
        if (weights.dtype == DType::f64) {
          loops().convert[kF64][kF32](made, narrow, length);
          made = reinterpret_cast<const char*>(narrow);
        }
        store_converted(copy->dtype, made,
                        copy->data + at * static_cast<int64_t>(dtype_size(copy->dtype)), 1, length);
      }
      at += length;
    }
  });
  return kDone;
}

int adamw(Stream& stream, const AdamW& options, const View& weights, const View& grad,
          double grad_scale, const View& mean, const View& square, const View* copy) {
  if (weights.dtype != DType::f32 && weights.dtype != DType::f64) return kUnsupported;
  if (!are_dense({&weights, &grad, &mean, &square, copy})) return kUnsupported;
  AdamWRates rates = adamw_rates(options, options.step);
  AdamWStep of{options.beta1, options.beta2, rates.size, rates.root,
               options.eps,   rates.decay,   grad_scale};
  auto run = loops().adamw[kind_of(weights.dtype)];
  return step_pieces(stream, weights, grad, copy,
                     [&](const void* grad_data, int64_t, int64_t offset, int64_t count) {
                       run(of, weights.data + offset, grad_data, mean.data + offset,
                           square.data + offset, count);
                     });
}

int sgd(Stream& stream, const Sgd& options, const View& weights, const View& grad,
        double grad_scale, const View* momentum, const View* copy) {
  if (weights.dtype != DType::f32 && weights.dtype != DType::f64) return kUnsupported;
  if (!are_dense({&weights, &grad, momentum, copy})) return kUnsupported;
  SgdStep of{options.lr, options.momentum, 1 - options.dampening, options.weight_decay,
             grad_scale, options.nesterov, options.first};
  auto run = loops().sgd[kind_of(weights.dtype)];
  return step_pieces(stream, weights, grad, copy,
                     [&](const void* grad_data, int64_t, int64_t offset, int64_t count) {
                       run(of, weights.data + offset, grad_data,
                           momentum != nullptr ? momentum->data + offset : nullptr, count);
                     });
}

// Of a view with gaps: each row of its last dimension separately.
int add_squares_of_rows(Stream& stream, const View& in, const View& out) {
  double sums[kPartsMax] = {};
  int64_t columns = in.shape.last(), stride = in.strides[in.rank() - 1], rows = rows_of(in);
  int64_t parts = std::clamp<int64_t>(rows * columns / kGrainCheap, 1,
                                      std::min<int64_t>({stream.threads, kPartsMax, rows}));
  auto size = static_cast<int64_t>(dtype_size(in.dtype));
  auto run = loops().sum_of_squares[kind_of(in.dtype)];
  parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
    alignas(64) char buffer[kChunk * 8];
    for (int64_t part = begin; part < end; part++)
      for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++)
        for (int64_t at = 0; at < columns; at += kChunk) {
          int64_t length = std::min(kChunk, columns - at);
          const char* from = row_at(in, row) + at * stride * size;
          sums[part] += run(load_converted(in.dtype, from, stride, length, buffer), 0, length);
        }
  });
  for (int64_t part = 0; part < parts; part++) *out.at<double>() += sums[part];
  return kDone;
}

int add_sum_of_squares(Stream& stream, const View& in, const View& out) {
  if (!is_float(in.dtype)) return kUnsupported;
  if (!is_dense(in)) return add_squares_of_rows(stream, in, out);
  double sums[kPartsMax] = {};
  int64_t count = in.count();
  int64_t parts = std::clamp<int64_t>(count / kGrainCheap, 1, std::min(stream.threads, kPartsMax));
  auto size = static_cast<int64_t>(dtype_size(in.dtype));
  auto run = loops().sum_of_squares[kind_of(in.dtype)];
  parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
    alignas(64) char buffer[kChunk * 8];
    for (int64_t part = begin; part < end; part++) {
      int64_t last = count * (part + 1) / parts;
      for (int64_t at = count * part / parts; at < last;) {
        int64_t length = is_small(in.dtype) ? std::min(kChunk, last - at) : last - at;
        sums[part] +=
            run(load_converted(in.dtype, in.data + at * size, 1, length, buffer), 0, length);
        at += length;
      }
    }
  });
  for (int64_t part = 0; part < parts; part++) *out.at<double>() += sums[part];
  return kDone;
}

int adamw_all(Stream& stream, const AdamW& options, const AdamWTensor* tensors, int64_t count,
              double grad_scale, const View* factor) {
  if (factor != nullptr) grad_scale *= *factor->at<double>();
  AdamW of_tensor = options;
  for (int64_t i = 0; i < count; i++) {
    const AdamWTensor& each = tensors[i];
    of_tensor.step = each.step;
    int code = adamw(stream, of_tensor, each.weights, each.grad, grad_scale, each.mean, each.square,
                     each.copy.data == nullptr ? nullptr : &each.copy);
    if (code != kDone) return code;
  }
  return kDone;
}

int norm_of_all(Stream& stream, const View* tensors, int64_t count, double limit, const View& out) {
  double sum = 0;
  View total = dense(DType::f64, {}, &sum);
  for (int64_t i = 0; i < count; i++)
    if (int code = add_sum_of_squares(stream, tensors[i], total); code != kDone) return code;
  double norm = std::sqrt(sum), factor = limit / (norm + 1e-6);
  out.at<double>()[0] = norm;
  out.at<double>()[1] = factor < 1 ? factor : 1;
  return kDone;
}

int scale_all(Stream& stream, const View* tensors, int64_t count, const View& factor) {
  double number = *factor.at<double>();
  if (number == 1) return kDone;
  for (int64_t i = 0; i < count; i++) {
    int code = cpu_kernels().binary_number(stream, Binary::mul, tensors[i], Number::of(number),
                                           false, tensors[i]);
    if (code != kDone) return code;
  }
  return kDone;
}

}  // namespace

void add_optimizer_rows(Kernels& table) {
  table.adamw = adamw;
  table.adamw_all = adamw_all;
  table.norm_of_all = norm_of_all;
  table.scale_all = scale_all;
  table.sgd = sgd;
  table.add_sum_of_squares = add_sum_of_squares;
}

}  // namespace flow::cpu
