// Rows: softmax, normalization, rotation, and products too small for a library.
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/loops/all.hpp"
#include "kernels/cpu/loops/math.hpp"

namespace flow::cpu::FLOW_ISA {
namespace {

constexpr int64_t kBlock = 256;

template <typename T>
double sum_exp_run(const void* from, double shift, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T *out = static_cast<T*>(to), less = static_cast<T>(shift);
  double total = 0;
  for (int64_t at = 0; at < count; at += kBlock) {
    int64_t end = at + kBlock < count ? at + kBlock : count;
    T part = 0;
    if (out != nullptr) {
#pragma omp simd reduction(+ : part)
      for (int64_t i = at; i < end; i++) {
        T value = exp_of_negative(in[i] - less);
        out[i] = value;
        part += value;
      }
    } else {
#pragma omp simd reduction(+ : part)
      for (int64_t i = at; i < end; i++) part += exp_of_negative(in[i] - less);
    }
    total += static_cast<double>(part);
  }
  return total;
}

template <typename T>
void exp_scaled_run(const void* from, double shift, double factor, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T *out = static_cast<T*>(to), less = static_cast<T>(shift), scale = static_cast<T>(factor);
  // A float has too few digits for the shift of large numbers: the rest is subtracted afterwards.
  bool is_finite = less - less == T(0);
  T rest = is_finite ? static_cast<T>(shift - static_cast<double>(less)) : T(0);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = exp_of_negative((in[i] - less) - rest) * scale;
}

template <typename T>
void scale_run(const void* from, double factor, double more, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T *out = static_cast<T*>(to), scale = static_cast<T>(factor), add = static_cast<T>(more);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = in[i] * scale + add;
}

template <typename T>
void softmax_backward_run(const void* result, const void* grad_data, double sum, void* to,
                          int64_t count) {
  const T *y = static_cast<const T*>(result), *grad = static_cast<const T*>(grad_data);
  T *out = static_cast<T*>(to), less = static_cast<T>(sum);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = y[i] * (grad[i] - less);
}

template <typename T>
void log_softmax_backward_run(const void* result, const void* grad_data, double sum, void* to,
                              int64_t count) {
  const T *y = static_cast<const T*>(result), *grad = static_cast<const T*>(grad_data);
  T *out = static_cast<T*>(to), less = static_cast<T>(sum);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = grad[i] - exp_of_negative(y[i]) * less;
}

template <typename T>
void normalize_run(const void* from, double mean, double rstd, const void* weights,
                   const void* biases, void* to, int64_t count) {
  const T *x = static_cast<const T*>(from), *weight = static_cast<const T*>(weights),
          *bias = static_cast<const T*>(biases);
  T *y = static_cast<T*>(to), middle = static_cast<T>(mean), scale = static_cast<T>(rstd);
  if (weight != nullptr && bias != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) y[i] = (x[i] - middle) * scale * weight[i] + bias[i];
  } else if (weight != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) y[i] = (x[i] - middle) * scale * weight[i];
  } else if (bias != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) y[i] = (x[i] - middle) * scale + bias[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) y[i] = (x[i] - middle) * scale;
  }
}

template <typename T>
void normalize_sums_run(const void* from, double mean, double rstd, const void* weights,
                        const void* grad_data, double* sums, int64_t count) {
  const T *x = static_cast<const T*>(from), *weight = static_cast<const T*>(weights),
          *grad = static_cast<const T*>(grad_data);
  T middle = static_cast<T>(mean), scale = static_cast<T>(rstd);
  for (int64_t at = 0; at < count; at += kBlock) {
    int64_t end = at + kBlock < count ? at + kBlock : count;
    T first = 0, second = 0;
    if (weight != nullptr) {
#pragma omp simd reduction(+ : first, second)
      for (int64_t i = at; i < end; i++) {
        T g = grad[i] * weight[i];
        first += g;
        second += g * ((x[i] - middle) * scale);
      }
    } else {
#pragma omp simd reduction(+ : first, second)
      for (int64_t i = at; i < end; i++) {
        first += grad[i];
        second += grad[i] * ((x[i] - middle) * scale);
      }
    }
    sums[0] += static_cast<double>(first);
    sums[1] += static_cast<double>(second);
  }
}

template <typename T>
void normalize_backward_run(const void* from, double mean, double rstd, const void* weights,
                            const void* grad_data, double first, double second, void* to,
                            void* weight_sums, void* bias_sums, int64_t count) {
  const T *x = static_cast<const T*>(from), *weight = static_cast<const T*>(weights),
          *grad = static_cast<const T*>(grad_data);
  T *dx = static_cast<T*>(to), *dweight = static_cast<T*>(weight_sums),
    *dbias = static_cast<T*>(bias_sums);
  T middle = static_cast<T>(mean), scale = static_cast<T>(rstd), less = static_cast<T>(first),
    part = static_cast<T>(second);
  for (int64_t at = 0; at < count; at += kBlock) {
    int64_t end = at + kBlock < count ? at + kBlock : count;
    // dx may be grad or x: compute the sums first.
    if (dweight != nullptr) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) dweight[i] += grad[i] * ((x[i] - middle) * scale);
    }
    if (dbias != nullptr) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) dbias[i] += grad[i];
    }
    if (weight != nullptr) {
#pragma omp simd
      for (int64_t i = at; i < end; i++)
        dx[i] = (grad[i] * weight[i] - less - (x[i] - middle) * scale * part) * scale;
    } else {
#pragma omp simd
      for (int64_t i = at; i < end; i++)
        dx[i] = (grad[i] - less - (x[i] - middle) * scale * part) * scale;
    }
  }
}

template <typename T>
void rotate_run(const void* left, const void* right, const void* cosines, const void* sines,
                void* left_out, void* right_out, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right),
          *cosine = static_cast<const T*>(cosines), *sine = static_cast<const T*>(sines);
  T *a_out = static_cast<T*>(left_out), *b_out = static_cast<T*>(right_out);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    T x = a[i], y = b[i];
    a_out[i] = x * cosine[i] - y * sine[i];
    b_out[i] = y * cosine[i] + x * sine[i];
  }
}

template <typename T>
void product_small_run(const void* left, int64_t a_row, int64_t a_column, const void* right,
                       int64_t b_row, int64_t b_column, double alpha, double beta, void* to,
                       int64_t c_row, int64_t m, int64_t n, int64_t k) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T *c = static_cast<T*>(to), factor = static_cast<T>(alpha), keep = static_cast<T>(beta);
  constexpr int64_t kColumns = 64;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t at = 0; at < n; at += kColumns) {
      int64_t width = n - at < kColumns ? n - at : kColumns;
      T sums[kColumns] = {};
      for (int64_t p = 0; p < k; p++) {
        T value = a[i * a_row + p * a_column];
        const T* row = b + p * b_row + at * b_column;
        if (b_column == 1) {
#pragma omp simd
          for (int64_t j = 0; j < width; j++) sums[j] += value * row[j];
        } else {
          for (int64_t j = 0; j < width; j++) sums[j] += value * row[j * b_column];
        }
      }
      T* out = c + i * c_row + at;
      if (beta == 0) {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) out[j] = factor * sums[j];
      } else {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) out[j] = factor * sums[j] + keep * out[j];
      }
    }
  }
}

template <typename T>
void fill_kind(Loops& loops, int kind) {
  loops.sum_exp[kind] = sum_exp_run<T>;
  loops.exp_scaled[kind] = exp_scaled_run<T>;
  loops.scale[kind] = scale_run<T>;
  loops.softmax_backward[0][kind] = softmax_backward_run<T>;
  loops.softmax_backward[1][kind] = log_softmax_backward_run<T>;
  loops.normalize[kind] = normalize_run<T>;
  loops.normalize_sums[kind] = normalize_sums_run<T>;
  loops.normalize_backward[kind] = normalize_backward_run<T>;
  loops.rotate[kind] = rotate_run<T>;
  loops.product_small[kind] = product_small_run<T>;
}

}  // namespace

void fill_rows(Loops& loops) {
  fill_kind<float>(loops, kF32);
  fill_kind<double>(loops, kF64);
}

}  // namespace flow::cpu::FLOW_ISA
