// Layer norm and RMS norm.
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/row_buffers.hpp"

namespace flow::cpu {
namespace {

constexpr int64_t kRowsTogether = 64;

// weight or bias [c], of x's type or f32, in the compute type.
class Vector {
 public:
  Vector(Scratch& scratch, const View* view, ArithmeticType kind) {
    if (view == nullptr) return;
    int64_t count = view->count();
    bool fits_kind = kind_of(view->dtype) == kind;
    if (fits_kind && !is_small(view->dtype) && (view->strides[0] == 1 || count <= 1)) {
      data_ = view->data;
      return;
    }
    char* room = scratch.take<char>(count * 8);
    fits_ = room != nullptr || count == 0;
    if (!fits_ || count == 0) return;
    if (fits_kind) {
      data_ = load_converted(view->dtype, view->data, view->strides[0], count, room);
    } else {  // f32 weights of f64 rows
      for (int64_t i = 0; i < count; i++)
        reinterpret_cast<double*>(room)[i] = view->at<float>()[i * view->strides[0]];
      data_ = room;
    }
  }
  bool fits() const { return fits_; }
  const void* data() const { return data_; }

 private:
  bool fits_ = true;
  const void* data_ = nullptr;
};

// Sums over rows, one vector per part of the work, combined in the order of parts.
class ColumnSums {
 public:
  ColumnSums(Scratch& scratch, const RowParts& parts, const View* view, ArithmeticType kind,
             int64_t columns)
      : view_(view), kind_(kind), columns_(columns), parts_(parts.parts) {
    if (view == nullptr) return;
    size_ = size_of_kind(kind);
    stride_ = (columns * static_cast<int64_t>(size_) + 63) / 64 * 64;
    room_ = scratch.take<char>(parts_ * stride_);
    totals_ = scratch.take<double>(parts_ * columns);
    fits_ = totals_ != nullptr || columns == 0;
  }
  bool fits() const { return fits_; }
  void clear() const {
    if (view_ == nullptr || columns_ == 0) return;
    std::memset(room_, 0, static_cast<size_t>(parts_ * stride_));
    std::memset(totals_, 0, static_cast<size_t>(parts_ * columns_) * sizeof(double));
  }
  void* of(int64_t part) const { return view_ == nullptr ? nullptr : room_ + part * stride_; }
  /// Every few rows, sums in the compute type are added to sums in double.
  void flush(int64_t part) const {
    if (view_ == nullptr || columns_ == 0) return;
    loops().add_sums[kind_](of(part), totals_ + part * columns_, columns_);
    std::memset(of(part), 0, static_cast<size_t>(stride_));
  }
  void join() const {
    if (view_ == nullptr) return;
    for (int64_t part = 1; part < parts_; part++)
      loops().add_sums[kF64](totals_ + part * columns_, totals_, columns_);
    visit_float(view_->dtype, [&](auto type) {
      using T = decltype(type);
      for (int64_t i = 0; i < columns_; i++)
        view_->at<T>()[i * view_->strides[0]] = convert<T>(totals_[i]);
    });
  }

 private:
  const View* view_;
  ArithmeticType kind_;
  int64_t columns_, parts_, stride_ = 0;
  size_t size_ = 4;
  char* room_ = nullptr;
  double* totals_ = nullptr;
  bool fits_ = true;
};

// A row that is added to a row of the view, in the compute type.
class AddedRows {
 public:
  AddedRows(Scratch& scratch, const RowParts& parts, const View& view, bool adds)
      : kind_(kind_of(view.dtype)), columns_(view.shape.last()), stored_(scratch, parts, view) {
    if (!adds || columns_ == 0) return;
    stride_ = (columns_ * static_cast<int64_t>(size_of_kind(kind_)) + 63) / 64 * 64;
    room_ = scratch.take<char>(parts.parts * stride_);
    fits_ = room_ != nullptr && stored_.fits();
  }
  bool fits() const { return fits_; }
  void* of(int64_t part) const { return room_ + part * stride_; }
  /// target = the view's row + the row of the part.
  void add(int64_t part, int64_t row, void* target) const {
    const void* old = stored_.read(part, row);
    auto sum = [&](auto type) {
      using C = decltype(type);
      auto* to = static_cast<C*>(target);
      for (int64_t i = 0; i < columns_; i++)
        to[i] = static_cast<const C*>(old)[i] + static_cast<const C*>(of(part))[i];
    };
    kind_ == kF64 ? sum(double{}) : sum(float{});
  }

 private:
  ArithmeticType kind_;
  int64_t columns_, stride_ = 0;
  RowBuffer stored_;
  char* room_ = nullptr;
  bool fits_ = true;
};

// Both norms; without means it is RMS norm. `terms`: x is computed first, as their sum.
int norm(Stream& stream, const View& x, const View* weight, const View* bias, double eps,
         const View& y, const View* mean, const View& rstd,
         const std::array<const View*, 2>& terms = {}) {
  if (!is_float(x.dtype)) return kUnsupported;
  int64_t columns = x.shape.last();
  ArithmeticType kind = kind_of(x.dtype);
  RowParts parts(stream, rows_of(x), columns, kGrainCostly * 2);
  RowBuffer from(stream.scratch, parts, x), to(stream.scratch, parts, y, x.data != y.data);
  Vector weights(stream.scratch, weight, kind), biases(stream.scratch, bias, kind);
  if (!from.fits() || !to.fits() || !weights.fits() || !biases.fits()) return kNeedsScratch;
  if (terms[0] != nullptr) {
    int code = cpu_kernels().binary(stream, Binary::add, *terms[0], *terms[1], x);
    if (code != kDone) return code;
  }
  const Loops& use = loops();
  auto count = static_cast<double>(columns);
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const void* in = from.read(part, row);
      double middle = mean == nullptr ? 0 : use.sum[kind](in, columns) / count;
      double scale = 1 / std::sqrt(use.sum_of_squares[kind](in, middle, columns) / count + eps);
      if (mean != nullptr) set_statistic(*mean, row, middle);
      set_statistic(rstd, row, scale);
      use.normalize[kind](in, middle, scale, weights.data(), biases.data(), to.target(part, row),
                          columns);
      to.write(part, row);
    }
  });
  return kDone;
}

int norm_backward(Stream& stream, const View& x, const View* weight, const View* mean,
                  const View& rstd, const View& grad, const View& dx, const View* dweight,
                  const View* dbias, bool adds) {
  if (!is_float(x.dtype)) return kUnsupported;
  int64_t columns = x.shape.last();
  ArithmeticType kind = kind_of(x.dtype);
  RowParts parts(stream, rows_of(x), columns, kGrainCostly * 2);
  Scratch& scratch = stream.scratch;
  RowBuffer from(scratch, parts, x), grad_buffer(scratch, parts, grad), to(scratch, parts, dx);
  AddedRows added(scratch, parts, dx, adds);
  Vector weights(scratch, weight, kind);
  ColumnSums weight_sums(scratch, parts, dweight, kind, columns),
      bias_sums(scratch, parts, dbias, kind, columns);
  if (!from.fits() || !grad_buffer.fits() || !to.fits() || !weights.fits() || !weight_sums.fits() ||
      !bias_sums.fits() || !added.fits())
    return kNeedsScratch;
  const Loops& use = loops();
  auto count = static_cast<double>(columns);
  weight_sums.clear();
  bias_sums.clear();
  parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      const void *in = from.read(part, row), *grad_row = grad_buffer.read(part, row);
      double middle = mean == nullptr ? 0 : statistic(*mean, row), scale = statistic(rstd, row);
      double sums[2] = {0, 0};
      use.normalize_sums[kind](in, middle, scale, weights.data(), grad_row, sums, columns);
      use.normalize_backward[kind](in, middle, scale, weights.data(), grad_row,
                                   mean == nullptr ? 0 : sums[0] / count, sums[1] / count,
                                   adds ? added.of(part) : to.target(part, row),
                                   weight_sums.of(part), bias_sums.of(part), columns);
      if (adds) added.add(part, row, to.target(part, row));
      to.write(part, row);
      if ((row - first) % kRowsTogether == kRowsTogether - 1 || row == last - 1) {
        weight_sums.flush(part);
        bias_sums.flush(part);
      }
    }
  });
  weight_sums.join();
  bias_sums.join();
  return kDone;
}

int layer_norm(Stream& stream, const View& x, const View* weight, const View* bias, double eps,
               const View& y, const View& mean, const View& rstd) {
  return norm(stream, x, weight, bias, eps, y, &mean, rstd);
}

int layer_norm_backward(Stream& stream, const View& x, const View* weight, const View& mean,
                        const View& rstd, const View& grad, const View& dx, const View* dweight,
                        const View* dbias, bool adds) {
  return norm_backward(stream, x, weight, &mean, rstd, grad, dx, dweight, dbias, adds);
}

int rms_norm(Stream& stream, const View& x, const View* weight, double eps, const View& y,
             const View& rstd) {
  return norm(stream, x, weight, nullptr, eps, y, nullptr, rstd);
}

int rms_norm_backward(Stream& stream, const View& x, const View* weight, const View& rstd,
                      const View& grad, const View& dx, const View* dweight, bool adds) {
  return norm_backward(stream, x, weight, nullptr, rstd, grad, dx, dweight, nullptr, adds);
}

int add_norm(Stream& stream, const View& x, const View& term, const View* weight, const View* bias,
             double eps, const View& sum, const View& y, const View* mean, const View& rstd) {
  return norm(stream, sum, weight, bias, eps, y, mean, rstd, {&x, &term});
}

}  // namespace

void add_norm_rows(Kernels& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm = rms_norm;
  table.rms_norm_backward = rms_norm_backward;
  table.add_norm = add_norm;
}

}  // namespace flow::cpu
