// Softmax and cross entropy along the last dimension.
#include <cmath>
#include <cstring>

#include "kernels/cpu/row_buffers.hpp"

namespace flow::cpu {
namespace {

double as_double(ArithmeticType kind, const void* value) {
  return kind == kF64 ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

double largest_of(ArithmeticType kind, const void* row, int64_t count) {
  alignas(8) char most[8];
  loops().most[1][kind](row, count, most);
  return as_double(kind, most);
}

int softmax(Stream& stream, bool logarithm, const View& in, const View& out) {
  if (!is_float(in.dtype)) return kUnsupported;
  int64_t columns = in.shape.last();
  RowParts parts(stream, rows_of(in), columns, kGrainCostly);
  RowBuffer from(stream.scratch, parts, in), to(stream.scratch, parts, out, in.data != out.data);
  if (!from.fits() || !to.fits()) return kNeedsScratch;
  if (columns == 0) return kDone;
  const Loops& use = loops();
  ArithmeticType kind = kind_of(in.dtype);
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const void* x = from.read(part, row);
      void* y = to.target(part, row);
      double largest = largest_of(kind, x, columns);
      if (logarithm) {
        double sum = use.sum_exp[kind](x, largest, nullptr, columns);
        // In two steps: the sum of both may lack digits of x.
        use.scale[kind](x, 1, -largest, y, columns);
        use.scale[kind](y, 1, -std::log(sum), y, columns);
      } else {
        double sum = use.sum_exp[kind](x, largest, y, columns);
        use.scale[kind](y, 1 / sum, 0, y, columns);
      }
      to.write(part, row);
    }
  });
  return kDone;
}

int softmax_backward(Stream& stream, bool logarithm, const View& y, const View& grad,
                     const View& out) {
  if (!is_float(y.dtype)) return kUnsupported;
  int64_t columns = y.shape.last();
  RowParts parts(stream, rows_of(y), columns, kGrainCostly);
  RowBuffer result(stream.scratch, parts, y), grad_buffer(stream.scratch, parts, grad),
      to(stream.scratch, parts, out, out.data != y.data && out.data != grad.data);
  if (!result.fits() || !grad_buffer.fits() || !to.fits()) return kNeedsScratch;
  if (columns == 0) return kDone;
  const Loops& use = loops();
  ArithmeticType kind = kind_of(y.dtype);
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const void *results = result.read(part, row), *grad_row = grad_buffer.read(part, row);
      double sum =
          logarithm ? use.sum[kind](grad_row, columns) : use.dot[kind](results, grad_row, columns);
      use.softmax_backward[logarithm][kind](results, grad_row, sum, to.target(part, row), columns);
      to.write(part, row);
    }
  });
  return kDone;
}

int cross_entropy(Stream& stream, const View& logits, const View& labels, int64_t base,
                  int64_t ignore, const View& loss, const View& lse) {
  if (!is_float(logits.dtype)) return kUnsupported;
  int64_t classes = logits.shape.last();
  RowParts parts(stream, rows_of(logits), classes, kGrainCostly);
  RowBuffer from(stream.scratch, parts, logits);
  if (!from.fits()) return kNeedsScratch;
  const Loops& use = loops();
  ArithmeticType kind = kind_of(logits.dtype);
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const void* x = from.read(part, row);
      double total = -INFINITY;
      if (classes > 0) {
        double largest = largest_of(kind, x, classes);
        total = largest + std::log(use.sum_exp[kind](x, largest, nullptr, classes));
      }
      set_statistic(lse, row, total);
      int64_t label = *reinterpret_cast<const int64_t*>(row_at(labels, row, 0));
      bool counts = label != ignore && label >= base && label - base < classes;
      double at_label = !counts ? total
                        : kind == kF64
                            ? static_cast<const double*>(x)[label - base]
                            : static_cast<double>(static_cast<const float*>(x)[label - base]);
      set_statistic(loss, row, counts ? total - at_label : 0);
    }
  });
  return kDone;
}

int cross_entropy_backward(Stream& stream, const View& logits, const View& labels, int64_t base,
                           int64_t ignore, const View& lse, const View& grad, const View& out) {
  if (!is_float(logits.dtype)) return kUnsupported;
  int64_t classes = logits.shape.last();
  RowParts parts(stream, rows_of(logits), classes, kGrainCostly);
  RowBuffer from(stream.scratch, parts, logits),
      to(stream.scratch, parts, out, out.data != logits.data);
  if (!from.fits() || !to.fits()) return kNeedsScratch;
  if (classes == 0) return kDone;
  const Loops& use = loops();
  ArithmeticType kind = kind_of(logits.dtype);
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      int64_t label = *reinterpret_cast<const int64_t*>(row_at(labels, row, 0));
      double loss_grad = label == ignore ? 0 : statistic(grad, row);
      void* y = to.target(part, row);
      if (label == ignore) {
        std::memset(y, 0, static_cast<size_t>(classes) * size_of_kind(kind));
      } else {
        use.exp_scaled[kind](from.read(part, row), statistic(lse, row), loss_grad, y, classes);
        if (label >= base && label - base < classes) {
          if (kind == kF64) {
            static_cast<double*>(y)[label - base] -= loss_grad;
          } else {
            static_cast<float*>(y)[label - base] -= static_cast<float>(loss_grad);
          }
        }
      }
      to.write(part, row);
    }
  });
  return kDone;
}

}  // namespace

void add_row_rows(Kernels& table) {
  table.softmax = softmax;
  table.softmax_backward = softmax_backward;
  table.cross_entropy = cross_entropy;
  table.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace flow::cpu
