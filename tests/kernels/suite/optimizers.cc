// One step of each optimizer, with and without a rounded copy.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

void check_adamw(Suite& s, DType of_weights, DType of_grad, int64_t count, Layout layout) {
  Array weights = s.filled(of_weights, {count}, layout), grad = s.filled(of_grad, {count}, layout);
  Array mean = s.filled(of_weights, {count}), square = s.filled(of_weights, {count}, layout, 0, 2);
  Array copy(s.integer(0, 1) ? DType::bf16 : DType::f16, {count});
  bool has_copy = of_weights == DType::f32 && s.integer(0, 1) == 1;
  AdamW o{0.01, 0.9, 0.99, 1e-8, 0.1, s.integer(1, 20)};
  auto step = static_cast<double>(o.step);
  std::vector<double> w, m, v;
  for (int64_t i = 0; i < count; i++) {
    double g = grad.at(i) * 0.5;
    m.push_back(o.beta1 * mean.at(i) + (1 - o.beta1) * g);
    v.push_back(o.beta2 * square.at(i) + (1 - o.beta2) * g * g);
    double slope = m.back() / (1 - std::pow(o.beta1, step)) /
                   (std::sqrt(v.back() / (1 - std::pow(o.beta2, step))) + o.eps);
    w.push_back(weights.at(i) * (1 - o.lr * o.weight_decay) - o.lr * slope);
  }
  std::vector<Expect> expects{{&weights, w, {}, 16, 2}, {&mean, m, {}, 8, 2}, {&square, v, {}, 8}};
  if (has_copy) expects.push_back({&copy, w, {}, 16, 2});
  s.check(
      "adamw", &Kernels::adamw,
      std::string(dtype_name(of_weights)) + " " + dtype_name(of_grad) + " " + std::to_string(count),
      {&weights, &grad, &mean, &square, &copy},
      [&](const Kernels& k, Stream& stream, Views x) {
        return k.adamw(stream, o, x[0], x[1], 0.5, x[2], x[3], has_copy ? &x[4] : nullptr);
      },
      expects);
}

void check_sgd(Suite& s, DType of_weights, DType of_grad, int64_t count, Layout layout) {
  Array weights = s.filled(of_weights, {count}, layout), grad = s.filled(of_grad, {count}, layout);
  Array momentum = s.filled(of_weights, {count}), copy(DType::bf16, {count});
  bool has_copy = of_weights == DType::f32 && s.integer(0, 1) == 1;
  bool moves = s.integer(0, 2) > 0;
  Sgd o{0.1,  moves ? 0.9 : 0,          moves ? 0.2 : 0,
        0.01, moves && s.integer(0, 1), s.integer(0, 2) == 0};
  std::vector<double> w, m;
  for (int64_t i = 0; i < count; i++) {
    double g = grad.at(i) * 2 + o.weight_decay * weights.at(i), step = g;
    if (moves) {
      m.push_back(o.first ? g : o.momentum * momentum.at(i) + (1 - o.dampening) * g);
      step = o.nesterov ? g + o.momentum * m.back() : m.back();
    }
    w.push_back(weights.at(i) - o.lr * step);
  }
  std::vector<Expect> expects{{&weights, w, {}, 16, 4}};
  if (moves) expects.push_back({&momentum, m, {}, 16, 4});
  if (has_copy) expects.push_back({&copy, w, {}, 16, 4});
  s.check(
      "sgd", &Kernels::sgd,
      std::string(dtype_name(of_weights)) + " " + dtype_name(of_grad) + " " + std::to_string(count),
      {&weights, &grad, &momentum, &copy},
      [&](const Kernels& k, Stream& stream, Views x) {
        return k.sgd(stream, o, x[0], x[1], 2, moves ? &x[2] : nullptr, has_copy ? &x[3] : nullptr);
      },
      expects);
}

void check_squares(Suite& s, DType dtype, const Shape& shape, Layout layout) {
  // The table requires dense operands; the GPU takes any.
  bool strided = layout == Layout::gaps || layout == Layout::swapped;
  if (strided && std::string(s.runner.table().name) == "cpu") return;
  Array in = s.filled(dtype, shape, layout), out(DType::f64, {});
  out.set(0, 3);
  long double sum = 3;
  for (double x : in.values()) sum += static_cast<long double>(x) * x;
  // Only f64 squares are required to be exact to the last bit.
  double slack = dtype == DType::f64 ? 64 : 2e10;
  s.check("add_sum_of_squares", &Kernels::add_sum_of_squares,
          std::string(dtype_name(dtype)) + " " + text_of(shape) + " " + name_of(layout),
          {&in, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.add_sum_of_squares(stream, v[0], v[1]);
          },
          {{&out, {static_cast<double>(sum)}, {}, slack}});
}

// Several tensors of different sizes and types in one call, more than a launch takes.
void check_adamw_all(Suite& s, int tensors, bool has_factor) {
  struct Operands {
    Array weights, grad, mean, square, copy;
    bool has_copy;
    int64_t step;
  };
  std::vector<Operands> all;
  AdamW o{0.01, 0.9, 0.99, 1e-8, 0.1, 1};
  Array factor(DType::f64, {});
  factor.set(0, 0.25);
  std::vector<std::vector<double>> w, m, v;
  for (int at = 0; at < tensors; at++) {
    int64_t count = at == 0 ? 20000 : s.integer(0, 40);
    DType wide = s.integer(0, 4) == 0 ? DType::f64 : DType::f32;
    DType of_grad = wide == DType::f64 ? wide
                                       : std::vector{DType::f32, DType::bf16,
                                                     DType::f16}[static_cast<size_t>(at % 3)];
    Layout layout = s.integer(0, 1) ? Layout::dense : Layout::shifted;
    all.push_back({s.filled(wide, {count}, layout), s.filled(of_grad, {count}),
                   s.filled(wide, {count}), s.filled(wide, {count}, Layout::dense, 0, 2),
                   Array(at % 2 ? DType::bf16 : DType::f16, {count}),
                   wide == DType::f32 && s.integer(0, 1) == 1, s.integer(1, 20)});
  }
  std::vector<Array*> operands{&factor};
  std::vector<Expect> expects;
  for (Operands& each : all) {
    w.emplace_back(), m.emplace_back(), v.emplace_back();
    auto step = static_cast<double>(each.step);
    for (int64_t i = 0; i < each.weights.count(); i++) {
      double g = each.grad.at(i) * 0.5 * (has_factor ? 0.25 : 1);
      m.back().push_back(o.beta1 * each.mean.at(i) + (1 - o.beta1) * g);
      v.back().push_back(o.beta2 * each.square.at(i) + (1 - o.beta2) * g * g);
      double slope = m.back().back() / (1 - std::pow(o.beta1, step)) /
                     (std::sqrt(v.back().back() / (1 - std::pow(o.beta2, step))) + o.eps);
      w.back().push_back(each.weights.at(i) * (1 - o.lr * o.weight_decay) - o.lr * slope);
    }
    for (Array* array : {&each.weights, &each.grad, &each.mean, &each.square, &each.copy})
      operands.push_back(array);
    expects.push_back({&each.weights, w.back(), {}, 16, 2});
    expects.push_back({&each.mean, m.back(), {}, 8, 2});
    expects.push_back({&each.square, v.back(), {}, 8});
    if (each.has_copy) expects.push_back({&each.copy, w.back(), {}, 16, 2});
  }
  s.check(
      "adamw_all", &Kernels::adamw_all, std::to_string(tensors), operands,
      [&](const Kernels& k, Stream& stream, Views x) {
        std::vector<AdamWTensor> list;
        for (size_t i = 0; i < all.size(); i++) {
          const View* at = x + 1 + 5 * i;
          list.push_back(
              {at[0], at[1], at[2], at[3], all[i].has_copy ? at[4] : View{}, all[i].step});
        }
        return k.adamw_all(stream, o, list.data(), static_cast<int64_t>(list.size()), 0.5,
                           has_factor ? x : nullptr);
      },
      expects);
}

// The norm of many tensors, then their multiplication by a factor.
void check_norms_of_all(Suite& s, int tensors, double limit) {
  std::vector<Array> all;
  long double sum = 0;
  for (int at = 0; at < tensors; at++) {
    all.push_back(s.filled(kFloats[at % 4], {at == 1 ? 40000 : s.integer(0, 50)},
                           s.integer(0, 1) ? Layout::dense : Layout::shifted));
    for (double x : all.back().values()) sum += static_cast<long double>(x) * x;
  }
  Array out(DType::f64, {2});
  std::vector<Array*> operands{&out};
  for (Array& each : all) operands.push_back(&each);
  double norm = static_cast<double>(std::sqrt(sum)), factor = limit / (norm + 1e-6);
  auto views = [&](Views x) { return std::vector<View>(x + 1, x + 1 + all.size()); };
  s.check("norm_of_all", &Kernels::norm_of_all, std::to_string(tensors), operands,
          [&](const Kernels& k, Stream& stream, Views x) {
            return k.norm_of_all(stream, views(x).data(), tensors, limit, x[0]);
          },
          {{&out, {norm, factor < 1 ? factor : 1}, {}, 2e10}});
  double number = limit < 100 ? 0.5 : 1;
  Array of_scale(DType::f64, {});
  of_scale.set(0, number);
  operands[0] = &of_scale;
  std::vector<Expect> expects;
  for (Array& each : all) {
    std::vector<double> want = each.values();
    for (double& x : want) x *= number;
    expects.push_back({&each, want});
  }
  s.check(
      "scale_all", &Kernels::scale_all, std::to_string(tensors), operands,
      [&](const Kernels& k, Stream& stream, Views x) {
        return k.scale_all(stream, views(x).data(), tensors, x[0]);
      },
      expects);
}

}  // namespace

void check_optimizers(Suite& s) {
  for (int tensors : {1, 3, 130})
    for (bool has_factor : {false, true}) check_adamw_all(s, tensors, has_factor);
  for (int tensors : {1, 5, 200})
    for (double limit : {1.0, 1e9}) check_norms_of_all(s, tensors, limit);
  for (int64_t count : {0, 1, 7, 64, 1001, 5000})
    for (Layout layout : {Layout::dense, Layout::shifted}) {
      for (DType grad : {DType::f32, DType::bf16, DType::f16}) {
        check_adamw(s, DType::f32, grad, count, layout);
        check_sgd(s, DType::f32, grad, count, layout);
      }
      check_adamw(s, DType::f64, DType::f64, count, layout);
      check_sgd(s, DType::f64, DType::f64, count, layout);
    }
  for (DType dtype : kFloats)
    for (Layout layout : {Layout::dense, Layout::shifted, Layout::gaps, Layout::swapped})
      for (const Shape& shape : {Shape{0}, Shape{}, Shape{13}, Shape{100, 41}, Shape{3, 8192}})
        check_squares(s, dtype, shape, layout);
}

}  // namespace flow::suite
