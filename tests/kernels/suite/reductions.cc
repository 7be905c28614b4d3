// Sums, extremes and prefix sums: short, long, many and single outputs, over any dimensions.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

std::string text(DType dtype, const Shape& shape, int kept) {
  return std::string(" ") + dtype_name(dtype) + " " + text_of(shape) + " keeps " +
         std::to_string(kept);
}

struct Case {
  Shape shape;
  int kept;
};
const Case kCases[] = {{{5}, 0},          {{0}, 0},        {{3, 0}, 1},     {{0, 3}, 1},
                       {{4, 7}, 1},       {{3, 1000}, 1},  {{1, 70001}, 1}, {{65, 33}, 1},
                       {{2, 3, 5, 4}, 2}, {{200, 300}, 1}, {{7, 4, 64}, 1}, {{4}, 1},
                       {{600, 40}, 1},    {{2, 16384}, 1}};

double reduced(Reduce op, const std::vector<double>& x, double correction) {
  auto n = static_cast<double>(x.size());
  long double sum = 0, product = 1, squares = 0, mean = 0;
  double low = INFINITY, high = -INFINITY;
  bool any = false, all = true, nan = false;
  for (double each : x) {
    sum += each;
    product *= each;
    squares += static_cast<long double>(each) * each;
    low = std::min(low, each);
    high = std::max(high, each);
    any = any || each != 0;
    all = all && each != 0;
    nan = nan || std::isnan(each);
  }
  mean = sum / n;
  switch (op) {
    case Reduce::sum:
      return static_cast<double>(sum);
    case Reduce::mean:
      return static_cast<double>(mean);
    case Reduce::product:
      return static_cast<double>(product);
    case Reduce::max:
      return nan ? NAN : high;
    case Reduce::min:
      return nan ? NAN : low;
    case Reduce::norm:
      return static_cast<double>(std::sqrt(squares));
    case Reduce::var: {
      long double total = 0;
      for (double each : x) total += (each - mean) * (each - mean);
      return static_cast<double>(total / std::max(n - correction, 0.0));
    }
    case Reduce::any:
      return any;
    default:
      return all;
  }
}

// The positions of the elements of an output, in any order.
void check_reduce(Suite& s, Reduce op, DType dtype, DType to, const Case& c, Layout layout,
                  double nan_share = 0) {
  Shape kept;
  int64_t length = 1;
  for (int dim = 0; dim < c.shape.rank; dim++)
    if (dim < c.kept)
      kept.push(c.shape[dim]);
    else
      length *= c.shape[dim];
  if (length == 0 && (op == Reduce::max || op == Reduce::min)) return;
  bool product = op == Reduce::product;
  double slack = product ? 400 : op == Reduce::var ? 128 : 64;  // a variance is two sums
  Array in = s.filled(dtype, c.shape, layout, product ? 0.99 : -2, product ? 1.01 : 3);
  if (!is_float(dtype) && product && dtype != DType::boolean)
    for (int64_t i = 0; i < in.count(); i++) in.set_integer(i, i % 2000 == 7 ? 2 : 1);
  if (nan_share > 0 && in.count() > 0) in.set(s.integer(0, in.count() - 1), NAN);
  Array out(to, kept, layout == Layout::gaps ? Layout::gaps : Layout::dense);
  std::vector<double> want;
  double scale = 0;
  for (int64_t o = 0; o < out.count(); o++) {
    std::vector<double> x;
    for (int64_t i = 0; i < length; i++) x.push_back(in.at(o * length + i));
    want.push_back(reduced(op, x, 1));
    if (op == Reduce::sum) scale = std::sqrt(static_cast<double>(length)) * 3;
    if (op == Reduce::mean || op == Reduce::var) scale = 1;
  }
  s.check(
      "reduce", &Kernels::reduce,
      name_of(op) + text(dtype, c.shape, c.kept) + " " + name_of(layout) + " to " + dtype_name(to),
      {&in, &out},
      [&](const Kernels& k, Stream& stream, Views v) {
        return k.reduce(stream, op, v[0], 1, v[1]);
      },
      {{&out, want, {}, slack, scale}});
}

// Sums of 37 columns of rows that are 40 apart: the last pack of a row is incomplete.
void check_columns_of_rows(Suite& s, DType dtype) {
  Array in = s.filled(dtype, {130, 40}), out(dtype, {37});
  std::vector<double> want(37);
  for (int64_t i = 0; i < in.count(); i++)
    if (i % 40 < 37) want[static_cast<size_t>(i % 40)] += in.at(i);
  s.check("reduce", &Kernels::reduce, std::string("37 of 40 columns of ") + dtype_name(dtype),
          {&in, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            View columns = v[0];
            columns.shape = {37, 130};
            columns.strides[0] = 1;
            columns.strides[1] = 40;
            return k.reduce(stream, Reduce::sum, columns, 0, v[1]);
          },
          {{&out, want, {}, 64, 40}});
}

void check_extreme(Suite& s) {
  for (DType dtype : kNumbers)
    for (const Shape& shape : {Shape{1}, Shape{5}, Shape{0, 3}, Shape{6, 40}, Shape{2, 3, 1500},
                               Shape{1, 9000}, Shape{70, 3}})
      for (Layout layout : {Layout::dense, Layout::gaps, Layout::swapped}) {
        bool largest = s.integer(0, 1) == 1;
        Array in = s.filled(dtype, shape, layout);
        bool nan = is_float(dtype) && in.count() > 0 && s.integer(0, 3) == 0;
        if (nan) in.set(s.integer(0, in.count() - 1), NAN);
        Shape kept;
        for (int dim = 0; dim + 1 < shape.rank; dim++) kept.push(shape[dim]);
        Array value(dtype, kept), index(DType::i64, kept, layout);
        std::vector<double> values;
        std::vector<int64_t> indices;
        int64_t length = shape.last();
        for (int64_t o = 0; o < value.count(); o++) {
          int64_t best = 0;
          for (int64_t i = 1; i < length; i++) {
            double x = in.at(o * length + i), y = in.at(o * length + best);
            if (std::isnan(y)) break;
            if (std::isnan(x) || (largest ? x > y : x < y)) best = i;
          }
          values.push_back(in.at(o * length + best));
          indices.push_back(best + 1);
        }
        s.check("extreme", &Kernels::extreme, text(dtype, shape, shape.rank - 1),
                {&in, &value, &index},
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.extreme(stream, largest, v[0], 1, v[1], v[2]);
                },
                {{&value, values, {}, 0}, {&index, {}, indices, 0}});
      }
}

void check_cumsum(Suite& s) {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32})
    for (const Shape& shape :
         {Shape{1}, Shape{0}, Shape{5, 7}, Shape{2, 1025}, Shape{3, 2100}, Shape{2, 40000}})
      for (Layout layout : {Layout::dense, Layout::swapped}) {
        Array in = s.filled(dtype, shape, layout), out(dtype, shape, layout);
        std::vector<double> want;
        long double sum = 0;
        for (int64_t i = 0; i < in.count(); i++) {
          sum = in.at(i) + (i % shape.last() ? sum : 0);
          want.push_back(static_cast<double>(sum));
        }
        s.check(
            "cumsum", &Kernels::cumsum, text(dtype, shape, shape.rank - 1), {&in, &out},
            [](const Kernels& k, Stream& stream, Views v) { return k.cumsum(stream, v[0], v[1]); },
            {{&out, want, {}, 256, std::sqrt(static_cast<double>(shape.last())) * 2}});
      }
}

}  // namespace

void check_reductions(Suite& s) {
  for (DType dtype : kFloats) check_columns_of_rows(s, dtype);
  for (const Case& c : kCases) {
    for (DType dtype : kFloats)
      for (Reduce op : {Reduce::sum, Reduce::mean, Reduce::product, Reduce::max, Reduce::min,
                        Reduce::norm, Reduce::var}) {
        auto layout = std::vector{Layout::dense, Layout::swapped, Layout::gaps,
                                  Layout::shifted}[static_cast<size_t>(s.integer(0, 3))];
        bool extreme = op == Reduce::max || op == Reduce::min;
        bool wide = !extreme && s.integer(0, 3) == 0;
        check_reduce(s, op, dtype, wide ? DType::f64 : dtype, c, layout);
        if (s.integer(0, 3) == 0) check_reduce(s, op, dtype, dtype, c, layout, 1);
      }
    for (DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean})
      for (Reduce op : {Reduce::sum, Reduce::product, Reduce::max, Reduce::min}) {
        bool extreme = op == Reduce::max || op == Reduce::min;
        if (dtype == DType::boolean && extreme) continue;
        check_reduce(s, op, dtype, extreme ? dtype : DType::i64, c, Layout::dense);
        check_reduce(s, op, dtype, extreme ? dtype : DType::i64, c, Layout::swapped);
      }
    for (Reduce op : {Reduce::any, Reduce::all})
      check_reduce(s, op, DType::boolean, DType::boolean, c, Layout::dense);
  }
  check_extreme(s);
  check_cumsum(s);
}

}  // namespace flow::suite
