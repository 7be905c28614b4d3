// Attention and its gradients against their definitions, and rotary positions.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

struct Case {
  int64_t b, h, g, t, s, d;
  double scale = 1;  // of the scores, times 1 / sqrt(d)
};

// Sets one column of a matrix to `lift`, and rounds the others to eighths.
void lift_rows(Array& array, int64_t width, double lift) {
  for (int64_t i = 0; i < array.count(); i++)
    array.set(i, i % width == 0 ? lift : std::rint(array.at(i) * 8) / 8);
}

// Queries and keys are in [-high, high). With `lift` all scores share a large common part and are
// still exact in f32: only the remainder decides.
void check_attention_case(Suite& s, DType dtype, const Case& c, bool causal, Layout layout,
                          double high = 2, double lift = 0) {
  Attention options{causal, c.scale / std::sqrt(static_cast<double>(c.d))};
  Shape of_q{c.b, c.h, c.t, c.d}, of_k{c.b, c.g, c.s, c.d};
  Array q = s.filled(dtype, of_q, layout, -high, high);
  Array k = s.filled(dtype, of_k, layout, -high, high);
  if (lift > 0) lift_rows(q, c.d, lift), lift_rows(k, c.d, lift);
  Array v = s.filled(dtype, of_k, layout), out(dtype, of_q, layout),
        lse(DType::f64, {c.b, c.h, c.t});
  Array grad = s.filled(dtype, of_q, layout);
  Array dq(dtype, of_q, layout), dk(dtype, of_k, layout), dv(dtype, of_k, layout);
  auto cells = static_cast<size_t>(out.count()), of_keys = static_cast<size_t>(k.count());
  std::vector<double> outs(cells), dqs(cells), dks(of_keys), dvs(of_keys), lses;
  for (int64_t b = 0; b < c.b; b++)
    for (int64_t h = 0; h < c.h; h++)
      for (int64_t i = 0; i < c.t; i++) {
        int64_t row = ((b * c.h + h) * c.t + i) * c.d;
        int64_t keys = (b * c.g + h / (c.h / c.g)) * c.s * c.d;
        int64_t seen = causal ? std::clamp<int64_t>(i + c.s - c.t + 1, 0, c.s) : c.s;
        std::vector<double> score(static_cast<size_t>(seen)), slope(score);
        double largest = -INFINITY, total = 0, delta = 0;
        for (int64_t j = 0; j < seen; j++) {
          double sum = 0;
          for (int64_t d = 0; d < c.d; d++) sum += q.at(row + d) * k.at(keys + j * c.d + d);
          score[static_cast<size_t>(j)] = sum * options.scale;
          largest = std::max(largest, sum * options.scale);
        }
        for (double& each : score) total += each = std::exp(each - largest);
        lses.push_back(seen > 0 ? largest + std::log(total) : -INFINITY);
        for (int64_t j = 0; j < seen; j++) {
          double share = score[static_cast<size_t>(j)] /= total, sum = 0;
          for (int64_t d = 0; d < c.d; d++) {
            outs[static_cast<size_t>(row + d)] += share * v.at(keys + j * c.d + d);
            dvs[static_cast<size_t>(keys + j * c.d + d)] += share * grad.at(row + d);
            sum += grad.at(row + d) * v.at(keys + j * c.d + d);
          }
          slope[static_cast<size_t>(j)] = sum;
          delta += share * sum;
        }
        for (int64_t j = 0; j < seen; j++) {
          auto at = static_cast<size_t>(j);
          double each = score[at] * (slope[at] - delta) * options.scale;
          for (int64_t d = 0; d < c.d; d++) {
            dqs[static_cast<size_t>(row + d)] += each * k.at(keys + j * c.d + d);
            dks[static_cast<size_t>(keys + j * c.d + d)] += each * q.at(row + d);
          }
        }
      }
  // The weights are rounded to a half type for their product with v, which is below 2; this adds as
  // much error as the rounding of the result.
  bool is_small = dtype == DType::f16 || dtype == DType::bf16;
  std::string what = std::string(dtype_name(dtype)) + " " + text_of(of_q) + " " + text_of(of_k) +
                     (causal ? " causal " : " ") + name_of(layout);
  s.check("attention", &Kernels::attention, what, {&q, &k, &v, &out, &lse},
          [&](const Kernels& table, Stream& stream, Views x) {
            return table.attention(stream, options, x[0], x[1], x[2], x[3], x[4]);
          },
          {{&out, outs, {}, 64, is_small ? 4.0 : 2.0}, {&lse, lses, {}, of_sums(dtype, 64), 4}});
  for (size_t i = 0; i < lses.size(); i++) lse.set(static_cast<int64_t>(i), lses[i]);
  for (size_t i = 0; i < cells; i++) out.set(static_cast<int64_t>(i), outs[i]);
  // `out` is rounded, and so are the weights and gradients that are multiplied as a half type.
  double scale = (is_small ? 8 : 4) * std::max(high, lift) / 2;
  double many = 1 + std::sqrt(static_cast<double>(c.t) * static_cast<double>(c.h / c.g)) / 4;
  s.check("attention_backward", &Kernels::attention_backward, what,
          {&q, &k, &v, &out, &lse, &grad, &dq, &dk, &dv},
          [&](const Kernels& table, Stream& stream, Views x) {
            return table.attention_backward(stream, options, x[0], x[1], x[2], x[3], x[4], x[5],
                                            x[6], x[7], x[8]);
          },
          {{&dq, dqs, {}, 128, scale},
           {&dk, dks, {}, 128, scale * many},
           {&dv, dvs, {}, 128, (is_small ? 8 : 4) * many}});
}

void check_rotary(Suite& s, DType dtype, const Shape& shape, Layout layout) {
  Array x = s.filled(dtype, shape, layout), out(dtype, shape, layout);
  bool inverse = s.integer(0, 1) == 1;
  int64_t first = s.integer(0, 100), d = shape[3], half = d / 2;
  std::vector<double> want;
  double largest_angle = 0;
  for (int64_t i = 0; i < x.count(); i++) {
    int64_t row = i / d % shape[2], at = i % d, pair = at % half;
    double turn = std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(d));
    double angle = static_cast<double>(first + row) * turn * (inverse ? -1 : 1);
    largest_angle = std::max(largest_angle, std::fabs(angle));
    double mine = x.at(i), other = x.at(at < half ? i + half : i - half);
    want.push_back(mine * std::cos(angle) + (at < half ? -other : other) * std::sin(angle));
  }
  // An angle is a double, for all types, and differs by 4 of its roundings at most: a device's pow
  // is within 2 of them, the host's and the product within 1 each. The result follows by |mine| +
  // |other| < 4 times that, which 16 roundings of a scale of |angle| are.
  double of_angle = dtype == DType::f64 ? largest_angle : 0;
  s.check("rotary", &Kernels::rotary, std::string(dtype_name(dtype)) + " " + text_of(shape),
          {&x, &out},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.rotary(stream, v[0], first, 10000, inverse, v[1]);
          },
          {{&out, want, {}, 16, 3 + of_angle}});
}

// Operands for tensor cores, and operands that they do not take: rows that begin at any address.
void check_small_floats(Suite& s) {
  const Case cases[] = {
      {1, 2, 1, 1, 70, 40},       {1, 1, 1, 65, 130, 8},      {2, 2, 2, 3, 3, 16},
      {1, 1, 1, 80, 9, 80},       {1, 1, 1, 66, 66, 128},     {1, 4, 2, 17, 33, 64},
      {1, 1, 1, 100, 64, 64},     {1, 3, 1, 150, 170, 64},    {1, 2, 1, 140, 100, 128},
      {1, 2, 1, 70, 80, 136},     {1, 1, 1, 80, 66, 192},     {2, 2, 1, 3, 70, 200},
      {1, 4, 2, 17, 33, 256},     {1, 1, 1, 66, 129, 256},    {1, 1, 1, 80, 9, 256},
      {1, 1, 1, 40, 70, 64, -1},  {1, 1, 1, 40, 70, 256, -1}, {1, 1, 1, 20, 30, 64, 0},
      {1, 2, 1, 34, 200, 72, 0.3}};
  for (DType dtype : {DType::f16, DType::bf16})
    for (bool causal : {false, true}) {
      for (const Case& c : cases) {
        check_attention_case(s, dtype, c, causal, Layout::heads);
        if (c.t < 20) check_attention_case(s, dtype, c, causal, Layout::dense);
      }
      for (Layout layout : {Layout::shifted, Layout::rows})
        check_attention_case(s, dtype, {1, 2, 1, 7, 40, 64}, causal, layout);
      // Scores of some hundreds, whose exp() exceeds a float.
      for (double high : {8.0, 32.0})
        check_attention_case(s, dtype, {1, 1, 1, 50, 70, 64}, causal, Layout::dense, high);
    }
}

// Few queries, whose keys several blocks share: one split and many, odd lengths and widths, heads
// that share keys, queries that see none.
void check_few_queries(Suite& s) {
  const Case cases[] = {{1, 2, 2, 1, 1, 64},   {1, 4, 2, 1, 37, 64},  {2, 4, 1, 1, 77, 128},
                        {1, 8, 2, 3, 50, 80},  {1, 3, 1, 4, 29, 256}, {1, 2, 2, 1, 23, 7},
                        {1, 2, 1, 2, 65, 33},  {2, 1, 1, 2, 9, 1},    {1, 2, 1, 4, 2, 16},
                        {3, 5, 5, 1, 12, 200}, {1, 1, 1, 2, 0, 8},    {2, 6, 2, 1, 130, 40}};
  for (DType dtype : kFloats)
    for (const Case& c : cases)
      for (Layout layout : {Layout::heads, Layout::shifted, Layout::rows})
        check_attention_case(s, dtype, c, s.integer(0, 1) == 1, layout);
  for (DType dtype : {DType::f16, DType::bf16})
    check_attention_case(s, dtype, {1, 2, 1, 1, 70, 64}, true, Layout::dense, 32);
  check_attention_case(s, DType::f32, {1, 2, 1, 2, 40, 16}, true, Layout::dense, 2, 256);
}

}  // namespace

// Numbers of rows that cuDNN takes.
void check_whole_attention(Suite& s) {
  const Case cases[] = {{1, 4, 2, 64, 128, 24}, {2, 2, 2, 64, 64, 16}, {1, 2, 1, 128, 64, 8}};
  for (DType dtype : {DType::f16, DType::bf16})
    for (const Case& c : cases)
      for (bool causal : {false, true})
        if (!causal || c.t <= c.s)
          check_attention_case(s, dtype, c, causal, causal ? Layout::heads : Layout::dense);
}

void check_attention(Suite& s) {
  const Case cases[] = {{1, 1, 1, 1, 1, 2},     {2, 3, 3, 5, 5, 8},    {1, 4, 2, 33, 33, 16},
                        {1, 2, 1, 7, 40, 64},   {1, 2, 2, 70, 70, 32}, {1, 1, 1, 9, 4, 8},
                        {1, 2, 1, 20, 3, 128},  {2, 2, 1, 35, 66, 72}, {0, 2, 1, 4, 4, 8},
                        {1, 1, 1, 130, 130, 64}};
  for (DType dtype : kFloats) {
    for (const Case& c : cases)
      for (bool causal : {false, true})
        check_attention_case(s, dtype, c, causal, s.integer(0, 1) ? Layout::dense : Layout::rows);
    for (const Shape& shape :
         {Shape{1, 1, 1, 2}, Shape{2, 3, 5, 8}, Shape{1, 2, 33, 64}, Shape{1, 0, 3, 4}})
      check_rotary(s, dtype, shape, s.integer(0, 1) ? Layout::dense : Layout::rows);
  }
  check_attention_case(s, DType::f32, {1, 1, 1, 18, 18, 200}, true, Layout::dense);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (bool causal : {false, true}) {
      bool is_small = dtype == DType::f16 || dtype == DType::bf16;
      check_attention_case(s, dtype, {1, 2, 1, 40, 40, 16}, causal, Layout::dense, 2,
                           is_small ? 32 : 256);
    }
  check_small_floats(s);
  check_few_queries(s);
  check_whole_attention(s);
}

}  // namespace flow::suite
