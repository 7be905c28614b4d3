// Gathering and adding by index.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

std::string text(DType dtype, const Shape& shape, Layout layout) {
  return std::string(dtype_name(dtype)) + " " + text_of(shape) + " " + name_of(layout);
}

// The CPU rounds small floats at each addition.
double roundings(Suite& s, DType dtype) {
  return dtype_size(dtype) == 2 && std::string(s.runner.table().name) == "cpu" ? 8 : 1;
}

Array index_array(Suite& s, const Shape& shape, int64_t limit, int64_t base) {
  Array index(s.integer(0, 1) ? DType::i64 : DType::i32, shape,
              s.integer(0, 1) ? Layout::dense : Layout::gaps);
  for (int64_t i = 0; i < index.count(); i++) index.set_integer(i, base + s.integer(0, limit - 1));
  return index;
}

void check_rows_of(Suite& s, DType dtype, const Shape& of_index, int64_t rows, int64_t width,
                   Layout layout) {
  Array table = s.filled(dtype, {rows, width}, layout);
  Array index = index_array(s, of_index, rows, 1);
  Shape shape = of_index;
  shape.push(width);
  Array out(dtype, shape, layout);
  std::vector<double> want;
  for (int64_t i = 0; i < out.count(); i++)
    want.push_back(table.at((index.integer_at(i / width) - 1) * width + i % width));
  s.check("gather_rows", &Kernels::gather_rows, text(dtype, shape, layout), {&table, &index, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.gather_rows(stream, v[0], v[1], 1, v[2]);
          },
          {{&out, want, {}, 0}});
  if (!is_float(dtype)) return;
  Array grad = s.filled(dtype, shape, layout);
  std::vector<double> sums = table.values();
  for (int64_t i = 0; i < grad.count(); i++)
    sums[static_cast<size_t>((index.integer_at(i / width) - 1) * width + i % width)] += grad.at(i);
  double scale = (2 + std::sqrt(static_cast<double>(index.count()))) * roundings(s, dtype);
  s.check("scatter_add_rows", &Kernels::scatter_add_rows, text(dtype, shape, layout),
          {&grad, &index, &table},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.scatter_add_rows(stream, v[0], v[1], 1, v[2]);
          },
          {{&table, sums, {}, 16, scale}});
}

void check_last(Suite& s, DType dtype, const Shape& lead, int64_t from, int64_t to, Layout layout) {
  Shape of_in = lead, of_out = lead;
  of_in.push(from);
  of_out.push(to);
  Array in = s.filled(dtype, of_in, layout), out(dtype, of_out, layout);
  Array index = index_array(s, of_out, from, 0);
  std::vector<double> want;
  for (int64_t i = 0; i < out.count(); i++)
    want.push_back(in.at(i / to * from + index.integer_at(i)));
  s.check("gather_last", &Kernels::gather_last, text(dtype, of_out, layout), {&in, &index, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.gather_last(stream, v[0], v[1], 0, v[2]);
          },
          {{&out, want, {}, 0}});
  if (!is_float(dtype)) return;
  Array grad = s.filled(dtype, of_out, layout);
  std::vector<double> sums = in.values();
  for (int64_t i = 0; i < grad.count(); i++)
    sums[static_cast<size_t>(i / to * from + index.integer_at(i))] += grad.at(i);
  s.check("scatter_add_last", &Kernels::scatter_add_last, text(dtype, of_out, layout),
          {&grad, &index, &in},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.scatter_add_last(stream, v[0], v[1], 0, v[2]);
          },
          {{&in, sums, {}, 16, (2 + std::sqrt(static_cast<double>(to))) * roundings(s, dtype)}});
}

}  // namespace

void check_indices(Suite& s) {
  for (DType dtype : kAllTypes)
    for (Layout layout : {Layout::dense, Layout::shifted, Layout::gaps, Layout::rows}) {
      check_rows_of(s, dtype, {5}, 7, 3, layout);
      check_rows_of(s, dtype, {2, 9}, 4, 64, layout);
      check_rows_of(s, dtype, {0}, 4, 8, layout);
      check_rows_of(s, dtype, {3}, 4, 0, layout);
      check_rows_of(s, dtype, {}, 3, 150, layout);
      check_last(s, dtype, {}, 9, 4, layout);
      check_last(s, dtype, {6}, 5, 1, layout);
      check_last(s, dtype, {2, 3}, 4, 33, layout);
      check_last(s, dtype, {0}, 5, 3, layout);
    }
  check_rows_of(s, DType::f32, {9000}, 700, 5, Layout::dense);
  // Many values for one row: its sum has several segments of the sorted index.
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (Layout layout : {Layout::dense, Layout::shifted, Layout::rows}) {
      check_rows_of(s, dtype, {300}, 2, 40, layout);
      check_rows_of(s, dtype, {32, 3}, 1, 264, layout);
    }
  check_rows_of(s, DType::bf16, {300}, 70000, 2, Layout::dense);
  check_last(s, DType::f16, {2}, 300, 5000, Layout::dense);
}

}  // namespace flow::suite
