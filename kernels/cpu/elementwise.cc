// Operations with one result element per element of each operand.
#include "kernels/cpu/elementwise.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/shared/compare_number.hpp"

namespace flow::cpu {
namespace {

using Views1 = std::array<const View*, 1>;
using Views2 = std::array<const View*, 2>;
using Views3 = std::array<const View*, 3>;

bool is_cheap(Unary op) {
  switch (op) {
    case Unary::identity:
    case Unary::neg:
    case Unary::abs:
    case Unary::sign:
    case Unary::square:
    case Unary::relu:
    case Unary::sqrt:
    case Unary::rsqrt:
    case Unary::reciprocal:
    case Unary::floor:
    case Unary::ceil:
    case Unary::round:
      return true;
    default:
      return false;
  }
}

bool takes_integers(Unary op) {
  return op == Unary::identity || op == Unary::neg || op == Unary::abs || op == Unary::sign ||
         op == Unary::square || op == Unary::relu;
}

// Transposed copy: `from` and `to` are contiguous in different dimensions. Uses tiles; false if the
// views do not have this layout.
bool copy_across(const Stream& stream, const View& from, const View& to) {
  int rank = to.rank();
  if (rank < 2) return false;
  int row = -1, column = -1;  // of `from`: the dimensions in which `to` and `from` are contiguous
  for (int dim = 0; dim < rank; dim++) {
    if (to.shape[dim] < 8) continue;
    if (to.strides[dim] == 1) row = dim;
    if (from.strides[dim] == 1) column = dim;
  }
  if (row < 0 || column < 0 || row == column || from.strides[row] == 0) return false;
  View left = from, right = to;
  left.shape[row] = right.shape[row] = 1;
  left.shape[column] = right.shape[column] = 1;
  int64_t outer = left.count(), rows = to.shape[row], columns = to.shape[column];
  constexpr int64_t kStrip = 64;
  int64_t strips = (columns + kStrip - 1) / kStrip;
  auto size = static_cast<int64_t>(dtype_size(to.dtype));
  auto tiles = loops().transpose[size_index(to.dtype)];
  int64_t grain = std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, rows * kStrip));
  parallel_for(stream.threads, outer * strips, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      int64_t at = i % strips * kStrip;
      tiles(row_at(left, i / strips, 0) + at * size, from.strides[row],
            row_at(right, i / strips, 0) + at * to.strides[column] * size, to.strides[column], rows,
            std::min(kStrip, columns - at));
    }
  });
  return true;
}

int fill(Stream& stream, const View& out, Number value) {
  alignas(8) char one[8] = {};
  visit(out.dtype, [&](auto type) {
    using T = decltype(type);
    T made = value.is_integer ? convert<T>(value.integer) : convert<T>(value.real);
    std::memcpy(one, &made, sizeof made);
  });
  View from{out.dtype, out.shape, {}, one};
  return copy_elements(stream, from, out);
}

int unary(Stream& stream, Unary op, const View& in, const View& out) {
  if (!is_float(in.dtype) && (!takes_integers(op) || !is_integer(in.dtype))) return kUnsupported;
  auto run = loops().unary[static_cast<int>(op)][kind_of(in.dtype)];
  return for_elements(
      stream, Views1{&in}, out, is_cheap(op) ? kGrainCheap : kGrainCostly,
      [=](const void* const* from, void* to, int64_t count, int64_t) { run(from[0], to, count); });
}

int unary_backward(Stream& stream, Unary op, const View& in, const View& y, const View& grad,
                   const View& out) {
  if (!is_float(in.dtype)) return kUnsupported;
  auto run = loops().unary_backward[static_cast<int>(op)][kind_of(in.dtype)];
  return for_elements(stream, Views3{&in, &y, &grad}, out,
                      is_cheap(op) ? kGrainCheap : kGrainCostly,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], from[2], to, count);
                      });
}

bool takes(Binary op, DType dtype) {
  if (is_float(dtype)) return true;
  return is_integer(dtype) && op != Binary::div;
}

int binary(Stream& stream, Binary op, const View& a, const View& b, const View& out) {
  if (!takes(op, a.dtype)) return kUnsupported;
  auto run = loops().binary[static_cast<int>(op)][kind_of(a.dtype)];
  bool costly = op == Binary::pow || op == Binary::mod || op == Binary::floor_div;
  return for_elements(stream, Views2{&a, &b}, out, costly ? kGrainCostly : kGrainCheap,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], to, count);
                      });
}

int binary_number(Stream& stream, Binary op, const View& a, Number b, bool reversed,
                  const View& out) {
  if (!takes(op, a.dtype)) return kUnsupported;
  if (op == Binary::pow && !reversed && b.real == 2) return unary(stream, Unary::square, a, out);
  Scalar number(b, kind_of(a.dtype), a.shape);
  return reversed ? binary(stream, op, number.view, a, out)
                  : binary(stream, op, a, number.view, out);
}

int compare(Stream& stream, Compare op, const View& a, const View& b, const View& out) {
  if (a.dtype == DType::boolean) return kUnsupported;
  auto run = loops().compare[static_cast<int>(op)][kind_of(a.dtype)];
  return for_elements(stream, Views2{&a, &b}, out, kGrainCheap,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], static_cast<uint8_t*>(to), count);
                      });
}

int compare_number(Stream& stream, Compare op, const View& a, Number b, const View& out) {
  if (a.dtype == DType::boolean) return kUnsupported;
  if (is_integer(a.dtype)) {
    IntegerComparison with = visit_number(a.dtype, [&](auto type) -> IntegerComparison {
      using T = decltype(type);
      if constexpr (std::is_integral_v<T>) return integer_comparison<T>(op, b);
      return {};
    });
    if (with.is_constant) return fill(stream, out, Number::of(int64_t{with.value}));
    op = with.op;
    b = Number::of(with.number);
  }
  if (is_small(a.dtype)) b = rounded_to(a.dtype, b);
  Scalar number(b, kind_of(a.dtype), a.shape);
  auto run = loops().compare[static_cast<int>(op)][kind_of(a.dtype)];
  return for_elements(stream, Views2{&a, &number.view}, out, kGrainCheap,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], static_cast<uint8_t*>(to), count);
                      });
}

int where(Stream& stream, const View& condition, const View& a, const View& b, const View& out) {
  auto run = loops().where[size_index(out.dtype)];
  return for_elements(
      stream, Views3{&condition, &a, &b}, out, kGrainCheap,
      [=](const void* const* from, void* to, int64_t count, int64_t) {
        run(static_cast<const uint8_t*>(from[0]), from[1], from[2], to, count);
      },
      As::bytes);
}

int clamp(Stream& stream, const View& in, Number low, Number high, const View& out) {
  if (in.dtype == DType::boolean) return kUnsupported;
  ArithmeticType kind = kind_of(in.dtype);
  Scalar least(low, kind, in.shape, true), most(high, kind, in.shape, true);
  auto run = loops().clamp[kind];
  return for_elements(stream, Views1{&in}, out, kGrainCheap,
                      [&, run](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], least.storage, most.storage, to, count);
                      });
}

template <typename Run>
int of_three(Stream& stream, Run run, const View& a, const View& b, const View& c, double factor,
             const View& out) {
  return for_elements(stream, Views3{&a, &b, &c}, out, kGrainCheap,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], from[2], factor, to, count);
                      });
}

int add_product(Stream& stream, const View& a, const View& b, const View& c, double factor,
                const View& out) {
  if (!is_float(a.dtype)) return kUnsupported;
  return of_three(stream, loops().add_product[kind_of(a.dtype)], a, b, c, factor, out);
}

int add_quotient(Stream& stream, const View& a, const View& b, const View& c, double factor,
                 const View& out) {
  if (!is_float(a.dtype)) return kUnsupported;
  return of_three(stream, loops().add_quotient[kind_of(a.dtype)], a, b, c, factor, out);
}

int lerp(Stream& stream, const View& a, const View& b, double weight, const View& out) {
  if (!is_float(a.dtype)) return kUnsupported;
  auto run = loops().lerp[kind_of(a.dtype)];
  return for_elements(stream, Views2{&a, &b}, out, kGrainCheap,
                      [=](const void* const* from, void* to, int64_t count, int64_t) {
                        run(from[0], from[1], weight, to, count);
                      });
}

int dropout(Stream& stream, const View& in, double p, Seed seed, uint64_t first, const View& out) {
  if (!is_float(in.dtype)) return kUnsupported;
  auto run = loops().dropout[kind_of(in.dtype)];
  double scale = p < 1 ? 1 / (1 - p) : 0;
  return for_elements(stream, Views1{&in}, out, kGrainCostly,
                      [=](const void* const* from, void* to, int64_t count, int64_t position) {
                        run(from[0], p, scale, seed.value, first + static_cast<uint64_t>(position),
                            to, count);
                      });
}

}  // namespace

int copy_elements(Stream& stream, const View& from, const View& to) {
  if (from.dtype == to.dtype) {
    if (copy_across(stream, from, to)) return kDone;
    auto size = dtype_size(to.dtype);
    return for_elements(
        stream, Views1{&from}, to, kGrainCheap,
        [=](const void* const* in, void* out, int64_t count, int64_t) {
          std::memcpy(out, in[0], static_cast<size_t>(count) * size);
        },
        As::bytes);
  }
  int target = to.dtype == DType::boolean ? kKinds : kind_of(to.dtype);
  auto run = loops().convert[kind_of(from.dtype)][target];
  return for_elements(
      stream, Views1{&from}, to, kGrainCheap,
      [=](const void* const* in, void* out, int64_t count, int64_t) { run(in[0], out, count); });
}

void add_elementwise_rows(Kernels& table) {
  table.copy = copy_elements;
  table.fill = fill;
  table.unary = unary;
  table.unary_backward = unary_backward;
  table.binary = binary;
  table.binary_number = binary_number;
  table.compare = compare;
  table.compare_number = compare_number;
  table.where = where;
  table.clamp = clamp;
  table.add_product = add_product;
  table.add_quotient = add_quotient;
  table.lerp = lerp;
  table.dropout = dropout;
}

}  // namespace flow::cpu
