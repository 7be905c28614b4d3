// Element-wise operations by the functors of kernels/shared/scalar.hpp. The operation is selected
// in the kernel, by a branch that all threads take alike: one kernel per operation and type would
// take minutes to compile and save nothing, because the kernels are limited by memory bandwidth.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"
#include "kernels/shared/compare_number.hpp"
#include "kernels/shared/philox.hpp"

namespace flow::cuda {
namespace {

// ---- copy, cast

template <typename T>
struct CopyOp {
  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    T x[width];
    spots[0].read(x);
    spots[1].write(x);
  }
};

template <typename From>
struct CastOp {
  DType to;

  template <typename To, int width>
  FLOW_DEVICE static void put(const From (&x)[width], const ElementPosition& spot) {
    To y[width];
    for (int j = 0; j < width; j++) y[j] = convert<To>(x[j]);
    spot.write(y);
  }
  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    From x[width];
    spots[0].read(x);
    switch (to) {
      case DType::f32:
        return put<float>(x, spots[1]);
      case DType::f64:
        return put<double>(x, spots[1]);
      case DType::f16:
        return put<Half>(x, spots[1]);
      case DType::bf16:
        return put<Brain>(x, spots[1]);
      case DType::i64:
        return put<int64_t>(x, spots[1]);
      case DType::i32:
        return put<int32_t>(x, spots[1]);
      case DType::u8:
        return put<uint8_t>(x, spots[1]);
      case DType::boolean:
        return put<Bool>(x, spots[1]);
    }
  }
};

// A transposed copy in tiles, so that both sides are accessed contiguously.
template <typename T>
__global__ void __launch_bounds__(256)
    transpose_kernel(const T* from, T* to, int64_t rows, int64_t columns, int64_t from_column,
                     int64_t to_row, int64_t tiles_across, int64_t batches, int64_t from_batch,
                     int64_t to_batch, int64_t tiles) {
  struct Tile {
    T at[32][33];
  };
  auto& tile = shared_room<Tile>();
  int x = static_cast<int>(threadIdx.x) % 32, y = static_cast<int>(threadIdx.x) / 32;
  for (int64_t batch = blockIdx.y; batch < batches; batch += gridDim.y) {
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
      int64_t row = number / tiles_across * 32, column = number % tiles_across * 32;
      // Rows of `from` and columns of `to` are contiguous.
      for (int j = y; j < 32; j += 8)
        if (row + x < rows && column + j < columns)
          tile.at[j][x] = from[batch * from_batch + (column + j) * from_column + row + x];
      __syncthreads();
      for (int j = y; j < 32; j += 8)
        if (row + j < rows && column + x < columns)
          to[batch * to_batch + (row + j) * to_row + column + x] = tile.at[x][j];
      __syncthreads();
    }
  }
}

// True if `walk` (from, to) is a transposition of large enough matrices, which was launched.
template <typename T>
bool transpose(Stream& stream, const IndexMath<2>& index_math, const View& from, const View& to,
               int& error) {
  const auto& of_from = index_math.strides[0];
  const auto& of_to = index_math.strides[1];
  if (index_math.rank < 2 || index_math.rank > 3 || of_to[0] != 1 || of_from[1] != 1 ||
      of_from[0] <= 1)
    return false;
  int64_t columns = index_math.sizes[0], rows = index_math.sizes[1];
  if (columns < 16 || rows < 16) return false;
  bool batched = index_math.rank == 3;
  int64_t tiles_across = divide_up(columns, 32), tiles = tiles_across * divide_up(rows, 32);
  int64_t batches = batched ? index_math.sizes[2] : 1;
  error =
      launch(stream, transpose_kernel<T>, grid_of(least(tiles, kBlocksMax), least(batches, 1024)),
             256, 0, from.at<T>(), to.at<T>(), rows, columns, of_from[0], of_to[1], tiles_across,
             batches, batched ? of_from[2] : 0, batched ? of_to[2] : 0, tiles);
  return true;
}

template <typename T>
int copy_of_size(Stream& stream, const View& from, const View& to) {
  const int64_t* strides[] = {from.strides, to.strides};
  int error = kDone;
  if (to.count() > 0 &&
      transpose<T>(stream, index_math_over<2>(to.shape, strides), from, to, error))
    return error;
  return launch_each<kPack<T>>(stream, CopyOp<T>{}, {&from, &to});
}

// ---- fill

template <typename T>
struct FillOp {
  T value;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[1], int64_t) const {
    T x[width];
    for (int j = 0; j < width; j++) x[j] = value;
    spots[0].write(x);
  }
};

template <typename T>
int fill_with(Stream& stream, const View& out, T value) {
  return launch_each<kPack<T>>(stream, FillOp<T>{value}, {&out});
}

// ---- one, two and three operands

template <typename T>
struct UnaryOp {
  Unary op;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    Compute<T> x[width];
    spots[0].read_as<T>(x);
    with_unary(op, [&](auto constant) {
      for (int j = 0; j < width; j++) x[j] = unary_of<decltype(constant)::value>(x[j]);
    });
    spots[1].write_as<T>(x);
  }
};

template <typename T>
struct UnaryBackwardOp {
  Unary op;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[4], int64_t) const {
    Compute<T> x[width], y[width], grad[width];
    spots[0].read_as<T>(x);
    spots[1].read_as<T>(y);
    spots[2].read_as<T>(grad);
    with_unary(op, [&](auto constant) {
      for (int j = 0; j < width; j++)
        grad[j] = unary_backward_of<decltype(constant)::value>(x[j], y[j], grad[j]);
    });
    spots[3].write_as<T>(grad);
  }
};

template <typename T>
struct BinaryOp {
  Binary op;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[3], int64_t) const {
    Compute<T> a[width], b[width];
    spots[0].read_as<T>(a);
    spots[1].read_as<T>(b);
    with_binary(op, [&](auto constant) {
      for (int j = 0; j < width; j++) a[j] = binary_of<decltype(constant)::value>(a[j], b[j]);
    });
    spots[2].write_as<T>(a);
  }
};

// Of f32 with f16 or bf16, to f32.
template <typename A, typename B>
struct BinaryMixedOp {
  Binary op;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[3], int64_t) const {
    float a[width], b[width];
    spots[0].read_as<A>(a);
    spots[1].read_as<B>(b);
    with_binary(op, [&](auto constant) {
      for (int j = 0; j < width; j++) a[j] = binary_of<decltype(constant)::value>(a[j], b[j]);
    });
    spots[2].write_as<float>(a);
  }
};

template <typename T>
struct BinaryNumberOp {
  Binary op;
  bool reversed;
  Compute<T> number;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    Compute<T> x[width];
    spots[0].read_as<T>(x);
    with_binary(op, [&](auto constant) {
      for (int j = 0; j < width; j++) {
        Compute<T> a = reversed ? number : x[j], b = reversed ? x[j] : number;
        x[j] = binary_of<decltype(constant)::value>(a, b);
      }
    });
    spots[1].write_as<T>(x);
  }
};

template <typename T>
struct CompareOp {
  Compare op;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[3], int64_t) const {
    Compute<T> a[width], b[width];
    Bool out[width] = {};
    spots[0].read_as<T>(a);
    spots[1].read_as<T>(b);
    with_compare(op, [&](auto constant) {
      for (int j = 0; j < width; j++)
        out[j].bits = compare_of<decltype(constant)::value>(a[j], b[j]);
    });
    spots[2].write(out);
  }
};

template <typename T>
struct CompareNumberOp {
  Compare op;
  Compute<T> number;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    Compute<T> a[width];
    Bool out[width] = {};
    spots[0].read_as<T>(a);
    with_compare(op, [&](auto constant) {
      for (int j = 0; j < width; j++)
        out[j].bits = compare_of<decltype(constant)::value>(a[j], number);
    });
    spots[1].write(out);
  }
};

template <typename T>
struct WhereOp {
  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[4], int64_t) const {
    Bool condition[width];
    T a[width], b[width];
    spots[0].read(condition);
    spots[1].read(a);
    spots[2].read(b);
    for (int j = 0; j < width; j++) a[j] = condition[j].bits ? a[j] : b[j];
    spots[3].write(a);
  }
};

template <typename T>
struct ClampOp {
  Compute<T> low, high;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t) const {
    Compute<T> x[width];
    spots[0].read_as<T>(x);
    for (int j = 0; j < width; j++) x[j] = clamp_of(x[j], low, high);
    spots[1].write_as<T>(x);
  }
};

template <typename T>
struct AddProductOp {
  Compute<T> factor;
  bool quotient;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[4], int64_t) const {
    Compute<T> a[width], b[width], c[width];
    spots[0].read_as<T>(a);
    spots[1].read_as<T>(b);
    spots[2].read_as<T>(c);
    for (int j = 0; j < width; j++)
      a[j] = a[j] + (quotient ? factor * b[j] / c[j] : factor * b[j] * c[j]);
    spots[3].write_as<T>(a);
  }
};

template <typename T>
struct LerpOp {
  Compute<T> weight;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[3], int64_t) const {
    Compute<T> a[width], b[width];
    spots[0].read_as<T>(a);
    spots[1].read_as<T>(b);
    for (int j = 0; j < width; j++) a[j] = lerp_of(a[j], b[j], weight);
    spots[2].write_as<T>(a);
  }
};

// The words of a block in registers: an array that is indexed at run time would be in local memory.
FLOW_DEVICE uint32_t word_at(const Random4& block, uint64_t at) {
  uint32_t low = at % 2 == 0 ? block.word[0] : block.word[1];
  uint32_t high = at % 2 == 0 ? block.word[2] : block.word[3];
  return at < 2 ? low : high;
}

template <typename T>
struct DropoutOp {
  static constexpr int kNumbers = std::is_same_v<T, double> ? 2 : 4;  // per Philox block
  static constexpr int kBits = std::is_same_v<T, double> ? 53 : 24;   // of a number

  uint64_t below;  // a number is dropped if its bits are below this: p, scaled
  Compute<T> factor;
  Seed seed;
  uint64_t first;

  DropoutOp(double p, double factor_, Seed seed_, uint64_t first_)
      : below(static_cast<uint64_t>(std::ceil(std::ldexp(p > 0 ? std::fmin(p, 1.0) : 0.0, kBits)))),
        factor(static_cast<Compute<T>>(factor_)),
        seed(seed_),
        first(first_) {}

  /// The bits from which unit_float() or unit_double() makes number `at` of the block.
  FLOW_DEVICE static uint64_t bits_of_number(const Random4& block, uint64_t at) {
    if constexpr (kNumbers == 4) return word_at(block, at) >> 8;
    return join(word_at(block, at * 2), word_at(block, at * 2 + 1)) >> 11;
  }
  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[2], int64_t number) const {
    Compute<T> x[width];
    spots[0].read_as<T>(x);
    uint64_t start = first + static_cast<uint64_t>(number), own_seed = seed.number();
    if (width % kNumbers == 0 && start % kNumbers == 0) {  // of all threads or none
      FLOW_UNROLL
      for (int j = 0; j < width; j += kNumbers) {
        Random4 block = random_block(
            own_seed, start / kNumbers + static_cast<uint64_t>(j / kNumbers), RandomUse::dropout);
        FLOW_UNROLL
        for (int k = 0; k < kNumbers && j + k < width; k++)
          x[j + k] = bits_of_number(block, k) < below ? Compute<T>(0) : x[j + k] * factor;
      }
    } else {
      FLOW_UNROLL
      for (int j = 0; j < width; j++) {
        uint64_t i = start + static_cast<uint64_t>(j);
        Random4 block = random_block(own_seed, i / kNumbers, RandomUse::dropout);
        x[j] = bits_of_number(block, i % kNumbers) < below ? Compute<T>(0) : x[j] * factor;
      }
    }
    spots[1].write_as<T>(x);
  }
};

// The types of unary, binary and clamp.
bool has_arithmetic(DType dtype) { return dtype != DType::boolean; }
template <typename F>
int visit_arithmetic(DType dtype, F f) {
  return is_float(dtype) ? visit_float(dtype, f) : visit_number(dtype, f);
}

}  // namespace

int copy(Stream& stream, const View& from, const View& to) {
  if (from.dtype != to.dtype)
    return visit(from.dtype, [&](auto type) {
      using From = decltype(type);
      return launch_each<4>(stream, CastOp<From>{to.dtype}, {&from, &to});
    });
  switch (dtype_size(to.dtype)) {
    case 1:
      return copy_of_size<uint8_t>(stream, from, to);
    case 2:
      return copy_of_size<uint16_t>(stream, from, to);
    case 4:
      return copy_of_size<uint32_t>(stream, from, to);
    default:
      return copy_of_size<uint64_t>(stream, from, to);
  }
}

int fill(Stream& stream, const View& out, Number value) {
  return visit(out.dtype, [&](auto type) {
    using T = decltype(type);
    T number = number_as<T>(value);
    if constexpr (sizeof(T) == 1) {
      uint8_t bits;
      __builtin_memcpy(&bits, &number, 1);
      return fill_with<uint8_t>(stream, out, bits);
    } else if constexpr (sizeof(T) == 2) {
      uint16_t bits;
      __builtin_memcpy(&bits, &number, 2);
      return fill_with<uint16_t>(stream, out, bits);
    } else if constexpr (sizeof(T) == 4) {
      uint32_t bits;
      __builtin_memcpy(&bits, &number, 4);
      return fill_with<uint32_t>(stream, out, bits);
    } else {
      uint64_t bits;
      __builtin_memcpy(&bits, &number, 8);
      return fill_with<uint64_t>(stream, out, bits);
    }
  });
}

int unary(Stream& stream, Unary op, const View& in, const View& out) {
  if (!has_arithmetic(in.dtype)) return kUnsupported;
  return visit_arithmetic(in.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_each<kPack<T>>(stream, UnaryOp<T>{op}, {&in, &out});
  });
}

int unary_backward(Stream& stream, Unary op, const View& in, const View& y, const View& grad,
                   const View& out) {
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_each<kPack<T>>(stream, UnaryBackwardOp<T>{op}, {&in, &y, &grad, &out});
  });
}

namespace {

int binary_mixed(Stream& stream, Binary op, const View& a, const View& b, const View& out) {
  return visit_floats(a.dtype == DType::f32 ? b.dtype : a.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (is_small_float<T>) {
      if (a.dtype == DType::f32)
        return launch_each<kPack<float>>(stream, BinaryMixedOp<float, T>{op}, {&a, &b, &out});
      if (b.dtype == DType::f32)
        return launch_each<kPack<float>>(stream, BinaryMixedOp<T, float>{op}, {&a, &b, &out});
    }
    return kUnsupported;
  });
}

}  // namespace

int binary(Stream& stream, Binary op, const View& a, const View& b, const View& out) {
  if (a.dtype != b.dtype && out.dtype == DType::f32) return binary_mixed(stream, op, a, b, out);
  if (!has_arithmetic(a.dtype)) return kUnsupported;
  return visit_arithmetic(a.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_each<kPack<T>>(stream, BinaryOp<T>{op}, {&a, &b, &out});
  });
}

int binary_number(Stream& stream, Binary op, const View& a, Number b, bool reversed,
                  const View& out) {
  if (!has_arithmetic(a.dtype)) return kUnsupported;
  return visit_arithmetic(a.dtype, [&](auto type) {
    using T = decltype(type);
    auto number = number_as<Compute<T>>(b);
    return launch_each<kPack<T>>(stream, BinaryNumberOp<T>{op, reversed, number}, {&a, &out});
  });
}

int compare(Stream& stream, Compare op, const View& a, const View& b, const View& out) {
  if (!has_arithmetic(a.dtype)) return kUnsupported;
  return visit_arithmetic(a.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_each<kPack<T>>(stream, CompareOp<T>{op}, {&a, &b, &out});
  });
}

int compare_number(Stream& stream, Compare op, const View& a, Number b, const View& out) {
  if (!has_arithmetic(a.dtype)) return kUnsupported;
  return visit_arithmetic(a.dtype, [&](auto type) {
    using T = decltype(type);
    CompareNumberOp<T> f{op, convert<Compute<T>>(number_as<T>(b))};
    if constexpr (std::is_integral_v<T>) {
      IntegerComparison exact = integer_comparison<T>(op, b);
      if (exact.is_constant) return fill(stream, out, Number::of(int64_t{exact.value}));
      f = {exact.op, static_cast<T>(exact.number)};
    }
    return launch_each<kPack<T>>(stream, f, {&a, &out});
  });
}

int where(Stream& stream, const View& condition, const View& a, const View& b, const View& out) {
  switch (dtype_size(out.dtype)) {
    case 1:
      return launch_each<16>(stream, WhereOp<uint8_t>{}, {&condition, &a, &b, &out});
    case 2:
      return launch_each<8>(stream, WhereOp<uint16_t>{}, {&condition, &a, &b, &out});
    case 4:
      return launch_each<4>(stream, WhereOp<uint32_t>{}, {&condition, &a, &b, &out});
    default:
      return launch_each<2>(stream, WhereOp<uint64_t>{}, {&condition, &a, &b, &out});
  }
}

int clamp(Stream& stream, const View& in, Number low, Number high, const View& out) {
  if (!has_arithmetic(in.dtype)) return kUnsupported;
  return visit_arithmetic(in.dtype, [&](auto type) {
    using T = decltype(type);
    ClampOp<T> f{nearest_of<Compute<T>>(low), nearest_of<Compute<T>>(high)};
    return launch_each<kPack<T>>(stream, f, {&in, &out});
  });
}

int add_product(Stream& stream, const View& a, const View& b, const View& c, double factor,
                const View& out) {
  return visit_floats(a.dtype, [&](auto type) {
    using T = decltype(type);
    AddProductOp<T> f{static_cast<Compute<T>>(factor), false};
    return launch_each<kPack<T>>(stream, f, {&a, &b, &c, &out});
  });
}

int add_quotient(Stream& stream, const View& a, const View& b, const View& c, double factor,
                 const View& out) {
  return visit_floats(a.dtype, [&](auto type) {
    using T = decltype(type);
    AddProductOp<T> f{static_cast<Compute<T>>(factor), true};
    return launch_each<kPack<T>>(stream, f, {&a, &b, &c, &out});
  });
}

int lerp(Stream& stream, const View& a, const View& b, double weight, const View& out) {
  return visit_floats(a.dtype, [&](auto type) {
    using T = decltype(type);
    LerpOp<T> f{static_cast<Compute<T>>(weight)};
    return launch_each<kPack<T>>(stream, f, {&a, &b, &out});
  });
}

int dropout(Stream& stream, const View& in, double p, Seed seed, uint64_t first, const View& out) {
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    double factor = p < 1 ? 1 / (1 - p) : 0;
    DropoutOp<T> f(p, factor, seed, first);
    return launch_each<kPack<T>>(stream, f, {&in, &out});
  });
}

}  // namespace flow::cuda
