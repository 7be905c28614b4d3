// Operations of neural networks: each is one function of the table forward and one backward.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

using kernels::is_float;

Tensor like(const Tensor& x) { return Tensor::empty(x.dtype(), x.shape(), x.device()); }

// The type of row sums and their roots: f32, or f64 for f64.
DType statistics_type(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

Tensor with_dense_rows(const Tensor& x) {
  return kernels::has_dense_rows(x.view()) ? x : contiguous(x);
}

Tensor floats(const Tensor& x) { return is_float(x.dtype()) ? x : cast(x, DType::f32); }

const View* view_or_null(const Tensor& x, View& place) {
  if (!x) return nullptr;
  place = x.view();
  return &place;
}

void check_scale(const char* name, const Tensor& x, const Tensor& scale) {
  if (!scale || (scale.rank() == 1 && scale.size(0) == x.shape().last())) return;
  throw TensorError(fmt::format("{} of {} takes a weight and a bias of {} elements, not {}", name,
                                text_of(x), x.shape().last(), text_of(scale)));
}

void check_index_type(const char* name, const Tensor& index) {
  if (index.dtype() != DType::i64 && index.dtype() != DType::i32)
    throw TensorError(fmt::format("{} takes indices of i64 or i32, not {}", name, text_of(index)));
}

// u8 is a valid index type, but the table's functions read i64 and i32.
Tensor as_index(const char* name, const Tensor& index) {
  if (index.dtype() == DType::u8) return cast(index, DType::i64);
  check_index_type(name, index);
  return index;
}

}  // namespace

void check_indices(const Tensor& index, int64_t base, int64_t limit, const char* what) {
  if (index.device().kind != Device::cpu || index.count() == 0) return;
  View view = index.view();
  Tensor dense = contiguous(index.detached());
  auto check = [&](auto* values) {
    for (int64_t i = 0; i < dense.count(); i++) {
      auto value = static_cast<int64_t>(values[i]);
      if (value < base || value - base >= limit)
        throw TensorError(fmt::format("{} {} (element {}) is outside {}..{}", what, value, i + 1,
                                      base, base + limit - 1));
    }
  };
  if (view.dtype == DType::i32) return check(dense.view().at<int32_t>());
  check(dense.view().at<int64_t>());
}

Tensor softmax(const Tensor& given, int dim, bool logarithm) {
  const char* name = logarithm ? "log_softmax" : "softmax";
  Tensor x = floats(given);
  if (dim < 0 || dim >= x.rank())
    throw TensorError(fmt::format("{} takes a dimension of 1..{} of {}, not {}", name, x.rank(),
                                  text_of(given), dim + 1));
  if (dim != x.rank() - 1)
    return swap_dims(softmax(swap_dims(x, dim, x.rank() - 1), x.rank() - 1, logarithm), dim,
                     x.rank() - 1);
  x = with_dense_rows(x);
  Tensor out = like(x);
  call(x.device(), &Kernels::softmax, name, logarithm, x.view(), out.view());
  if (!is_recording(x)) return out;
  return record(name, out, {x},
                [name, logarithm, y = SavedTensor(out)](const Tensor& given_grad, Gradients& to) {
                  Tensor grad = with_dense_rows(given_grad), grad_input = like(grad);
                  call(grad.device(), &Kernels::softmax_backward, name, logarithm, y.get().view(),
                       grad.view(), grad_input.view());
                  to.set(0, grad_input);
                });
}

Tensor cross_entropy(const Tensor& given, const Tensor& given_labels, int64_t base, int64_t ignore,
                     Reduction reduction) {
  check_together("cross_entropy", {given, given_labels});
  Tensor logits = with_dense_rows(floats(given));
  if (logits.rank() != 2 || given_labels.rank() != 1 || given_labels.size(0) != logits.size(0) ||
      is_float(given_labels.dtype()) || given_labels.dtype() == DType::boolean)
    throw TensorError(
        fmt::format("cross_entropy takes logits [n, classes] and {} labels, one integer "
                    "per row, not {} and {}",
                    given.rank() == 2 ? std::to_string(given.size(0)) : "n", text_of(given),
                    text_of(given_labels)));
  int64_t rows = logits.size(0), classes = logits.size(1);
  if (rows == 0 && reduction == Reduction::mean)
    throw TensorError("a cross entropy without rows has no mean");
  Tensor labels = contiguous(cast(given_labels, DType::i64));
  Tensor counted = compare(Compare::ne, labels, Number::of(ignore));
  if (labels.device().kind == Device::cpu) {
    const int64_t* label = labels.view().at<int64_t>();
    for (int64_t row = 0; row < rows; row++) {
      if (label[row] == ignore || (label[row] >= base && label[row] - base < classes)) continue;
      throw TensorError(
          fmt::format("label {} of row {} is outside {}..{}: a label is the number of its "
                      "column{}",
                      label[row], row + 1, base, base + classes - 1,
                      base == 1 ? "; if yours begin with 0, pass labels + 1" : ""));
    }
  }
  DType wide = statistics_type(logits);
  Tensor loss = Tensor::empty(wide, Shape{rows}, logits.device());
  Tensor lse = Tensor::empty(DType::f64, Shape{rows}, logits.device());
  call(logits.device(), &Kernels::cross_entropy, "cross_entropy", logits.view(), labels.view(),
       base, ignore, loss.view(), lse.view());
  if (is_recording(logits)) {
    loss = record("cross_entropy", loss, {logits},
                  [base, ignore, x = SavedTensor(logits), labels = SavedTensor(labels),
                   lse = SavedTensor(lse)](const Tensor& grad, Gradients& to) {
                    Tensor in = x.get();
                    int64_t pitch = std::max(in.storage()->pitch, in.size(1));
                    Tensor grad_input =
                        Tensor::empty_rows(in.dtype(), in.size(0), in.size(1), pitch, in.device());
                    call(grad.device(), &Kernels::cross_entropy_backward, "cross_entropy",
                         in.view(), labels.get().view(), base, ignore, lse.get().view(),
                         grad.view(), grad_input.view());
                    to.set(0, grad_input);
                  });
  }
  if (reduction == Reduction::none) return loss;
  Tensor sum = reduce(Reduce::sum, loss, {0});
  if (reduction == Reduction::sum) return sum;
  return binary(Binary::div, sum, cast(reduce(Reduce::sum, counted, {0}), wide));
}

namespace {

// The type of a norm's result, which a kernel rounds once.
DType norm_type(const Tensor& x, bool for_product) {
  bool rounds = for_product && runtime().casts && x.dtype() == DType::f32;
  return rounds ? runtime().cast_type : x.dtype();
}

// The rows of x, without its history.
Tensor flat_rows(const Tensor& x) {
  int64_t columns = x.shape().last(), rows = columns == 0 ? 0 : x.count() / columns;
  return reshape(x.detached(), Shape{rows, columns});
}

// Where the backward of a norm stores dx: in the sum of the operand's other gradients, to which the
// kernel adds, or in a new tensor.
class NormGradient {
 public:
  NormGradient(const Tensor& rows, const Tensor& given, Gradients& to)
      : to_(to), adds_(bool(to.so_far(0))), grad_(flat_rows(with_dense_rows(given))) {
    dx_ = adds_ ? flat_rows(to.so_far(0)) : like(rows);
  }
  bool adds() const { return adds_; }
  const Tensor& grad() const { return grad_; }
  const Tensor& dx() const { return dx_; }
  void set(const Shape& shape) {
    if (adds_)
      to_.set_added(0);
    else
      to_.set(0, reshape(dx_, shape));
  }

 private:
  Gradients& to_;
  bool adds_;
  Tensor grad_, dx_;
};

// Weights stay f32 with a smaller x.
Tensor fit_scale(const Tensor& scale, const Tensor& x) {
  if (!scale) return scale;
  DType wide = statistics_type(x);
  return contiguous(scale.dtype() == x.dtype() || scale.dtype() == wide ? scale
                                                                        : cast(scale, wide));
}

// A layer norm or, without means, an RMS norm.
struct Norm {
  const char* name;
  Tensor x, weight, bias;
  bool centered;
  Tensor y, mean, rstd;  // y has x's shape

  Norm(const char* name_, const Tensor& x_, const Tensor& weight_, const Tensor& bias_,
       bool centered_, bool for_product)
      : name(name_),
        x(x_),
        weight(fit_scale(weight_, x_)),
        bias(fit_scale(bias_, x_)),
        centered(centered_) {
    Tensor flat = flat_rows(x);
    DType wide = statistics_type(x);
    y = Tensor::empty(norm_type(x, for_product), x.shape(), x.device());
    if (centered) mean = Tensor::empty(wide, Shape{flat.size(0)}, x.device());
    rstd = Tensor::empty(wide, Shape{flat.size(0)}, x.device());
  }
  void compute(double eps) const {
    View of_w, of_b;
    const View* w = view_or_null(weight, of_w);
    Tensor from = flat_rows(x), to = flat_rows(y);  // a copy of x if its rows have gaps
    if (centered)
      call(x.device(), &Kernels::layer_norm, name, from.view(), w, view_or_null(bias, of_b), eps,
           to.view(), mean.view(), rstd.view());
    else
      call(x.device(), &Kernels::rms_norm, name, from.view(), w, eps, to.view(), rstd.view());
  }
  /// x = given + term, and y.
  void compute_sum(const Tensor& given, const Tensor& term, double eps) const {
    View of_w, of_b, of_mean;
    call(x.device(), &Kernels::add_norm, name, flat_rows(given).view(), flat_rows(term).view(),
         view_or_null(weight, of_w), view_or_null(bias, of_b), eps, flat_rows(x).view(),
         flat_rows(y).view(), view_or_null(mean, of_mean), rstd.view());
  }
  Tensor recorded() const;
};

// The backward of a recorded norm.
struct NormBackward {
  const char* name;
  SavedTensor x, weight, mean, rstd;
  Shape shape;
  bool has_bias, centered;
  DType bias_type;

  void operator()(const Tensor& given_grad, Gradients& to) const {
    Tensor in = x.get(), scale = weight.get(), dw, db;
    NormGradient gradient(in, given_grad, to);
    if (scale) dw = like(scale);
    if (has_bias) db = Tensor::empty(bias_type, Shape{in.size(1)}, in.device());
    View of_scale, of_dw, of_db;
    const View* w = view_or_null(scale, of_scale);
    if (centered)
      call(in.device(), &Kernels::layer_norm_backward, name, in.view(), w, mean.get().view(),
           rstd.get().view(), gradient.grad().view(), gradient.dx().view(), view_or_null(dw, of_dw),
           view_or_null(db, of_db), gradient.adds());
    else
      call(in.device(), &Kernels::rms_norm_backward, name, in.view(), w, rstd.get().view(),
           gradient.grad().view(), gradient.dx().view(), view_or_null(dw, of_dw), gradient.adds());
    gradient.set(shape);
    to.set(1, dw);
    if (centered) to.set(2, db);
  }
};

Tensor Norm::recorded() const {
  if (!is_recording(x, weight, bias)) return y;
  NormBackward backward{name,
                        SavedTensor(flat_rows(x)),
                        SavedTensor(weight),
                        SavedTensor(mean),
                        SavedTensor(rstd),
                        x.shape(),
                        bool(bias),
                        centered,
                        bias ? bias.dtype() : DType::f32};
  if (!centered) return record(name, y, {x, weight}, std::move(backward));
  return record(name, y, {x, weight, bias}, std::move(backward));
}

Tensor norm_of(const char* name, const Tensor& given, const Tensor& weight, const Tensor& bias,
               bool centered, double eps, bool for_product) {
  check_together(name, {given, weight, bias});
  Tensor x = with_dense_rows(floats(given));
  if (x.rank() == 0)
    throw TensorError(fmt::format("{} is over the last dimension, and there is none", name));
  check_scale(name, x, weight);
  check_scale(name, x, bias);
  Norm norm(name, x, weight, bias, centered, for_product);
  norm.compute(eps);
  return norm.recorded();
}

// Whether one operation can add the two and keep the type of x.
bool adds_together(const Tensor& x, const Tensor& term) {
  auto is_small = [](DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; };
  return is_float(x.dtype()) && x.rank() > 0 && x.shape() == term.shape() &&
         (x.dtype() == term.dtype() || (x.dtype() == DType::f32 && is_small(term.dtype())));
}

SumAndNorm add_norm_of(const char* name, const Tensor& given, const Tensor& given_term,
                       const Tensor& weight, const Tensor& bias, bool centered, double eps,
                       bool for_product) {
  check_together(name, {given, given_term, weight, bias});
  if (!adds_together(given, given_term)) {
    Tensor sum = binary(Binary::add, given, given_term);
    return {sum, norm_of(name, sum, weight, bias, centered, eps, for_product)};
  }
  check_scale(name, given, weight);
  check_scale(name, given, bias);
  Tensor x = with_dense_rows(given), term = with_dense_rows(given_term), sum = like(x);
  Norm norm(name, sum, weight, bias, centered, for_product);
  norm.compute_sum(x, term, eps);
  if (is_recording(x, term))
    norm.x = sum =
        record("add", sum, {x, term}, [type = term.dtype()](const Tensor& grad, Gradients& to) {
          to.set(0, grad);
          if (to.wants(1)) to.set(1, cast(grad, type));
        });
  return {sum, norm.recorded()};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  bool for_product) {
  return norm_of("layer_norm", x, weight, bias, true, eps, for_product);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool for_product) {
  return norm_of("rms_norm", x, weight, {}, false, eps, for_product);
}

SumAndNorm add_layer_norm(const Tensor& x, const Tensor& term, const Tensor& weight,
                          const Tensor& bias, double eps, bool for_product) {
  return add_norm_of("layer_norm", x, term, weight, bias, true, eps, for_product);
}

SumAndNorm add_rms_norm(const Tensor& x, const Tensor& term, const Tensor& weight, double eps,
                        bool for_product) {
  return add_norm_of("rms_norm", x, term, weight, {}, false, eps, for_product);
}

Tensor embedding(const Tensor& given, const Tensor& given_index, int64_t base) {
  check_together("embedding", {given, given_index});
  Tensor index = as_index("embedding", given_index);
  if (given.rank() != 2)
    throw TensorError(fmt::format("embedding takes a table [rows, width], not {}", text_of(given)));
  if (index.rank() + 1 > kernels::kRankMax)
    throw TensorError(fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
  check_indices(index, base, given.size(0), "the index of an embedding,");
  Shape shape = index.shape();
  shape.push(given.size(1));
  Tensor out = Tensor::empty(given.dtype(), shape, given.device());
  call(given.device(), &Kernels::gather_rows, "embedding", given.view(), index.view(), base,
       out.view());
  if (!is_recording(given)) return out;
  return record("embedding", out, {given},
                [base, of_table = given.shape(), index = SavedTensor(index)](const Tensor& grad,
                                                                             Gradients& to) {
                  // A GPU sums the rows of an element first: the bits do not depend on the place
                  // where the sum is added. The CPU adds them one by one.
                  Tensor sum = grad.device().kind == Device::cpu ? Tensor() : to.so_far(0);
                  Tensor grad_input =
                      sum ? sum : Tensor::zeros(grad.dtype(), of_table, grad.device());
                  call(grad.device(), &Kernels::scatter_add_rows, "embedding", grad.view(),
                       index.get().view(), base, grad_input.view());
                  sum ? to.set_added(0) : to.set(0, grad_input);
                });
}

namespace {

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  bool fits = q.rank() == 4 && k.rank() == 4 && v.shape() == k.shape();
  fits = fits && q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(1) > 0 &&
         q.size(1) % k.size(1) == 0 && q.dtype() == k.dtype() && k.dtype() == v.dtype() &&
         is_float(q.dtype());
  if (!fits)
    throw TensorError(
        fmt::format("attention takes queries [batch, heads, t, size] and keys and values "
                    "[batch, groups, s, size] of one type of floats, heads being a "
                    "multiple of groups, not {}, {} and {}",
                    text_of(q), text_of(k), text_of(v)));
}

}  // namespace

Tensor attention(const Tensor& given_q, const Tensor& given_k, const Tensor& given_v, bool causal,
                 std::optional<double> scale) {
  check_together("attention", {given_q, given_k, given_v});
  check_attention(given_q, given_k, given_v);
  bool rounds = runtime().casts && given_q.dtype() != DType::f64;
  DType dtype = rounds ? runtime().cast_type : given_q.dtype();
  Tensor q = with_dense_rows(cast(given_q, dtype)), k = with_dense_rows(cast(given_k, dtype)),
         v = with_dense_rows(cast(given_v, dtype));
  kernels::Attention options;
  options.causal = causal;
  options.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  // Heads are adjacent, so that [b, t, h * d] is a view of the result.
  int64_t b = q.size(0), h = q.size(1), t = q.size(2), d = q.size(3);
  Tensor rows = Tensor::empty(dtype, Shape{b, t, h, d}, q.device());
  Tensor out(kernels::swap_dims(rows.view(), 1, 2), rows.storage());
  Tensor lse = Tensor::empty(DType::f64, Shape{b, h, t}, q.device());
  call(q.device(), &Kernels::attention, "attention", options, q.view(), k.view(), v.view(),
       out.view(), lse.view());
  if (!is_recording(q, k, v)) return out;
  return record(
      "attention", out, {q, k, v},
      [options, q = SavedTensor(q), k = SavedTensor(k), v = SavedTensor(v), out = SavedTensor(out),
       lse = SavedTensor(lse)](const Tensor& given_grad, Gradients& to) {
        Tensor grad = with_dense_rows(given_grad);
        Tensor dq = like(q.get()), dk = like(k.get()), dv = like(v.get());
        call(grad.device(), &Kernels::attention_backward, "attention", options, q.get().view(),
             k.get().view(), v.get().view(), out.get().view(), lse.get().view(), grad.view(),
             dq.view(), dk.view(), dv.view());
        to.set(0, dq);
        to.set(1, dk);
        to.set(2, dv);
      });
}

namespace {

// Heads of packed projections [b, t, (heads + 2 groups) * d] from `first` on: [b, heads, t, d].
View heads_of(const Tensor& packed, int64_t first, int64_t heads, int64_t size) {
  View view = kernels::narrow(packed.view(), 2, first * size, heads * size);
  View split = view;
  split.shape = Shape{view.shape[0], heads, view.shape[1], size};
  split.strides[0] = view.strides[0];
  split.strides[1] = size * view.strides[2];
  split.strides[2] = view.strides[1];
  split.strides[3] = view.strides[2];
  return split;
}

}  // namespace

Tensor self_attention(const Tensor& given, int64_t heads, int64_t groups, bool causal,
                      std::optional<double> scale) {
  bool rounds = runtime().casts && given.dtype() != DType::f64;
  Tensor packed = rounds ? cast(given, runtime().cast_type) : given;
  if (packed.rank() != 3 || heads < 1 || groups < 1 || heads % groups != 0 ||
      packed.size(2) % (heads + 2 * groups) != 0 || !is_float(packed.dtype()))
    throw TensorError(
        fmt::format("self_attention takes queries, keys and values side by side, [batch, "
                    "t, (heads + 2 groups) * size], not {} for {} heads and {} groups",
                    text_of(given), heads, groups));
  packed = with_dense_rows(packed);
  int64_t b = packed.size(0), t = packed.size(1), d = packed.size(2) / (heads + 2 * groups);
  kernels::Attention options;
  options.causal = causal;
  options.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(d));
  Tensor out = Tensor::empty(packed.dtype(), Shape{b, t, heads * d}, packed.device());
  Tensor lse = Tensor::empty(DType::f64, Shape{b, heads, t}, packed.device());
  View q = heads_of(packed, 0, heads, d), k = heads_of(packed, heads, groups, d),
       v = heads_of(packed, heads + groups, groups, d);
  call(packed.device(), &Kernels::attention, "attention", options, q, k, v,
       heads_of(out, 0, heads, d), lse.view());
  if (!is_recording(packed)) return out;
  return record("attention", out, {packed},
                [options, heads, groups, d, x = SavedTensor(packed), y = SavedTensor(out),
                 lse = SavedTensor(lse)](const Tensor& given_grad, Gradients& to) {
                  Tensor grad = with_dense_rows(given_grad), in = x.get(), grad_input = like(in);
                  call(in.device(), &Kernels::attention_backward, "attention", options,
                       heads_of(in, 0, heads, d), heads_of(in, heads, groups, d),
                       heads_of(in, heads + groups, groups, d), heads_of(y.get(), 0, heads, d),
                       lse.get().view(), heads_of(grad, 0, heads, d),
                       heads_of(grad_input, 0, heads, d), heads_of(grad_input, heads, groups, d),
                       heads_of(grad_input, heads + groups, groups, d));
                  to.set(0, grad_input);
                });
}

Tensor rotary(const Tensor& given, int64_t first, double theta) {
  Tensor x = with_dense_rows(floats(given));
  if (x.rank() != 4 || x.size(3) % 2 != 0)
    throw TensorError(fmt::format("rotary takes [batch, heads, t, size] with an even size, not {}",
                                  text_of(given)));
  Tensor out = like(x);
  call(x.device(), &Kernels::rotary, "rotary", x.view(), first, theta, false, out.view());
  if (!is_recording(x)) return out;
  return record("rotary", out, {x}, [first, theta](const Tensor& given_grad, Gradients& to) {
    Tensor grad = with_dense_rows(given_grad), grad_input = like(grad);
    call(grad.device(), &Kernels::rotary, "rotary", grad.view(), first, theta, true,
         grad_input.view());
    to.set(0, grad_input);
  });
}

// ---- by index

namespace {

void check_gather(const char* name, const Tensor& x, int dim, const Tensor& index) {
  bool fits = dim >= 0 && dim < x.rank() && index.rank() == x.rank();
  for (int at = 0; fits && at < x.rank(); at++) fits = at == dim || index.size(at) <= x.size(at);
  if (!fits)
    throw TensorError(
        fmt::format("{} along dimension {} of {} takes an index with as many dimensions, of which "
                    "only that one may be larger, not {}",
                    name, dim + 1, text_of(x), text_of(index)));
}

// x with `dim` last, and its other dimensions narrowed to the index's.
View lane_view(const View& x, int dim, const Shape& index) {
  View view = x;
  for (int at = 0; at < x.rank(); at++)
    if (at != dim) view = kernels::narrow(view, at, 0, index[at]);
  return kernels::swap_dims(view, dim, x.rank() - 1);
}

View last_view(const Tensor& x, int dim) { return kernels::swap_dims(x.view(), dim, x.rank() - 1); }

}  // namespace

Tensor gather(const Tensor& x, int dim, const Tensor& given_index, int64_t base) {
  check_together("gather", {x, given_index});
  Tensor index = as_index("gather", given_index);
  check_gather("gather", x, dim, index);
  check_indices(index, base, x.size(dim), "the index of gather,");
  Tensor out = Tensor::empty(x.dtype(), index.shape(), x.device());
  call(x.device(), &Kernels::gather_last, "gather", lane_view(x.view(), dim, index.shape()),
       last_view(index, dim), base, last_view(out, dim));
  if (!is_recording(x)) return out;
  return record(
      "gather", out, {x},
      [dim, base, of_x = x.shape(), index = SavedTensor(index)](const Tensor& grad, Gradients& to) {
        Tensor zero = Tensor::zeros(grad.dtype(), of_x, grad.device());
        to.set(0, scatter_add(zero, dim, index.get(), grad, base));
      });
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& given_index, const Tensor& source,
                   int64_t base) {
  check_together("scatter_add", {x, given_index, source});
  Tensor index = as_index("scatter_add", given_index);
  check_gather("scatter_add", x, dim, index);
  check_indices(index, base, x.size(dim), "the index of scatter_add,");
  if (!(source.shape() == index.shape()) || source.dtype() != x.dtype() || !is_float(x.dtype()))
    throw TensorError(
        fmt::format("scatter_add to {} takes floats of that type, one per index, not {} for "
                    "{}",
                    text_of(x), text_of(source), text_of(index)));
  Tensor out = copy_of(x.detached());
  call(x.device(), &Kernels::scatter_add_last, "scatter_add", last_view(source, dim),
       last_view(index, dim), base, lane_view(out.view(), dim, index.shape()));
  if (!is_recording(x, source)) return out;
  return record("scatter_add", out, {x, source},
                [dim, base, index = SavedTensor(index)](const Tensor& grad, Gradients& to) {
                  to.set(0, grad);
                  if (to.wants(1)) to.set(1, gather(grad, dim, index.get(), base));
                });
}

Tensor index_select(const Tensor& x, int dim, const Tensor& given_index, int64_t base) {
  check_together("index_select", {x, given_index});
  Tensor index = as_index("index_select", given_index);
  if (dim < 0 || dim >= x.rank() || index.rank() != 1)
    throw TensorError(
        fmt::format("dimension {} of {} is selected from by a tensor of one "
                    "dimension, not by {}",
                    dim + 1, text_of(x), text_of(index)));
  check_indices(index, base, x.size(dim), "the index,");
  // As rows of a table: [selected dimension, all others].
  Tensor front = swap_dims(x, 0, dim);
  int64_t rows = front.size(0), width = rows == 0 ? 0 : x.count() / rows;
  Tensor table = reshape(front, Shape{rows, width});
  Tensor out = embedding(table, index, base);
  Shape shape = front.shape();
  shape[0] = index.size(0);
  if (shape.count() != out.count()) return Tensor::zeros(x.dtype(), shape, x.device());
  return swap_dims(reshape(out, shape), 0, dim);
}

}  // namespace flow::tensors
