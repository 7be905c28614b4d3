// Layer norm and RMS norm, which is layer norm without its mean. A row's moments are computed in
// two passes (the second from the cache); the weights' gradients are summed in two stages.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

// A weight or bias, of x's type or f32, or the constant `without`.
template <typename T>
struct Weights {
  const void* data;  // null: there are none
  int64_t stride;
  bool is_f32;

  FLOW_DEVICE Compute<T> at(int64_t i, Compute<T> without) const {
    if (!data) return without;
    if (is_f32) return static_cast<Compute<T>>(static_cast<const float*>(data)[i * stride]);
    return convert<Compute<T>>(static_cast<const T*>(data)[i * stride]);
  }
};
template <typename T>
Weights<T> weights_of(const View* view) {
  if (!view) return {nullptr, 0, false};
  return {view->data, view->strides[0], view->dtype == DType::f32};
}

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    norm_kernel(Rows<2> rows, int threads_of_row, bool centerd, const T* x, Weights<T> weight,
                Weights<T> bias, Compute<T> eps, T* y, Compute<T>* mean, Compute<T>* rstd) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  auto columns = static_cast<C>(rows.columns);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[2]) {
    const T* from = x + offset[0];
    T* to = y + offset[1];
    C center = 0, squares = 0;
    if (centerd) {
      each_in_row<T>(group, rows.columns, {from}, [&](int64_t i, auto width) {
        C part[decltype(width)::value];
        load_as<decltype(width)::value>(from + i, part);
        for (C each : part) center += each;
      });
      center = sum_over_group(group, center) / columns;
    }
    each_in_row<T>(group, rows.columns, {from}, [&](int64_t i, auto width) {
      C part[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, part);
      for (C each : part) squares += (each - center) * (each - center);
    });
    C scale = C(1) / std::sqrt(sum_over_group(group, squares) / columns + eps);
    each_in_row<T>(group, rows.columns, {from, to}, [&](int64_t i, auto width) {
      C part[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, part);
      for (int j = 0; j < decltype(width)::value; j++)
        part[j] = (part[j] - center) * scale * weight.at(i + j, C(1)) + bias.at(i + j, C(0));
      store_as<decltype(width)::value>(to + i, part);
    });
    if (group.rank == 0) {
      if (centerd) mean[row] = center;
      rstd[row] = scale;
    }
  });
}

// dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); the first mean only for layer norm.
template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    norm_backward_kernel(Rows<3> rows, int threads_of_row, bool centerd, const T* x,
                         Weights<T> weight, const Compute<T>* mean, const Compute<T>* rstd,
                         const T* grad, T* dx) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[3]) {
    const T* from = x + offset[0];
    const T* of_grad = grad + offset[1];
    T* to = dx + offset[2];
    C center = centerd ? mean[row] : C(0), scale = rstd[row];
    C sum = 0, product = 0;
    each_in_row<T>(group, rows.columns, {from, of_grad}, [&](int64_t i, auto width) {
      C a[decltype(width)::value], g[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, a);
      load_as<decltype(width)::value>(of_grad + i, g);
      for (int j = 0; j < decltype(width)::value; j++) {
        C weighted = g[j] * weight.at(i + j, C(1));
        sum += weighted;
        product += weighted * ((a[j] - center) * scale);
      }
    });
    auto columns = static_cast<C>(rows.columns);
    C from_mean = centerd ? sum_over_group(group, sum) / columns : C(0);
    C from_square = sum_over_group(group, product) / columns;
    each_in_row<T>(group, rows.columns, {from, of_grad, to}, [&](int64_t i, auto width) {
      C a[decltype(width)::value], g[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, a);
      load_as<decltype(width)::value>(of_grad + i, g);
      for (int j = 0; j < decltype(width)::value; j++) {
        C normal = (a[j] - center) * scale;
        a[j] = (g[j] * weight.at(i + j, C(1)) - from_mean - normal * from_square) * scale;
      }
      store_as<decltype(width)::value>(to + i, a);
    });
  });
}

// Part `blockIdx.y` of the rows: each thread sums one column of them.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    norm_weights_kernel(Rows<2> rows, int64_t part, bool centerd, const T* x,
                        const Compute<T>* mean, const Compute<T>* rstd, const T* grad,
                        Compute<T>* dweight, Compute<T>* dbias) {
  using C = Compute<T>;
  int64_t column = thread_of_grid();
  if (column >= rows.columns) return;
  int64_t first = blockIdx.y * part, last = least(first + part, rows.index_math.count);
  C of_weight = 0, of_bias = 0;
  for (int64_t row = first; row < last; row++) {
    int64_t offset[2];
    rows.index_math.at(row, offset);
    C g = convert<C>(grad[offset[1] + column]);
    C center = centerd ? mean[row] : C(0);
    of_weight += g * ((convert<C>(x[offset[0] + column]) - center) * rstd[row]);
    of_bias += g;
  }
  int64_t at = blockIdx.y * rows.columns + column;
  dweight[at] = of_weight;
  if (dbias) dbias[at] = of_bias;
}

template <typename C, typename To>
__global__ void __launch_bounds__(kBlockThreads)
    sum_parts_kernel(const C* parts, int64_t count, int64_t columns, To* out, int64_t stride) {
  int64_t column = thread_of_grid();
  if (column >= columns) return;
  C sum = 0;
  for (int64_t part = 0; part < count; part++) sum += parts[part * columns + column];
  out[column * stride] = convert<To>(sum);
}

template <typename C>
int sum_parts(Stream& stream, const C* parts, int64_t count, const View* out) {
  if (!out || out->count() == 0) return kDone;
  return visit_floats(out->dtype, [&](auto type) {
    using To = decltype(type);
    return launch(stream, sum_parts_kernel<C, To>, grid_of(divide_up(out->count(), kBlockThreads)),
                  kBlockThreads, 0, parts, count, out->count(), out->at<To>(), out->strides[0]);
  });
}

int norm(Stream& stream, bool centerd, const View& x, const View* weight, const View* bias,
         double eps, const View& y, const View* mean, const View& rstd) {
  if (rstd.count() == 0) return kDone;
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    Rows<2> rows = rows_of<2>({&x, &y});
    RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, norm_kernel<T>, grid_of(shape.blocks), shape.threads, 0, rows,
                  shape.threads_of_row, centerd, x.at<T>(), weights_of<T>(weight),
                  weights_of<T>(bias), static_cast<C>(eps), y.at<T>(),
                  mean ? mean->at<C>() : nullptr, rstd.at<C>());
  });
}

int norm_backward(Stream& stream, bool centerd, const View& x, const View* weight, const View* mean,
                  const View& rstd, const View& grad, const View& dx, const View* dweight,
                  const View* dbias) {
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    Rows<3> rows = rows_of<3>({&x, &grad, &dx});
    int64_t count = rows.index_math.count, columns = rows.columns;
    // A part has at least 32 rows, and all parts together fill the device.
    int64_t across = divide_up(most(columns, 1), 256);
    int64_t part = most(32, divide_up(count, most(1, least(1024 / least(across, 1024), 256))));
    int64_t parts = divide_up(count, part);
    C* of_weight = nullptr;
    C* of_bias = nullptr;
    if (dweight || dbias) {
      of_weight = stream.scratch.take<C>(parts * columns);
      if (dbias) of_bias = stream.scratch.take<C>(parts * columns);
      if (!of_weight || (dbias && !of_bias)) return kNeedsScratch;
    }
    const C* of_mean = mean ? mean->at<C>() : nullptr;
    if (x.count() > 0) {
      RowLaunch shape = rows_for(count, columns);
      FLOW_LAUNCH(launch(stream, norm_backward_kernel<T>, grid_of(shape.blocks), shape.threads, 0,
                         rows, shape.threads_of_row, centerd, x.at<T>(), weights_of<T>(weight),
                         of_mean, rstd.at<C>(), grad.at<T>(), dx.at<T>()));
    }
    if (!of_weight) return kDone;
    if (x.count() > 0)
      FLOW_LAUNCH(launch(stream, norm_weights_kernel<T>, grid_of(across, parts), kBlockThreads, 0,
                         rows_of<2>({&x, &grad}), part, centerd, x.at<T>(), of_mean, rstd.at<C>(),
                         grad.at<T>(), of_weight, of_bias));
    FLOW_LAUNCH(sum_parts(stream, of_weight, parts, dweight));
    return sum_parts(stream, of_bias, parts, dbias);
  });
}

}  // namespace

int layer_norm(Stream& stream, const View& x, const View* weight, const View* bias, double eps,
               const View& y, const View& mean, const View& rstd) {
  return norm(stream, true, x, weight, bias, eps, y, &mean, rstd);
}

int layer_norm_backward(Stream& stream, const View& x, const View* weight, const View& mean,
                        const View& rstd, const View& grad, const View& dx, const View* dweight,
                        const View* dbias) {
  return norm_backward(stream, true, x, weight, &mean, rstd, grad, dx, dweight, dbias);
}

int rms_norm(Stream& stream, const View& x, const View* weight, double eps, const View& y,
             const View& rstd) {
  return norm(stream, false, x, weight, nullptr, eps, y, nullptr, rstd);
}

int rms_norm_backward(Stream& stream, const View& x, const View* weight, const View& rstd,
                      const View& grad, const View& dx, const View* dweight) {
  return norm_backward(stream, false, x, weight, nullptr, rstd, grad, dx, dweight, nullptr);
}

}  // namespace flow::cuda
