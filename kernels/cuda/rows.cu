// Softmax and cross entropy. Softmax reads a row once if its threads can keep it in registers;
// otherwise once for its largest number and its sum together, and once more for the result.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

// exp for a result of type T.
template <typename T>
FLOW_DEVICE Compute<T> exp_for(Compute<T> x) {
  if constexpr (is_small_float<T>)
    return quick_exp(x);
  else
    return std::exp(x);
}

// With kept rows, the largest number first: that needs fewer exponentials than both at once.
template <typename T, bool kept, typename Read>
FLOW_DEVICE Softmax<Compute<T>> softmax_of_row(Group& group, const Read& in) {
  using C = Compute<T>;
  auto softmax = Softmax<C>::empty();
  if constexpr (kept) {
    in.each([&](int64_t, auto, auto& x, int) {
      FLOW_UNROLL
      for (C each : x[0]) softmax.largest = std::fmax(softmax.largest, each);
    });
    softmax.largest = over_group(group, softmax.largest, softmax.largest, Largest{});
    C shift = softmax.shift();
    in.each([&](int64_t, auto, auto& x, int) {
      FLOW_UNROLL
      for (C each : x[0]) softmax.sum += quick_exp(each - shift);
    });
    softmax.sum = sum_over_group(group, softmax.sum);
    return softmax;
  } else {
    in.each_batch([&](auto& packs) { softmax.template add_packs<T>(packs); },
                  [&](int64_t, auto, auto& x, int) { softmax.add(x[0]); });
    return softmax_over_group(group, softmax);
  }
}

template <typename T, bool kept>
__global__ void __launch_bounds__(kRowThreadsMax)
    softmax_kernel(Rows<2> rows, int threads_of_row, bool logarithm, const T* in, T* out) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t, const int64_t(&offset)[2]) {
    T* to = out + offset[1];
    ReadRows<T, 1, kept> row(group, rows.columns, {in + offset[0]}, to);
    Softmax<C> softmax = softmax_of_row<T, kept>(group, row);
    C log_sum = softmax.log_sum();
    C factor = is_nan(log_sum) ? log_sum : C(1) / softmax.sum;
    row.each([&](int64_t i, auto width, auto& x, int) {
      FLOW_UNROLL
      for (C& each : x[0]) {
        C below = each - softmax.largest;
        each = logarithm ? below - log_sum : exp_for<T>(below) * factor;
      }
      store_as<decltype(width)::value>(to + i, x[0]);
    });
  });
}

template <typename T, bool kept>
__global__ void __launch_bounds__(kRowThreadsMax)
    softmax_backward_kernel(Rows<3> rows, int threads_of_row, bool logarithm, const T* y,
                            const T* grad, T* out) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t, const int64_t(&offset)[3]) {
    T* to = out + offset[2];
    ReadRows<T, 2, kept> both(group, rows.columns, {y + offset[0], grad + offset[1]}, to);
    C sum = 0;
    both.each([&](int64_t, auto width, auto& x, int) {
      FLOW_UNROLL
      for (int j = 0; j < decltype(width)::value; j++)
        sum += logarithm ? x[1][j] : x[0][j] * x[1][j];
    });
    sum = sum_over_group(group, sum);
    both.each([&](int64_t i, auto width, auto& x, int) {
      C result[decltype(width)::value];
      FLOW_UNROLL
      for (int j = 0; j < decltype(width)::value; j++)
        result[j] = logarithm ? x[1][j] - exp_for<T>(x[0][j]) * sum : x[0][j] * (x[1][j] - sum);
      store_as<decltype(width)::value>(to + i, result);
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
__global__ void __launch_bounds__(kBlockThreads, 4)
    cross_entropy_kernel(Rows<1> rows, int threads_of_row, const T* logits, const int64_t* labels,
                         int64_t label_stride, int64_t base, int64_t ignore, Compute<T>* loss,
                         int64_t loss_stride, double* lse, int64_t lse_stride, int64_t* fault) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[1]) {
    const T* from = logits + offset[0];
    int64_t label =
        label_at(labels, label_stride, row, base, ignore, rows.columns, group.rank, fault);
    C of_label = label < 0 ? C(0) : convert<C>(from[label]);
    Softmax<C> softmax =
        softmax_of_row<T, false>(group, StreamedRows<T, 1>(group, rows.columns, {from}, nullptr));
    if (group.rank == 0) {
      lse[row * lse_stride] =
          rows.columns == 0 ? -static_cast<double>(INFINITY) : softmax.logarithm();
      loss[row * loss_stride] = label < 0 ? C(0) : (softmax.largest - of_label) + softmax.log_sum();
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
    T* to = out + offset[1];
    int64_t label =
        label_at(labels, label_stride, row, base, ignore, rows.columns, group.rank, fault);
    C factor = grad[row * grad_stride];
    auto logarithm = SplitLogarithm<C>::of(lse[row * lse_stride]);
    StreamedRows<T, 1> in(group, rows.columns, {logits + offset[0]}, to);
    in.each([&](int64_t i, auto width, auto& x, int) {
      constexpr int count = decltype(width)::value;
      C result[count];
      FLOW_UNROLL
      for (int j = 0; j < count; j++)
        result[j] = label < 0 ? C(0) : exp_for<T>(logarithm.below(x[0][j])) * factor;
      if (label >= i && label < i + count) FLOW_UNROLL
      for (int j = 0; j < count; j++)
        if (i + j == label) result[j] = (exp_for<T>(logarithm.below(x[0][j])) - C(1)) * factor;
      store_as<count>(to + i, result);
    });
  });
}

}  // namespace

int softmax(Stream& stream, bool logarithm, const View& in, const View& out) {
  if (in.count() == 0) return kDone;
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<2> rows = rows_of<2>({&in, &out});
    RowLaunch shape = kept_rows<T, 2>(rows, {&in, &out}, kKeptPacks, kRowThreadsMax);
    bool kept = shape.threads > 0;
    if (!kept) shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, kept ? softmax_kernel<T, true> : softmax_kernel<T, false>,
                  grid_of(shape.blocks), shape.threads, 0, rows, shape.threads_of_row, logarithm,
                  in.at<T>(), out.at<T>());
  });
}

int softmax_backward(Stream& stream, bool logarithm, const View& y, const View& grad,
                     const View& out) {
  if (y.count() == 0) return kDone;
  return visit_floats(y.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<3> rows = rows_of<3>({&y, &grad, &out});
    RowLaunch shape = kept_rows<T, 3>(rows, {&y, &grad, &out}, kKeptPacks, kRowThreadsMax);
    bool kept = shape.threads > 0;
    if (!kept) shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream,
                  kept ? softmax_backward_kernel<T, true> : softmax_backward_kernel<T, false>,
                  grid_of(shape.blocks), shape.threads, 0, rows, shape.threads_of_row, logarithm,
                  y.at<T>(), grad.at<T>(), out.at<T>());
  });
}

int cross_entropy(Stream& stream, const View& logits, const View& labels, int64_t base,
                  int64_t ignore, const View& loss, const View& lse) {
  if (loss.count() == 0) return kDone;
  return visit_floats(logits.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<1> rows = rows_of<1>({&logits});
    // Several blocks a processor: while one joins its threads' sums, others load.
    RowLaunch shape = rows_for(rows.index_math.count, least(rows.columns, 8192));
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
