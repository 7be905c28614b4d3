// Matrix products: by cuBLASLt if it is available and supports the operands' layouts, otherwise by
// this folder's own tiles.
#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/own_products.hpp"

namespace flow::cuda {
namespace {

// y = activation(x); others are rejected earlier.
template <typename C>
FLOW_DEVICE C activate(Unary activation, C x) {
  switch (activation) {
    case Unary::relu:
      return unary_of<Unary::relu>(x);
    case Unary::gelu:
      return unary_of<Unary::gelu>(x);
    case Unary::gelu_tanh:
      return unary_of<Unary::gelu_tanh>(x);
    default:
      return x;
  }
}

// grad * activation'(x) of the same ones.
template <typename C>
FLOW_DEVICE C activation_gradient(Unary activation, C x, C grad) {
  switch (activation) {
    case Unary::relu:
      return unary_backward_of<Unary::relu>(x, x, grad);
    case Unary::gelu:
      return unary_backward_of<Unary::gelu>(x, x, grad);
    case Unary::gelu_tanh:
      return unary_backward_of<Unary::gelu_tanh>(x, x, grad);
    default:
      return grad;
  }
}

bool is_activation(Unary op) {
  return op == Unary::identity || op == Unary::relu || op == Unary::gelu || op == Unary::gelu_tanh;
}

// `Out` is T, or float.
template <typename T, typename Out>
struct MatrixSides {
  using C = Compute<T>;
  struct Origin {
    const T *a, *b;
    Out* c;
  };

  IndexMath<3> batches;
  const T *a_data, *b_data, *bias;
  Out* c_data;
  int64_t a_row, a_k, b_k, b_column, c_row, bias_stride;
  C alpha, beta;
  Unary activation;
  // Of a single product: the operand of the activation, which is stored, or whose gradient is
  // computed.
  bool is_gradient;
  T* before;
  int64_t before_row;

  FLOW_HD Origin origin(int64_t batch) const {
    int64_t offset[3];
    batches.at(batch, offset);
    return {a_data + offset[0], b_data + offset[1], c_data + offset[2]};
  }
  FLOW_DEVICE C a(const Origin& origin, int64_t row, int64_t k) const {
    return convert<C>(origin.a[row * a_row + k * a_k]);
  }
  FLOW_DEVICE C b(const Origin& origin, int64_t k, int64_t column) const {
    return convert<C>(origin.b[k * b_k + column * b_column]);
  }
  FLOW_DEVICE void put(const Origin& origin, int64_t row, int64_t column, C sum) const {
    Out& to = origin.c[row * c_row + column];
    C value = alpha * sum;
    if (beta != C(0)) value += beta * convert<C>(to);
    if (bias) value += convert<C>(bias[column * bias_stride]);
    if (is_gradient) {
      C x = convert<C>(before[row * before_row + column]);
      to = convert<Out>(activation_gradient(activation, x, value));
      return;
    }
    if (before) {
      T rounded = convert<T>(value);
      before[row * before_row + column] = rounded;
      value = convert<C>(rounded);
    }
    to = convert<Out>(activate(activation, value));
  }
};

// Epilogue of a product that is in f32, or in c itself.
template <typename From, typename T, typename Out>
__global__ void __launch_bounds__(kBlockThreads)
    finish_kernel(MatrixSides<T, Out> sides, int64_t rows, int64_t columns, const From* products,
                  int64_t row_stride) {
  using C = Compute<T>;
  auto origin = sides.origin(0);
  for (int64_t i = thread_of_grid(); i < rows * columns; i += threads_of_grid()) {
    int64_t row = i / columns, column = i - row * columns;
    sides.put(origin, row, column, convert<C>(products[row * row_stride + column]));
  }
}

// The sums of an epilogue, of c's type. The library computes those that its product can.
struct EpilogueSums {
  void* columns = nullptr;
  void* rows = nullptr;
};

template <typename T, typename Out>
LtProduct lt_product_of(const Gemm& g, const MatrixSides<T, Out>& s, DType in, DType out,
                        MatmulPrecision precision) {
  LtProduct p{};
  p.precision = precision;
  p.in = in, p.out = out;
  p.m = g.rows, p.n = g.columns, p.k = g.depth;
  p.a = s.a_data, p.b = s.b_data, p.c = s.c_data;
  p.a_row = s.a_row, p.a_k = s.a_k, p.b_k = s.b_k, p.b_column = s.b_column, p.c_row = s.c_row;
  p.alpha = static_cast<double>(s.alpha), p.beta = static_cast<double>(s.beta);
  return p;
}

// A single product, or one at each step of the innermost batch dimension, with its whole epilogue.
template <typename T, typename Out>
int lt_fused(Stream& stream, LtProduct p, const MatrixSides<T, Out>& s, const EpilogueSums& sums) {
  if (s.activation == Unary::gelu || (s.bias && s.bias_stride != 1)) return kUnsupported;
  p.bias = s.bias;
  p.activation = s.activation;
  p.is_gradient = s.is_gradient;
  p.before = s.before;
  p.before_row = s.before_row;
  p.column_sums = sums.columns;
  p.row_sums = sums.rows;
  p.batches = s.batches.sizes[0];
  p.a_batch = s.batches.strides[0][0];
  p.b_batch = s.batches.strides[1][0];
  p.c_batch = s.batches.strides[2][0];
  if (p.batches == 1) p.a_batch = p.b_batch = p.c_batch = 0;
  size_t used = stream.scratch.used;
  for (int64_t i = 0; i < s.batches.count; i += p.batches) {
    auto origin = s.origin(i);
    p.a = origin.a, p.b = origin.b, p.c = origin.c;
    stream.scratch.used = used;  // they run in order on the stream
    if (int code = lt_product(stream, p)) return code;
  }
  return kDone;
}

// The bare product, then its epilogue.
template <typename T, typename Out>
int lt_finished(Stream& stream, const Gemm& g, LtProduct p, const MatrixSides<T, Out>& s) {
  using C = Compute<T>;
  if (s.batches.count > 1) return kUnsupported;
  MatrixSides<T, Out> rest = s;
  rest.alpha = C(1);
  dim3 grid = grid_of(blocks_for(g.rows * g.columns));
  if constexpr (std::is_same_v<Out, C>) {
    rest.beta = C(0);
    if (int code = lt_product(stream, p)) return code;
    return launch(stream, finish_kernel<C, T, Out>, grid, kBlockThreads, 0, rest, g.rows, g.columns,
                  s.c_data, s.c_row);
  } else {
    auto* products = stream.scratch.take<float>(g.rows * g.columns);
    if (!products) {
      stream.scratch.take<char>(static_cast<int64_t>(lt_workspace(p)));
      return kNeedsScratch;
    }
    p.c = products;
    p.out = DType::f32;
    p.c_row = g.columns;
    p.beta = 0;
    if (int code = lt_product(stream, p)) return code;
    return launch(stream, finish_kernel<float, T, Out>, grid, kBlockThreads, 0, rest, g.rows,
                  g.columns, products, g.columns);
  }
}

// The product with its bias, then the activation or its gradient by the kernel of elements.
template <typename T>
int lt_then_activation(Stream& stream, LtProduct p, const MatrixSides<T, T>& s,
                       const ProductEpilogue& e, const View& c) {
  MatrixSides<T, T> bare = s;
  bare.activation = Unary::identity;
  bare.is_gradient = false;
  bare.before = nullptr;
  if (!e.is_gradient) {
    bare.c_data = s.before;
    p.c_row = bare.c_row = s.before_row;
  }
  if (int code = lt_fused(stream, p, bare, {})) return code;
  if (!e.is_gradient) return unary(stream, e.activation, *e.before, c);
  return unary_backward(stream, e.activation, *e.before, *e.before, c, c);
}

// kUnsupported if the library cannot do it. Clears the sums that it computed.
template <typename T, typename Out>
int lt_matmul(Stream& stream, const Gemm& g, const MatrixSides<T, Out>& s, const View& a,
              const ProductEpilogue& e, const View& c, EpilogueSums& sums) {
  LtProduct p = lt_product_of(g, s, a.dtype, c.dtype, stream.precision);
  if (g.depth == 0 || !lt_reads(p)) return kUnsupported;
  size_t used = stream.scratch.used;
  bool has_sums = sums.columns || sums.rows;
  int code = lt_fused(stream, p, s, sums);
  if (code == kDone) sums = {};
  if (code == kUnsupported && has_sums) {
    stream.scratch.used = used;
    code = lt_fused(stream, p, s, {});
  }
  bool is_plain = !s.bias && !s.before && s.activation == Unary::identity;
  if (code != kUnsupported || is_plain) return code;
  stream.scratch.used = used;
  if constexpr (std::is_same_v<T, Out>) {
    if (s.before) code = lt_then_activation(stream, p, s, e, c);
    if (code != kUnsupported) return code;
    stream.scratch.used = used;
  }
  return lt_finished(stream, g, p, s);
}

// At least what `reduce` takes for sums, beside two numbers for each of them.
constexpr int64_t kSumsScratch = kSplitsMax * kWarp * 16 * int64_t{sizeof(double)};

template <typename T, typename Out>
int matmul_as(Stream& stream, const View& a, const View& b, double alpha, double beta,
              const ProductEpilogue& e, const View& c) {
  using C = Compute<T>;
  int row = c.rank() - 2, column = c.rank() - 1;
  MatrixSides<T, Out> sides{
      index_math_over<3>(leading(c.shape, 2), {a.strides, b.strides, c.strides}),
      a.at<T>(),
      b.at<T>(),
      e.bias ? e.bias->at<T>() : nullptr,
      c.at<Out>(),
      a.strides[row],
      a.strides[column],
      b.strides[row],
      b.strides[column],
      c.strides[row],
      e.bias ? e.bias->strides[0] : 0,
      static_cast<C>(alpha),
      static_cast<C>(beta),
      e.activation,
      e.is_gradient,
      e.before ? e.before->at<T>() : nullptr,
      e.before ? e.before->strides[0] : 0};
  Gemm g{c.shape[row],
         c.shape[column],
         a.shape[column],
         sides.batches.count,
         1,
         0,
         a.strides[column] == 1,
         b.strides[column] == 1 || b.strides[row] != 1};
  // A batch of a's with one b is one large a.
  const auto& of = sides.batches.strides;
  if (sides.batches.rank == 1 && of[1][0] == 0 && of[0][0] == g.rows * sides.a_row &&
      of[2][0] == g.rows * sides.c_row) {
    g.rows *= sides.batches.count;
    g.batches = 1;
    sides.batches = IndexMath<3>{};
    sides.batches.count = sides.batches.rank = 1;
    sides.batches.sizes[0] = 1;
    sides.batches.update_divisors();
  }
  EpilogueSums sums{e.column_sums ? e.column_sums->data : nullptr,
                    e.row_sums ? e.row_sums->data : nullptr};
  size_t used = 0;
  if (sums.columns || sums.rows) {
    // For the sums after the product, and at the first call enough for the product too.
    if (!stream.scratch.take<char>(kSumsScratch + 2 * 8 * most(g.rows, g.columns))) {
      stream.scratch.take<char>(
          static_cast<int64_t>(lt_workspace(lt_product_of(g, sides, a.dtype, c.dtype, {}))));
      stream.scratch.take<char>(kSumsScratch);
      return kNeedsScratch;
    }
    used = stream.scratch.used;
  }
  int code = lt_matmul(stream, g, sides, a, e, c, sums);
  if (code == kUnsupported) {
    stream.scratch.used = used;  // drops scratch of the library's attempt
    note_own_product(2.0 * static_cast<double>(g.rows) * static_cast<double>(g.columns) *
                         static_cast<double>(g.depth) * static_cast<double>(g.batches),
                     lt_absence);
    code = launch_gemm<C>(stream, g, sides);
  }
  if (code == kDone && sums.columns) {
    stream.scratch.used = 0;
    code = reduce(stream, Reduce::sum, swap_dims(c, 0, 1), 0, *e.column_sums);
  }
  if (code == kDone && sums.rows) {
    stream.scratch.used = 0;
    code = reduce(stream, Reduce::sum, a, 0, *e.row_sums);
  }
  return code;
}

}  // namespace

int matmul(Stream& stream, const View& a, const View& b, double alpha, double beta,
           const View* bias, Unary activation, const View& c) {
  if (!is_activation(activation)) return kUnsupported;
  if (c.count() == 0) return kDone;
  ProductEpilogue epilogue;
  epilogue.bias = bias;
  epilogue.activation = activation;
  return visit_floats(c.dtype, [&](auto type) {
    using T = decltype(type);
    return matmul_as<T, T>(stream, a, b, alpha, beta, epilogue, c);
  });
}

int product(Stream& stream, const View& a, const View& b, const ProductEpilogue& e, const View& c) {
  if (!is_activation(e.activation)) return kUnsupported;
  if (c.count() == 0) {  // the sums may have elements
    for (const View* sums : {e.column_sums, e.row_sums}) {
      if (!sums) continue;
      int code = sums == e.row_sums ? reduce(stream, Reduce::sum, a, 0, *sums)
                                    : fill(stream, *sums, Number::of(int64_t{0}));
      if (code != kDone) return code;
    }
    return kDone;
  }
  return visit_floats(a.dtype, [&](auto type) {
    using T = decltype(type);
    if (c.dtype == a.dtype) return matmul_as<T, T>(stream, a, b, 1, 0, e, c);
    if constexpr (is_small_float<T>)
      if (c.dtype == DType::f32) return matmul_as<T, float>(stream, a, b, 1, 0, e, c);
    return kUnsupported;
  });
}

}  // namespace flow::cuda
