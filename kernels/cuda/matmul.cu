// Matrix products: by cuBLASLt if it is available and supports the operands' layouts, otherwise by
// this folder's own tiles.
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/own_products.hpp"
#ifndef FLOW_EMULATE
#include "kernels/cuda/cublaslt.hpp"
#endif

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

template <typename T>
struct MatrixSides {
  using C = Compute<T>;
  struct Origin {
    const T *a, *b;
    T* c;
  };

  IndexMath<3> batches;
  const T *a_data, *b_data, *bias;
  T* c_data;
  int64_t a_row, a_k, b_k, b_column, c_row, bias_stride;
  C alpha, beta;
  Unary activation;

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
    T& to = origin.c[row * c_row + column];
    C value = alpha * sum;
    if (beta != C(0)) value += beta * convert<C>(to);
    if (bias) value += convert<C>(bias[column * bias_stride]);
    to = convert<T>(activate(activation, value));
  }
};

// Epilogue of a product that is in f32, or in c itself.
template <typename From, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    finish_kernel(MatrixSides<T> sides, int64_t rows, int64_t columns, const From* products,
                  int64_t row_stride) {
  using C = Compute<T>;
  auto origin = sides.origin(0);
  for (int64_t i = thread_of_grid(); i < rows * columns; i += threads_of_grid()) {
    int64_t row = i / columns, column = i - row * columns;
    sides.put(origin, row, column, convert<C>(products[row * row_stride + column]));
  }
}

// A single product, or one at each step of the innermost batch dimension.
#ifndef FLOW_EMULATE
template <typename T>
LtProduct lt_product_of(const Gemm& g, const MatrixSides<T>& s, DType dtype) {
  LtProduct p{};
  p.in = p.out = dtype;
  p.m = g.rows, p.n = g.columns, p.k = g.depth;
  p.a = s.a_data, p.b = s.b_data, p.c = s.c_data;
  p.a_row = s.a_row, p.a_k = s.a_k, p.b_k = s.b_k, p.b_column = s.b_column, p.c_row = s.c_row;
  p.alpha = static_cast<double>(s.alpha), p.beta = static_cast<double>(s.beta);
  return p;
}

// kUnsupported if the library cannot do it.
template <typename T>
int lt_matmul(Stream& stream, const Gemm& g, const MatrixSides<T>& s, DType dtype) {
  using C = Compute<T>;
  if (g.depth == 0) return kUnsupported;
  LtProduct p = lt_product_of(g, s, dtype);
  bool plain = !s.bias && s.activation == Unary::identity;
  bool fused =
      plain || (dtype != DType::f64 && s.activation != Unary::gelu &&
                (!s.bias || s.bias_stride == 1) && reinterpret_cast<uintptr_t>(s.bias) % 16 == 0);
  if (fused) {
    p.bias = s.bias;
    p.activation = s.activation;
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
  if (s.batches.count > 1) return kUnsupported;
  MatrixSides<T> rest = s;  // the epilogue after the bare product
  rest.alpha = C(1);
  dim3 grid = grid_of(blocks_for(g.rows * g.columns));
  if constexpr (std::is_same_v<T, C>) {
    rest.beta = C(0);
    if (int code = lt_product(stream, p)) return code;
    return launch(stream, finish_kernel<C, T>, grid, kBlockThreads, 0, rest, g.rows, g.columns,
                  s.c_data, s.c_row);
  } else {
    auto* products = stream.scratch.take<float>(g.rows * g.columns);
    p.c = products;
    p.out = DType::f32;
    p.c_row = g.columns;
    p.beta = 0;
    int code = lt_product(stream, p);
    if (code == kUnsupported) return code;
    if (!products) return kNeedsScratch;
    if (code) return code;
    return launch(stream, finish_kernel<float, T>, grid, kBlockThreads, 0, rest, g.rows, g.columns,
                  products, g.columns);
  }
}
#endif

std::string why_not_the_library() {
#ifdef FLOW_EMULATE
  return "this GPU is emulated";
#else
  return lt_absence();
#endif
}

}  // namespace

int matmul(Stream& stream, const View& a, const View& b, double alpha, double beta,
           const View* bias, Unary activation, const View& c) {
  if (activation != Unary::identity && activation != Unary::relu && activation != Unary::gelu &&
      activation != Unary::gelu_tanh)
    return kUnsupported;
  if (c.count() == 0) return kDone;
  int row = c.rank() - 2, column = c.rank() - 1;
  return visit_floats(c.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    MatrixSides<T> sides{index_math_over<3>(leading(c.shape, 2), {a.strides, b.strides, c.strides}),
                         a.at<T>(),
                         b.at<T>(),
                         bias ? bias->at<T>() : nullptr,
                         c.at<T>(),
                         a.strides[row],
                         a.strides[column],
                         b.strides[row],
                         b.strides[column],
                         c.strides[row],
                         bias ? bias->strides[0] : 0,
                         static_cast<C>(alpha),
                         static_cast<C>(beta),
                         activation};
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
#ifndef FLOW_EMULATE
    int code = lt_matmul(stream, g, sides, c.dtype);
    if (code != kUnsupported) return code;
    stream.scratch.used = 0;  // drops scratch of the library's attempt
#endif
    note_own_product(2.0 * static_cast<double>(g.rows) * static_cast<double>(g.columns) *
                         static_cast<double>(g.depth) * static_cast<double>(g.batches),
                     why_not_the_library);
    return launch_gemm<C>(stream, g, sides);
  });
}

}  // namespace flow::cuda
