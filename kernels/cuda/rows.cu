// Softmax and cross entropy. A row is read once for its largest number and its sum together, and
// once more for the result.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    softmax_kernel(Rows<2> rows, int threads_of_row, bool logarithm, const T* in, T* out) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t, const int64_t(&offset)[2]) {
    const T* from = in + offset[0];
    T* to = out + offset[1];
    Softmax<C> softmax = softmax_of_row(group, rows.columns, from);
    C log_sum = softmax.log_sum();
    C factor = is_nan(log_sum) ? log_sum : C(1) / softmax.sum;
    each_in_row<T>(group, rows.columns, {from, to}, [&](int64_t i, auto width) {
      C x[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, x);
      for (C& each : x) {
        C below = each - softmax.largest;
        each = logarithm ? below - log_sum : std::exp(below) * factor;
      }
      store_as<decltype(width)::value>(to + i, x);
    });
  });
}

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    softmax_backward_kernel(Rows<3> rows, int threads_of_row, bool logarithm, const T* y,
                            const T* grad, T* out) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t, const int64_t(&offset)[3]) {
    const T* of_y = y + offset[0];
    const T* of_grad = grad + offset[1];
    T* to = out + offset[2];
    C sum = 0;
    each_in_row<T>(group, rows.columns, {of_y, of_grad}, [&](int64_t i, auto width) {
      C a[decltype(width)::value], b[decltype(width)::value];
      load_as<decltype(width)::value>(of_y + i, a);
      load_as<decltype(width)::value>(of_grad + i, b);
      for (int j = 0; j < decltype(width)::value; j++) sum += logarithm ? b[j] : a[j] * b[j];
    });
    sum = sum_over_group(group, sum);
    each_in_row<T>(group, rows.columns, {of_y, of_grad, to}, [&](int64_t i, auto width) {
      C a[decltype(width)::value], b[decltype(width)::value];
      load_as<decltype(width)::value>(of_y + i, a);
      load_as<decltype(width)::value>(of_grad + i, b);
      for (int j = 0; j < decltype(width)::value; j++)
        a[j] = logarithm ? b[j] - std::exp(a[j]) * sum : a[j] * (b[j] - sum);
      store_as<decltype(width)::value>(to + i, a);
    });
  });
}

// A label as a column; -1 if it is ignored or, after storing its position, out of range.
FLOW_DEVICE int64_t label_at(const int64_t* labels, int64_t stride, int64_t row, int64_t base,
                             int64_t ignore, int64_t classes, int rank, int64_t* fault) {
  int64_t label = labels[row * stride];
  if (label == ignore) return -1;
  if (label < base || label - base >= classes) {
    if (rank == 0) leave_fault(fault, row);
    return -1;
  }
  return label - base;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    cross_entropy_kernel(Rows<1> rows, int threads_of_row, const T* logits, const int64_t* labels,
                         int64_t label_stride, int64_t base, int64_t ignore, Compute<T>* loss,
                         int64_t loss_stride, double* lse, int64_t lse_stride, int64_t* fault) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[1]) {
    const T* from = logits + offset[0];
    Softmax<C> softmax = softmax_of_row(group, rows.columns, from);
    int64_t label =
        label_at(labels, label_stride, row, base, ignore, rows.columns, group.rank, fault);
    if (group.rank == 0) {
      lse[row * lse_stride] =
          rows.columns == 0 ? -static_cast<double>(INFINITY) : softmax.logarithm();
      loss[row * loss_stride] =
          label < 0 ? C(0) : (softmax.largest - convert<C>(from[label])) + softmax.log_sum();
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    cross_entropy_backward_kernel(Rows<2> rows, int threads_of_row, const T* logits,
                                  const int64_t* labels, int64_t label_stride, int64_t base,
                                  int64_t ignore, const double* lse, int64_t lse_stride,
                                  const Compute<T>* grad, int64_t grad_stride, T* out,
                                  int64_t* fault) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[2]) {
    const T* from = logits + offset[0];
    T* to = out + offset[1];
    int64_t label =
        label_at(labels, label_stride, row, base, ignore, rows.columns, group.rank, fault);
    C factor = grad[row * grad_stride];
    auto logarithm = SplitLogarithm<C>::of(lse[row * lse_stride]);
    each_in_row<T>(group, rows.columns, {from, to}, [&](int64_t i, auto width) {
      C x[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, x);
      for (int j = 0; j < decltype(width)::value; j++) {
        C hit = i + j == label ? C(1) : C(0);
        x[j] = label < 0 ? C(0) : (std::exp(logarithm.below(x[j])) - hit) * factor;
      }
      store_as<decltype(width)::value>(to + i, x);
    });
  });
}

}  // namespace

int softmax(Stream& stream, bool logarithm, const View& in, const View& out) {
  if (in.count() == 0) return kDone;
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<2> rows = rows_of<2>({&in, &out});
    RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, softmax_kernel<T>, grid_of(shape.blocks), shape.threads, 0, rows,
                  shape.threads_of_row, logarithm, in.at<T>(), out.at<T>());
  });
}

int softmax_backward(Stream& stream, bool logarithm, const View& y, const View& grad,
                     const View& out) {
  if (y.count() == 0) return kDone;
  return visit_floats(y.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<3> rows = rows_of<3>({&y, &grad, &out});
    RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, softmax_backward_kernel<T>, grid_of(shape.blocks), shape.threads, 0, rows,
                  shape.threads_of_row, logarithm, y.at<T>(), grad.at<T>(), out.at<T>());
  });
}

int cross_entropy(Stream& stream, const View& logits, const View& labels, int64_t base,
                  int64_t ignore, const View& loss, const View& lse) {
  if (loss.count() == 0) return kDone;
  return visit_floats(logits.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<1> rows = rows_of<1>({&logits});
    RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, cross_entropy_kernel<T>, grid_of(shape.blocks), shape.threads, 0, rows,
                  shape.threads_of_row, logits.at<T>(), labels.at<int64_t>(), labels.strides[0],
                  base, ignore, loss.at<Compute<T>>(), loss.strides[0], lse.at<double>(),
                  lse.strides[0], stream.fault);
  });
}

int cross_entropy_backward(Stream& stream, const View& logits, const View& labels, int64_t base,
                           int64_t ignore, const View& lse, const View& grad, const View& out) {
  if (logits.count() == 0) return kDone;
  return visit_floats(logits.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<2> rows = rows_of<2>({&logits, &out});
    RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, cross_entropy_backward_kernel<T>, grid_of(shape.blocks), shape.threads, 0,
                  rows, shape.threads_of_row, logits.at<T>(), labels.at<int64_t>(),
                  labels.strides[0], base, ignore, lse.at<double>(), lse.strides[0],
                  grad.at<Compute<T>>(), grad.strides[0], out.at<T>(), stream.fault);
  });
}

}  // namespace flow::cuda
