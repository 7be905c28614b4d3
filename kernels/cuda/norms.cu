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

// Rows at equal distances that a group keeps in registers, with the weights; the next row is read
// while one is computed.
template <typename T, typename Y, int packs>
struct NormForward {
  using C = Compute<T>;
  static constexpr int width = kPack<T>;
  using Numbers = C[packs][width];
  using Row = Words<T, width>[packs];

  int64_t count, stride[2];  // of rows, in x and y
  int columns;
  C share;  // 1 / columns
  bool centered;
  C eps;
  const T* x;
  Weights<T> weight, bias;
  Y* y;
  C* mean;
  C* rstd;

  FLOW_DEVICE int column(const Group& group, int pack) const {
    return (group.rank + pack * group.size) * width;
  }
  FLOW_DEVICE void load_weights(const Group& group, Numbers& w, Numbers& b) const {
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      for (int j = 0; j < width; j++) w[k][j] = b[k][j] = C(0);
      if (int at = column(group, k); at < columns) {
        weight.load_at(at, C(1), w[k]);
        bias.load_at(at, C(0), b[k]);
      }
    }
  }
  FLOW_DEVICE void load_row(const Group& group, int64_t row, Row& to) const {
    const T* from = x + row * stride[0];
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      to[k] = {};
      if (int at = column(group, k); at < columns) to[k] = load_words<width>(from + at);
    }
  }
  FLOW_DEVICE void compute(Group& group, int64_t row, const Row& in, const Numbers& w,
                           const Numbers& b) const {
    C center = 0, squares = 0;
    if (centered) {
      FLOW_UNROLL
      for (int k = 0; k < packs; k++) {
        C part[width];
        unpack(in[k], part);
        FLOW_UNROLL
        for (C each : part) center += each;
      }
      center = sum_over_group(group, center) * share;
    }
    FLOW_UNROLL
    for (int k = 0; k < packs; k++)
      if (column(group, k) < columns) {
        C part[width];
        unpack(in[k], part);
        FLOW_UNROLL
        for (C each : part) squares += (each - center) * (each - center);
      }
    C scale = C(1) / std::sqrt(sum_over_group(group, squares) * share + eps);
    Y* to = y + row * stride[1];
    FLOW_UNROLL
    for (int k = 0; k < packs; k++)
      if (int at = column(group, k); at < columns) {
        C part[width];
        unpack(in[k], part);
        FLOW_UNROLL
        for (int j = 0; j < width; j++) part[j] = (part[j] - center) * scale * w[k][j] + b[k][j];
        store_as<width>(to + at, part);
      }
    if (group.rank == 0) {
      if (centered) mean[row] = center;
      rstd[row] = scale;
    }
  }
};
template <typename T, typename Y, int packs>
__global__ void __launch_bounds__(kBlockThreads, 3)
    norm_rows_kernel(NormForward<T, Y, packs> f, int threads_of_row) {
  constexpr int width = kPack<T>;
  Group group = group_of(threads_of_row);
  int beside = static_cast<int>(blockDim.x) / group.size;
  int64_t step = static_cast<int64_t>(gridDim.x) * beside;
  int64_t row =
      static_cast<int64_t>(blockIdx.x) * beside + static_cast<int>(threadIdx.x) / group.size;
  if (row >= f.count) return;  // only whole warps: a larger group is the block
  Compute<T> w[packs][width], b[packs][width];
  f.load_weights(group, w, b);
  Words<T, width> now[packs], next[packs];
  f.load_row(group, row, next);
  for (; row < f.count; row += step) {
    __builtin_memcpy(now, next, sizeof now);
    if (row + step < f.count) f.load_row(group, row + step, next);
    f.compute(group, row, now, w, b);
  }
}

// A tensor that is added to x first; the sum is stored, and normalized as it is stored.
template <typename T, typename Y, int packs>
struct NormTerm {
  static constexpr int width = kPack<T>;
  using Row = Words<Y, width>[packs];

  const Y* data;
  T* sum;
  int64_t stride, sum_stride;

  FLOW_DEVICE void load_row(const NormForward<T, Y, packs>& f, const Group& group, int64_t row,
                            Row& to) const {
    const Y* from = data + row * stride;
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      to[k] = {};
      if (int at = f.column(group, k); at < f.columns) to[k] = load_words<width>(from + at);
    }
  }
  FLOW_DEVICE void add(const NormForward<T, Y, packs>& f, const Group& group, int64_t row,
                       const Row& term, Words<T, width> (&x)[packs]) const {
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      Compute<T> a[width], b[width];
      T stored[width];
      unpack(x[k], a);
      unpack(term[k], b);
      FLOW_UNROLL
      for (int j = 0; j < width; j++) a[j] += b[j];
      narrow(a, stored);
      __builtin_memcpy(&x[k], stored, sizeof stored);
      if (int at = f.column(group, k); at < f.columns)
        store<width>(sum + row * sum_stride + at, stored);
    }
  }
};
template <typename T, typename Y, int packs>
__global__ void __launch_bounds__(kBlockThreads, 3)
    add_norm_rows_kernel(NormForward<T, Y, packs> f, NormTerm<T, Y, packs> term,
                         int threads_of_row) {
  constexpr int width = kPack<T>;
  Group group = group_of(threads_of_row);
  int beside = static_cast<int>(blockDim.x) / group.size;
  int64_t step = static_cast<int64_t>(gridDim.x) * beside;
  int64_t row =
      static_cast<int64_t>(blockIdx.x) * beside + static_cast<int>(threadIdx.x) / group.size;
  if (row >= f.count) return;
  Compute<T> w[packs][width], b[packs][width];
  f.load_weights(group, w, b);
  Words<T, width> now[packs], next[packs];
  Words<Y, width> term_now[packs], term_next[packs];
  f.load_row(group, row, next);
  term.load_row(f, group, row, term_next);
  for (; row < f.count; row += step) {
    __builtin_memcpy(now, next, sizeof now);
    __builtin_memcpy(term_now, term_next, sizeof term_now);
    if (row + step < f.count) {
      f.load_row(group, row + step, next);
      term.load_row(f, group, row + step, term_next);
    }
    term.add(f, group, row, term_now, now);
    f.compute(group, row, now, w, b);
  }
}

// Rows of x and of a gradient of another type, which is read element by element in each pass.
template <typename Reader, typename G>
class RowsWithGradient {
 public:
  FLOW_DEVICE RowsWithGradient(const Reader& x, const G* grad) : x_(x), grad_(grad) {}
  template <typename F>
  FLOW_DEVICE void each(F f) const {
    x_.each([&](int64_t i, auto width, auto& part, int pack) {
      constexpr int n = decltype(width)::value;
      float both[2][n];
      for (int j = 0; j < n; j++) both[0][j] = part[0][j];
      for (int j = 0; j < n; j++) both[1][j] = convert<float>(grad_[i + j]);
      f(i, width, both, pack);
    });
  }

 private:
  const Reader& x_;
  const G* grad_;
};

/// Adds the numbers at `from`.
template <int width, typename T>
FLOW_DEVICE void add_stored(const T* from, Compute<T> (&to)[width]) {
  Compute<T> stored[width];
  load_as<width>(from, stored);
  FLOW_UNROLL
  for (int j = 0; j < width; j++) to[j] += stored[j];
}

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
  bool adds;  // to dx

  /// Of one row.
  template <typename Read>
  FLOW_DEVICE void row(Group& group, C columns, C center, C scale, const Read& both, T* to) const {
    Sums<C> sums{0, 0};
    both.each([&](int64_t i, auto width, auto& v, int) {
      C w[decltype(width)::value];
      weight.load_at(i, C(1), w);
      for (int j = 0; j < decltype(width)::value; j++) {
        C normal = (v[0][j] - center) * scale, weighted = v[1][j] * w[j];
        sums.first += weighted;
        sums.second += weighted * normal;
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
      if (adds) add_stored<decltype(width)::value>(to + i, w);
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
            to);
    };
    if constexpr (std::is_same_v<T, G>) {
      compute(StreamedRows<T, 2>(group, rows.columns, {f.x + offset[0], f.grad + offset[1]}, to));
    } else {
      StreamedRows<T, 1> x(group, rows.columns, {f.x + offset[0]}, to);
      compute(RowsWithGradient<StreamedRows<T, 1>, G>(x, f.grad + offset[1]));
    }
  });
}

// A thread's packs of a row of x and of its gradient, and the row's moments.
template <typename T, typename G, int packs>
struct NormRow {
  Words<T, kPack<T>> x[packs];
  Words<G, kPack<T>> grad[packs];
  Compute<T> center, scale;
};

// As NormBackward, for rows at equal distances that a group keeps in registers, and the sums over
// them for the weights' gradients.
template <typename T, typename G, int packs>
struct NormBackwardParts {
  using C = Compute<T>;
  static constexpr int width = kPack<T>;
  using Numbers = C[packs][width];
  /// Whether the registers suffice for the weights, and for a row that is read while another one is
  /// computed.
  static constexpr bool kAhead = packs <= 2;
  /// Whether they suffice for a row of dx, to which it is added, too.
  static constexpr bool kStoredAhead = packs * width <= 8;

  NormBackward<T, G> f;
  int64_t count, stride[3];  // of rows, in x, grad and dx
  int columns;
  C share;  // 1 / columns

  FLOW_DEVICE int column(const Group& group, int pack) const {
    return (group.rank + pack * group.size) * width;
  }
  FLOW_DEVICE void load_weight(const Group& group, int pack, C (&to)[width]) const {
    for (int j = 0; j < width; j++) to[j] = C(0);
    if (int at = column(group, pack); at < columns) f.weight.load_at(at, C(1), to);
  }
  /// The weights, if they are kept: otherwise each row loads them.
  FLOW_DEVICE void keep_weight(const Group& group, Numbers& to) const {
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) load_weight(group, k, to[k]);
  }
  FLOW_DEVICE void weight_of(const Group& group, const Numbers& kept, int pack,
                             C (&to)[width]) const {
    if constexpr (kAhead)
      __builtin_memcpy(to, kept[pack], sizeof to);
    else
      load_weight(group, pack, to);
  }
  /// Packs beyond the row are zeros: they add nothing to a sum.
  FLOW_DEVICE void load_row(const Group& group, int64_t row, NormRow<T, G, packs>& to) const {
    const T* x = f.x + row * stride[0];
    const G* grad = f.grad + row * stride[1];
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      to.x[k] = {};
      to.grad[k] = {};
      if (int at = column(group, k); at < columns) {
        to.x[k] = load_words<width>(x + at);
        to.grad[k] = load_words<width>(grad + at);
      }
    }
    to.center = f.centered ? f.mean[row] : C(0);
    to.scale = f.rstd[row];
  }
  FLOW_DEVICE void load_stored(const Group& group, const T* from,
                               Words<T, width> (&to)[packs]) const {
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      to[k] = {};
      if (int at = column(group, k); at < columns) to[k] = load_words<width>(from + at);
    }
  }
  FLOW_DEVICE void add_row(Group& group, int64_t row, const NormRow<T, G, packs>& in,
                           const Numbers& weight, Numbers& of_weight, Numbers& of_bias) const {
    T* to = f.dx + row * stride[2];
    Words<T, width> stored[packs] = {};
    if (kStoredAhead && f.adds) load_stored(group, to, stored);
    Sums<C> sums{0, 0};
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      C x[width], grad[width], w[width];
      unpack(in.x[k], x);
      unpack(in.grad[k], grad);
      weight_of(group, weight, k, w);
      FLOW_UNROLL
      for (int j = 0; j < width; j++) {
        C normal = (x[j] - in.center) * in.scale, weighted = grad[j] * w[j];
        sums.first += weighted;
        sums.second += weighted * normal;
        of_weight[k][j] += grad[j] * normal;
        of_bias[k][j] += grad[j];
      }
    }
    sums = sums_over_group(group, sums);
    C constant = f.centered ? -(sums.first * share) * in.scale : C(0);
    C slope = -(sums.second * share) * in.scale * in.scale;
    if (!kStoredAhead && f.adds) load_stored(group, to, stored);
    FLOW_UNROLL
    for (int k = 0; k < packs; k++) {
      C x[width], grad[width], w[width];
      unpack(in.x[k], x);
      unpack(in.grad[k], grad);
      weight_of(group, weight, k, w);
      FLOW_UNROLL
      for (int j = 0; j < width; j++)
        grad[j] = grad[j] * w[j] * in.scale + ((x[j] - in.center) * slope + constant);
      if (f.adds) {
        unpack(stored[k], x);
        FLOW_UNROLL
        for (int j = 0; j < width; j++) grad[j] += x[j];
      }
      if (int at = column(group, k); at < columns) store_as<width>(to + at, grad);
    }
  }
};

// Each group has `part` rows, of which it sums the weights' gradients on the way.
template <typename T, typename G, int packs>
__global__ void __launch_bounds__(kRowThreadsMax)
    norm_backward_parts_kernel(NormBackwardParts<T, G, packs> parts, int threads_of_row,
                               int64_t part, Compute<T>* dweight, Compute<T>* dbias) {
  constexpr int width = kPack<T>;
  constexpr bool ahead = NormBackwardParts<T, G, packs>::kAhead;
  Group group = group_of(threads_of_row);
  int64_t number = static_cast<int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) / group.size) +
                   static_cast<int>(threadIdx.x) / group.size;
  int64_t row = number * part, last = least(row + part, parts.count);
  if (row >= last) return;  // only whole warps: a larger group is the block
  Compute<T> of_weight[packs][width] = {}, of_bias[packs][width] = {}, weight[packs][width];
  if (ahead) parts.keep_weight(group, weight);
  NormRow<T, G, packs> now, next;
  if (ahead) parts.load_row(group, row, next);
  for (; row < last; row++) {
    if (ahead)
      now = next;
    else
      parts.load_row(group, row, now);
    if (ahead && row + 1 < last) parts.load_row(group, row + 1, next);
    parts.add_row(group, row, now, weight, of_weight, of_bias);
  }
  FLOW_UNROLL
  for (int k = 0; k < packs; k++)
    if (int at = parts.column(group, k); at < parts.columns) {
      store<width>(dweight + number * parts.columns + at, of_weight[k]);
      if (dbias) store<width>(dbias + number * parts.columns + at, of_bias[k]);
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

// The sums of the parts' columns, to a tensor of any float type.
template <typename C>
struct PartSums {
  const C* parts;  // null: nothing to do
  char* out;
  int64_t stride;
  DType type;

  FLOW_DEVICE void put(int64_t column, C value) const {
    int64_t at = column * stride;
    if (type == DType::f32) reinterpret_cast<float*>(out)[at] = static_cast<float>(value);
    if (type == DType::f64) reinterpret_cast<double*>(out)[at] = static_cast<double>(value);
    if (type == DType::f16) reinterpret_cast<Half*>(out)[at] = convert<Half>(value);
    if (type == DType::bf16) reinterpret_cast<Brain*>(out)[at] = convert<Brain>(value);
  }
};
template <typename C>
PartSums<C> part_sums(const C* parts, const View* out) {
  if (!parts || !out || out->count() == 0) return {nullptr, nullptr, 0, DType::f32};
  return {parts, out->data, out->strides[0], out->dtype};
}

constexpr int kSumColumns = 8;  // of a block: 32 or 64 bytes of a part
template <typename C>
struct ColumnSums {
  C at[kBlockThreads / kSumColumns][kSumColumns];
};
// Of the weight's gradient, and in blocks with a y of 1 of the bias's.
template <typename C>
__global__ void __launch_bounds__(kBlockThreads)
    sum_parts_kernel(PartSums<C> of_weight, PartSums<C> of_bias, int64_t count, int64_t columns) {
  constexpr int deep = kBlockThreads / kSumColumns, ahead = 8;
  PartSums<C> sums = blockIdx.y == 0 ? of_weight : of_bias;
  if (!sums.parts) return;
  auto& shared = shared_room<ColumnSums<C>>();
  int x = static_cast<int>(threadIdx.x) % kSumColumns;
  int y = static_cast<int>(threadIdx.x) / kSumColumns;
  int64_t column = int64_t{blockIdx.x} * kSumColumns + x;
  C sum[ahead] = {};
  if (column < columns)
    for (int64_t base = y; base < count; base += ahead * deep) {
      FLOW_UNROLL
      for (int k = 0; k < ahead; k++)
        if (base + k * deep < count) sum[k] += sums.parts[(base + k * deep) * columns + column];
    }
  for (int k = 1; k < ahead; k++) sum[0] += sum[k];
  shared.at[y][x] = sum[0];
  __syncthreads();
  if (y > 0 || column >= columns) return;
  C all = 0;
  for (int k = 0; k < deep; k++) all += shared.at[k][x];
  sums.put(column, all);
}

// Minimum number of rows of a part, and approximate number of threads of all parts.
#ifdef FLOW_EMULATE
constexpr int64_t kPartRows = 2, kPartThreads = 1024;
#else
constexpr int64_t kPartRows = 16, kPartThreads = 132 * 1024;
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

// Calls f(Constant<packs of a thread>) for rows that a group can keep in registers. Few packs leave
// registers for more warps.
template <typename T, typename F>
int with_norm_packs(int64_t columns, F f) {
  int64_t packs = divide_up(columns, kPack<T>);
  if constexpr (is_small_float<T>) {
    bool one = packs <= kWarp || (packs > 2 * kWarp && packs <= kBlockThreads);
    return one ? f(Constant<1>{}) : f(Constant<2>{});
  } else if constexpr (std::is_same_v<T, float>) {
    return packs <= 2 * kRowThreadsMax ? f(Constant<2>{}) : f(Constant<4>{});
  } else {
    return f(Constant<4>{});
  }
}

// Blocks that fill the device several times; each has several rows, for which it loads the weights
// once.
#ifdef FLOW_EMULATE
constexpr int64_t kNormBlocks = 3;
#else
constexpr int64_t kNormBlocks = 132 * 12;
#endif

template <typename T, typename Y, int packs>
NormForward<T, Y, packs> norm_forward(int64_t x_stride, int64_t y_stride, bool centered,
                                      const View& x, const View* weight, const View* bias,
                                      double eps, const View& y, const View* mean,
                                      const View& rstd) {
  using C = Compute<T>;
  int64_t columns = x.shape.last();
  return {x.count() / columns,
          {x_stride, y_stride},
          static_cast<int>(columns),
          C(1) / static_cast<C>(columns),
          centered,
          static_cast<C>(eps),
          x.at<T>(),
          weights_of<T>(weight),
          weights_of<T>(bias),
          y.at<Y>(),
          mean ? mean->at<C>() : nullptr,
          rstd.at<C>()};
}

int norm(Stream& stream, bool centered, const View& x, const View* weight, const View* bias,
         double eps, const View& y, const View* mean, const View& rstd) {
  if (rstd.count() == 0) return kDone;
  return visit_norm(x, y, [&](auto type, auto of_y) {
    using T = decltype(type);
    using Y = decltype(of_y);
    using C = Compute<T>;
    Rows<2> rows = rows_of<2>({&x, &y});
    auto any_rows = [&] {
      RowLaunch shape = kept_rows<T, 2>(rows, {&x, &y}, kKeptPacks, kRowThreadsMax);
      bool kept = shape.threads > 0;
      if (!kept) shape = rows_for(rows.index_math.count, rows.columns);
      return launch(stream, kept ? norm_kernel<T, Y, true> : norm_kernel<T, Y, false>,
                    grid_of(shape.blocks), shape.threads, 0, rows, shape.threads_of_row, centered,
                    x.at<T>(), weights_of<T>(weight), weights_of<T>(bias), static_cast<C>(eps),
                    y.at<Y>(), mean ? mean->at<C>() : nullptr, rstd.at<C>());
    };
    if (rows.index_math.rank > 1) return any_rows();
    return with_norm_packs<T>(rows.columns, [&](auto packs) {
      constexpr int number = decltype(packs)::value;
      if constexpr (number <= 2) {
        RowLaunch shape = kept_rows<T, 2>(rows, {&x, &y}, number, kBlockThreads);
        if (shape.threads == 0) return any_rows();
        auto f =
            norm_forward<T, Y, number>(rows.index_math.strides[0][0], rows.index_math.strides[1][0],
                                       centered, x, weight, bias, eps, y, mean, rstd);
        return launch(stream, norm_rows_kernel<T, Y, number>,
                      grid_of(least(shape.blocks, kNormBlocks)), shape.threads, 0, f,
                      shape.threads_of_row);
      } else {
        return any_rows();
      }
    });
  });
}

// In one kernel, if rows and types allow it.
int add_norm_together(Stream& stream, const View& x, const View& term, const View* weight,
                      const View* bias, double eps, const View& sum, const View& y,
                      const View* mean, const View& rstd) {
  if (term.dtype != y.dtype || sum.dtype != x.dtype || x.count() == 0) return kUnsupported;
  return visit_norm(x, y, [&](auto type, auto of_y) {
    using T = decltype(type);
    using Y = decltype(of_y);
    const View* const views[] = {&x, &term, &sum, &y};
    Rows<4> rows = rows_of<4>(views);
    if (rows.index_math.rank > 1) return kUnsupported;
    return with_norm_packs<T>(rows.columns, [&](auto packs) {
      constexpr int number = decltype(packs)::value;
      if constexpr (number <= 2) {
        RowLaunch shape = kept_rows<T, 4>(rows, views, number, kBlockThreads);
        if (shape.threads == 0) return kUnsupported;
        const auto& strides = rows.index_math.strides;
        auto f = norm_forward<T, Y, number>(strides[0][0], strides[3][0], mean != nullptr, x,
                                            weight, bias, eps, y, mean, rstd);
        NormTerm<T, Y, number> added{term.at<Y>(), sum.at<T>(), strides[1][0], strides[2][0]};
        return launch(stream, add_norm_rows_kernel<T, Y, number>,
                      grid_of(least(shape.blocks, kNormBlocks)), shape.threads, 0, f, added,
                      shape.threads_of_row);
      } else {
        return static_cast<int>(kUnsupported);
      }
    });
  });
}

// The launches of the backward. If a group can keep a row, one kernel computes dx and the parts of
// the weights' gradients; otherwise two kernels do. Then the parts are summed.
template <typename T, typename G>
struct NormBackwardLaunch {
  using C = Compute<T>;
  Stream& stream;
  NormBackward<T, G> f;
  const View &x, &grad, &dx;
  const View *dweight, *dbias;
  C* sums = nullptr;
  C* bias_sums = nullptr;

  bool take(int64_t parts) {
    int64_t columns = x.shape.last();
    sums = stream.scratch.take<C>(parts * columns);
    if (dbias) bias_sums = stream.scratch.take<C>(parts * columns);
    return sums && (!dbias || bias_sums);
  }
  int add_up(int64_t parts) const {
    int64_t columns = x.shape.last();
    PartSums<C> of_weight = part_sums<C>(sums, dweight), of_bias = part_sums<C>(bias_sums, dbias);
    if (!of_weight.parts && !of_bias.parts) return kDone;
    return launch(stream, sum_parts_kernel<C>,
                  grid_of(divide_up(columns, kSumColumns), of_bias.parts ? 2 : 1), kBlockThreads, 0,
                  of_weight, of_bias, parts, columns);
  }
  template <int packs>
  int kept(const Rows<3>& rows, const RowLaunch& shape) {
    NormBackwardParts<T, G, packs> parts{f,
                                         rows.index_math.count,
                                         {},
                                         static_cast<int>(rows.columns),
                                         C(1) / static_cast<C>(rows.columns)};
    for (int k = 0; k < 3; k++) parts.stride[k] = rows.index_math.strides[k][0];
    // Each part has enough rows, and the parts together fill the device.
    int64_t part =
        most(kPartRows, divide_up(parts.count, divide_up(kPartThreads, shape.threads_of_row)));
    int64_t count = divide_up(parts.count, part);
    if (!take(count)) return kNeedsScratch;
    int64_t blocks = divide_up(count, shape.threads / shape.threads_of_row);
    FLOW_LAUNCH(launch(stream, norm_backward_parts_kernel<T, G, packs>, grid_of(blocks),
                       shape.threads, 0, parts, shape.threads_of_row, part, sums, bias_sums));
    return add_up(count);
  }
  int streamed(const Rows<3>& rows) {
    bool of_weights = dweight || dbias;
    int64_t across = divide_up(most(rows.columns, 1), kBlockThreads), count = rows.index_math.count;
    int64_t part =
        most(2 * kPartRows, divide_up(count, most(1, least(1024 / least(across, 1024), 256))));
    int64_t parts = divide_up(count, part);
    if (of_weights && !take(parts)) return kNeedsScratch;
    if (x.count() > 0) {
      RowLaunch shape = rows_for(count, rows.columns);
      FLOW_LAUNCH(launch(stream, norm_backward_kernel<T, G>, grid_of(shape.blocks), shape.threads,
                         0, rows, shape.threads_of_row, f));
      if (of_weights)
        FLOW_LAUNCH(launch(stream, norm_weights_kernel<T, G>, grid_of(across, parts), kBlockThreads,
                           0, rows_of<2>({&x, &grad}), part, f.centered, f.x, f.mean, f.rstd,
                           f.grad, sums, bias_sums));
    }
    return of_weights ? add_up(parts) : kDone;
  }
  int run() {
    Rows<3> rows = rows_of<3>({&x, &grad, &dx});
    if (x.count() == 0 || rows.index_math.rank > 1 || !(dweight || dbias)) return streamed(rows);
    return with_norm_packs<T>(rows.columns, [&](auto packs) {
      constexpr int number = decltype(packs)::value;
      RowLaunch shape = kept_rows<T, 3>(rows, {&x, &grad, &dx}, number, kRowThreadsMax);
      return shape.threads > 0 ? kept<number>(rows, shape) : streamed(rows);
    });
  }
};

int norm_backward(Stream& stream, bool centered, const View& x, const View* weight,
                  const View* mean, const View& rstd, const View& grad, const View& dx,
                  const View* dweight, const View* dbias, bool adds) {
  return visit_norm(x, grad, [&](auto type, auto of_grad) {
    using T = decltype(type);
    using G = decltype(of_grad);
    using C = Compute<T>;
    NormBackward<T, G> f{centered,
                         x.at<T>(),
                         weights_of<T>(weight),
                         mean ? mean->at<C>() : nullptr,
                         rstd.at<C>(),
                         grad.at<G>(),
                         dx.at<T>(),
                         adds};
    return NormBackwardLaunch<T, G>{stream, f, x, grad, dx, dweight, dbias}.run();
  });
}

}  // namespace

int layer_norm(Stream& stream, const View& x, const View* weight, const View* bias, double eps,
               const View& y, const View& mean, const View& rstd) {
  return norm(stream, true, x, weight, bias, eps, y, &mean, rstd);
}

int layer_norm_backward(Stream& stream, const View& x, const View* weight, const View& mean,
                        const View& rstd, const View& grad, const View& dx, const View* dweight,
                        const View* dbias, bool adds) {
  return norm_backward(stream, true, x, weight, &mean, rstd, grad, dx, dweight, dbias, adds);
}

int add_norm(Stream& stream, const View& x, const View& term, const View* weight, const View* bias,
             double eps, const View& sum, const View& y, const View* mean, const View& rstd) {
  int code = add_norm_together(stream, x, term, weight, bias, eps, sum, y, mean, rstd);
  if (code != kUnsupported) return code;
  FLOW_LAUNCH(binary(stream, Binary::add, x, term, sum));
  return norm(stream, mean != nullptr, sum, weight, bias, eps, y, mean, rstd);
}

int rms_norm(Stream& stream, const View& x, const View* weight, double eps, const View& y,
             const View& rstd) {
  return norm(stream, false, x, weight, nullptr, eps, y, nullptr, rstd);
}

int rms_norm_backward(Stream& stream, const View& x, const View* weight, const View& rstd,
                      const View& grad, const View& dx, const View* dweight, bool adds) {
  return norm_backward(stream, false, x, weight, nullptr, rstd, grad, dx, dweight, nullptr, adds);
}

}  // namespace flow::cuda
