// Layer norm and RMS norm, which is layer norm without its mean. A row's moments are computed in
// two passes, from registers if its threads can keep it; the weights' gradients are summed in two
// stages.
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

  template <int width>
  FLOW_DEVICE void load_at(int64_t i, Compute<T> without, Compute<T> (&to)[width]) const {
    if (!data) {
      for (int j = 0; j < width; j++) to[j] = without;
    } else if (is_f32) {
      load_from(static_cast<const float*>(data), i, to);
    } else {
      load_from(static_cast<const T*>(data), i, to);
    }
  }

 private:
  template <typename W, int width>
  FLOW_DEVICE void load_from(const W* from, int64_t i, Compute<T> (&to)[width]) const {
    from += i * stride;
    // All threads of a row agree: a head of single elements moves all their packs.
    if (stride == 1 && reinterpret_cast<uintptr_t>(from) % (sizeof(W) * width) == 0) {
      load_as<width>(from, to);
    } else {
      for (int j = 0; j < width; j++) to[j] = convert<Compute<T>>(from[j * stride]);
    }
  }
};
template <typename T>
Weights<T> weights_of(const View* view) {
  if (!view) return {nullptr, 0, false};
  return {view->data, view->strides[0], view->dtype == DType::f32};
}

// Packs of x's row begin where packs of y's do, if y is of its type or the rows are kept.
template <typename T, typename Y, bool kept>
__global__ void __launch_bounds__(kRowThreadsMax, 2)
    norm_kernel(Rows<2> rows, int threads_of_row, bool centered, const T* x, Weights<T> weight,
                Weights<T> bias, Compute<T> eps, Y* y, Compute<T>* mean, Compute<T>* rstd) {
  using C = Compute<T>;
  constexpr bool same = std::is_same_v<T, Y>;
  Group group = group_of(threads_of_row);
  auto columns = static_cast<C>(rows.columns);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[2]) {
    Y* to = y + offset[1];
    ReadRows<T, 1, kept> in(group, rows.columns, {x + offset[0]},
                            same ? reinterpret_cast<const T*>(to) : nullptr);
    C center = 0, squares = 0;
    if (centered) {
      in.each([&](int64_t, auto, auto& part, int) {
        for (C each : part[0]) center += each;
      });
      center = sum_over_group(group, center) / columns;
    }
    in.each([&](int64_t, auto, auto& part, int) {
      for (C each : part[0]) squares += (each - center) * (each - center);
    });
    C scale = C(1) / std::sqrt(sum_over_group(group, squares) / columns + eps);
    in.each([&](int64_t i, auto width, auto& part, int) {
      C w[decltype(width)::value], b[decltype(width)::value];
      weight.load_at(i, C(1), w);
      bias.load_at(i, C(0), b);
      for (int j = 0; j < decltype(width)::value; j++)
        w[j] = (part[0][j] - center) * scale * w[j] + b[j];
      if constexpr (same || kept)
        store_as<decltype(width)::value>(to + i, w);
      else
        for (int j = 0; j < decltype(width)::value; j++) to[i + j] = convert<Y>(w[j]);
    });
    if (group.rank == 0) {
      if (centered) mean[row] = center;
      rstd[row] = scale;
    }
  });
}

// Rows of x and of a gradient of another type, which is read in each pass. `packs`: the gradient is
// aligned where x's packs are.
template <typename Reader, typename G, bool packs>
class RowsWithGradient {
 public:
  FLOW_DEVICE RowsWithGradient(const Reader& x, const G* grad) : x_(x), grad_(grad) {}
  template <typename F>
  FLOW_DEVICE void each(F f) const {
    x_.each([&](int64_t i, auto width, auto& part, int pack) {
      constexpr int n = decltype(width)::value;
      float both[2][n];
      for (int j = 0; j < n; j++) both[0][j] = part[0][j];
      if constexpr (packs)
        load_as<n>(grad_ + i, both[1]);
      else
        for (int j = 0; j < n; j++) both[1][j] = convert<float>(grad_[i + j]);
      f(i, width, both, pack);
    });
  }

 private:
  const Reader& x_;
  const G* grad_;
};

// dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); the first mean only for layer norm.
template <typename T, typename G>
struct NormBackward {
  using C = Compute<T>;
  bool centered;
  const T* x;
  Weights<T> weight;
  const C* mean;
  const C* rstd;
  const G* grad;
  T* dx;

  /// Of one row; extra(pack, its element, gradient, xhat) is called for each element.
  template <typename Read, typename F>
  FLOW_DEVICE void row(Group& group, C columns, C center, C scale, const Read& both, T* to,
                       F extra) const {
    Sums<C> sums{0, 0};
    both.each([&](int64_t i, auto width, auto& v, int pack) {
      C w[decltype(width)::value];
      weight.load_at(i, C(1), w);
      for (int j = 0; j < decltype(width)::value; j++) {
        C normal = (v[0][j] - center) * scale, weighted = v[1][j] * w[j];
        sums.first += weighted;
        sums.second += weighted * normal;
        extra(pack, j, v[1][j], normal);
      }
    });
    sums = sums_over_group(group, sums);
    C from_mean = centered ? sums.first / columns : C(0), from_square = sums.second / columns;
    both.each([&](int64_t i, auto width, auto& v, int) {
      C w[decltype(width)::value];
      weight.load_at(i, C(1), w);
      for (int j = 0; j < decltype(width)::value; j++) {
        C normal = (v[0][j] - center) * scale;
        w[j] = (v[1][j] * w[j] - from_mean - normal * from_square) * scale;
      }
      store_as<decltype(width)::value>(to + i, w);
    });
  }
};

template <typename T, typename G>
__global__ void __launch_bounds__(kRowThreadsMax)
    norm_backward_kernel(Rows<3> rows, int threads_of_row, NormBackward<T, G> f) {
  using C = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t row, const int64_t(&offset)[3]) {
    T* to = f.dx + offset[2];
    auto compute = [&](const auto& both) {
      f.row(group, static_cast<C>(rows.columns), f.centered ? f.mean[row] : C(0), f.rstd[row], both,
            to, [](int, int, C, C) {});
    };
    if constexpr (std::is_same_v<T, G>) {
      compute(StreamedRows<T, 2>(group, rows.columns, {f.x + offset[0], f.grad + offset[1]}, to));
    } else {
      StreamedRows<T, 1> x(group, rows.columns, {f.x + offset[0]}, to);
      compute(RowsWithGradient<StreamedRows<T, 1>, G, false>(x, f.grad + offset[1]));
    }
  });
}

// Packs of a row that a thread keeps, with the sums of its columns for the weights' gradients.
template <typename T>
constexpr int kNormPacks = is_small_float<T> ? 2 : 4;

// Each group has `part` rows, of which it sums the weights' gradients on the way.
template <typename T, typename G>
__global__ void __launch_bounds__(kRowThreadsMax)
    norm_backward_parts_kernel(Rows<3> rows, int threads_of_row, NormBackward<T, G> f, int64_t part,
                               Compute<T>* dweight, Compute<T>* dbias) {
  using C = Compute<T>;
  constexpr int packs = kNormPacks<T>, width = kPack<T>;
  Group group = group_of(threads_of_row);
  int64_t number = static_cast<int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / group.size) +
                   static_cast<int>(threadIdx.x) / group.size;
  int64_t first = number * part, last = least(first + part, rows.index_math.count);
  if (first >= last) return;  // only whole warps: a larger group is the block
  C of_weight[packs][width] = {}, of_bias[packs][width] = {};
  for (int64_t row = first; row < last; row++) {
    int64_t offset[3];
    rows.index_math.at(row, offset);
    T* to = f.dx + offset[2];
    auto compute = [&](const auto& both) {
      f.row(group, static_cast<C>(rows.columns), f.centered ? f.mean[row] : C(0), f.rstd[row], both,
            to, [&](int pack, int j, C gradient, C normal) {
              of_weight[pack][j] += gradient * normal;
              of_bias[pack][j] += gradient;
            });
    };
    if constexpr (std::is_same_v<T, G>) {
      compute(
          KeptRows<T, 2, packs>(group, rows.columns, {f.x + offset[0], f.grad + offset[1]}, to));
    } else {
      KeptRows<T, 1, packs> x(group, rows.columns, {f.x + offset[0]}, to);
      compute(RowsWithGradient<KeptRows<T, 1, packs>, G, true>(x, f.grad + offset[1]));
    }
  }
  FLOW_UNROLL
  for (int k = 0; k < packs; k++)
    if (int at = (group.rank + k * group.size) * width; at < rows.columns) {
      store<width>(dweight + number * rows.columns + at, of_weight[k]);
      if (dbias) store<width>(dbias + number * rows.columns + at, of_bias[k]);
    }
}

// Part `blockIdx.y` of the rows: each thread sums one column of them.
template <typename T, typename G>
__global__ void __launch_bounds__(kBlockThreads)
    norm_weights_kernel(Rows<2> rows, int64_t part, bool centered, const T* x,
                        const Compute<T>* mean, const Compute<T>* rstd, const G* grad,
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
    C center = centered ? mean[row] : C(0);
    of_weight += g * ((convert<C>(x[offset[0] + column]) - center) * rstd[row]);
    of_bias += g;
  }
  int64_t at = blockIdx.y * rows.columns + column;
  dweight[at] = of_weight;
  if (dbias) dbias[at] = of_bias;
}

template <typename C>
struct ColumnSums {
  C at[kBlockThreads / kWarp][kWarp];
};
// A block has kWarp columns; its warps share the parts.
template <typename C, typename To>
__global__ void __launch_bounds__(kBlockThreads)
    sum_parts_kernel(const C* parts, int64_t count, int64_t columns, To* out, int64_t stride) {
  constexpr int warps = kBlockThreads / kWarp, ahead = 4;
  auto& sums = shared_room<ColumnSums<C>>();
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  C sum[ahead] = {};
  if (column < columns)
    for (int64_t base = warp; base < count; base += ahead * warps) {
      FLOW_UNROLL
      for (int k = 0; k < ahead; k++)
        if (base + k * warps < count) sum[k] += parts[(base + k * warps) * columns + column];
    }
  sums.at[warp][lane] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  C all = 0;
  for (int k = 0; k < warps; k++) all += sums.at[k][lane];
  out[column * stride] = convert<To>(all);
}

template <typename C>
int sum_parts(Stream& stream, const C* parts, int64_t count, const View* out) {
  if (!out || out->count() == 0) return kDone;
  return visit_floats(out->dtype, [&](auto type) {
    using To = decltype(type);
    return launch(stream, sum_parts_kernel<C, To>, grid_of(divide_up(out->count(), kWarp)),
                  kBlockThreads, 0, parts, count, out->count(), out->at<To>(), out->strides[0]);
  });
}

// Minimum number of rows of a part, and approximate number of threads of all parts.
#ifdef FLOW_EMULATE
constexpr int64_t kPartRows = 2, kPartThreads = 1024;
#else
constexpr int64_t kPartRows = 16, kPartThreads = 131072;
#endif

// Calls f(x's type, another's): the same, or f32 and a smaller float.
template <typename F>
int visit_norm(const View& x, const View& other, F f) {
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    if (other.dtype == x.dtype) return f(type, type);
    if constexpr (std::is_same_v<T, float>) {
      if (other.dtype == DType::bf16) return f(type, Brain{});
      if (other.dtype == DType::f16) return f(type, Half{});
    }
    return kUnsupported;
  });
}

int norm(Stream& stream, bool centered, const View& x, const View* weight, const View* bias,
         double eps, const View& y, const View* mean, const View& rstd) {
  if (rstd.count() == 0) return kDone;
  return visit_norm(x, y, [&](auto type, auto of_y) {
    using T = decltype(type);
    using Y = decltype(of_y);
    using C = Compute<T>;
    Rows<2> rows = rows_of<2>({&x, &y});
    RowLaunch shape = kept_rows<T, 2>(rows, {&x, &y}, kKeptPacks, kRowThreadsMax);
    bool kept = shape.threads > 0;
    if (!kept) shape = rows_for(rows.index_math.count, rows.columns);
    return launch(stream, kept ? norm_kernel<T, Y, true> : norm_kernel<T, Y, false>,
                  grid_of(shape.blocks), shape.threads, 0, rows, shape.threads_of_row, centered,
                  x.at<T>(), weights_of<T>(weight), weights_of<T>(bias), static_cast<C>(eps),
                  y.at<Y>(), mean ? mean->at<C>() : nullptr, rstd.at<C>());
  });
}

int norm_backward(Stream& stream, bool centered, const View& x, const View* weight,
                  const View* mean, const View& rstd, const View& grad, const View& dx,
                  const View* dweight, const View* dbias) {
  return visit_norm(x, grad, [&](auto type, auto of_grad) {
    using T = decltype(type);
    using G = decltype(of_grad);
    using C = Compute<T>;
    Rows<3> rows = rows_of<3>({&x, &grad, &dx});
    int64_t count = rows.index_math.count, columns = rows.columns;
    NormBackward<T, G> f{centered,
                         x.at<T>(),
                         weights_of<T>(weight),
                         mean ? mean->at<C>() : nullptr,
                         rstd.at<C>(),
                         grad.at<G>(),
                         dx.at<T>()};
    bool of_weights = dweight || dbias;
    RowLaunch shape = kept_rows<T, 3>(rows, {&x, &grad, &dx}, kNormPacks<T>, kRowThreadsMax);
    bool kept = of_weights && shape.threads > 0;
    // Each part has enough rows, and the parts together fill the device.
    int64_t across = divide_up(most(columns, 1), kBlockThreads);
    int64_t part = kept ? most(kPartRows, divide_up(count, kPartThreads / shape.threads_of_row))
                        : most(2 * kPartRows,
                               divide_up(count, most(1, least(1024 / least(across, 1024), 256))));
    int64_t parts = divide_up(count, part);
    C* sums = nullptr;
    C* bias_sums = nullptr;
    if (of_weights) {
      sums = stream.scratch.take<C>(parts * columns);
      if (dbias) bias_sums = stream.scratch.take<C>(parts * columns);
      if (!sums || (dbias && !bias_sums)) return kNeedsScratch;
    }
    if (x.count() > 0 && kept) {
      int64_t blocks = divide_up(parts, shape.threads / shape.threads_of_row);
      FLOW_LAUNCH(launch(stream, norm_backward_parts_kernel<T, G>, grid_of(blocks), shape.threads,
                         0, rows, shape.threads_of_row, f, part, sums, bias_sums));
    } else if (x.count() > 0) {
      shape = rows_for(count, columns);
      FLOW_LAUNCH(launch(stream, norm_backward_kernel<T, G>, grid_of(shape.blocks), shape.threads,
                         0, rows, shape.threads_of_row, f));
      if (of_weights)
        FLOW_LAUNCH(launch(stream, norm_weights_kernel<T, G>, grid_of(across, parts), kBlockThreads,
                           0, rows_of<2>({&x, &grad}), part, centered, x.at<T>(), f.mean, f.rstd,
                           grad.at<G>(), sums, bias_sums));
    }
    if (!of_weights) return kDone;
    FLOW_LAUNCH(sum_parts(stream, sums, parts, dweight));
    return sum_parts(stream, bias_sums, parts, dbias);
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
