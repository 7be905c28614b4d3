// Reductions. Sums are computed in double, in separate lanes that are combined at the end, always
// in the same order.
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/loops/all.hpp"
#include "kernels/cpu/loops/math.hpp"

namespace flow::cpu::FLOW_ISA {
namespace {

constexpr int64_t kLanes = 32;

// Combines lanes by halves: sequentially it would take longer than a short row.
template <int64_t count, typename T, typename F>
FLOW_HD T joined(T* lanes, F f) {
  for (int64_t width = count / 2; width > 0; width /= 2) {
#pragma omp simd
    for (int64_t j = 0; j < width; j++) lanes[j] = f(lanes[j], lanes[j + width]);
  }
  return lanes[0];
}

template <typename T, typename F>
FLOW_HD double sum_of(int64_t count, F f) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t j = 0; j < kLanes; j++) lanes[j] += f(i + j);
  }
  double total = joined<kLanes>(lanes, [](double a, double b) { return a + b; });
  double rest = 0;
  for (; i < count; i++) rest += f(i);
  return total + rest;
}

template <typename T>
double sum_run(const void* from, int64_t count) {
  const T* in = static_cast<const T*>(from);
  return sum_of<T>(
      count, [=](int64_t i) __attribute__((always_inline)) { return static_cast<double>(in[i]); });
}

template <typename T>
double sum_of_squares_run(const void* from, double mean, int64_t count) {
  const T* in = static_cast<const T*>(from);
  return sum_of<T>(
      count, [=](int64_t i) __attribute__((always_inline)) {
        double off = static_cast<double>(in[i]) - mean;
        return off * off;
      });
}

template <typename T>
double dot_run(const void* left, const void* right, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  return sum_of<T>(
      count, [=](int64_t i) __attribute__((always_inline)) {
        return static_cast<double>(a[i]) * static_cast<double>(b[i]);
      });
}

template <typename T>
double product_run(const void* from, int64_t count) {
  const T* in = static_cast<const T*>(from);
  double total = 1;
  for (int64_t i = 0; i < count; i++) total *= static_cast<double>(in[i]);
  return total;
}

template <typename T>
int64_t sum_integers_run(const void* from, int64_t count) {
  const T* in = static_cast<const T*>(from);
  uint64_t total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; i++) total += static_cast<uint64_t>(static_cast<int64_t>(in[i]));
  return static_cast<int64_t>(total);
}

// A NaN replaces any number and stays.
template <bool largest, typename T>
FLOW_HD T more(T best, T x) {
  bool better = largest ? x > best : x < best;
  if constexpr (std::is_floating_point_v<T>) better |= x != x;
  return better ? x : best;
}

template <bool largest, typename T>
void most_run(const void* from, int64_t count, void* to) {
  constexpr int64_t lanes_count = 256 / sizeof(T);
  const T* in = static_cast<const T*>(from);
  T best = in[0];
  int64_t i = 0;
  if (count >= lanes_count) {
    T lanes[lanes_count];
    for (int64_t j = 0; j < lanes_count; j++) lanes[j] = in[j];
    for (i = lanes_count; i + lanes_count <= count; i += lanes_count) {
#pragma omp simd
      for (int64_t j = 0; j < lanes_count; j++) lanes[j] = more<largest>(lanes[j], in[i + j]);
    }
    best = joined<lanes_count>(lanes, [](T a, T b) { return more<largest>(a, b); });
  }
  for (; i < count; i++) best = more<largest>(best, in[i]);
  *static_cast<T*>(to) = best;
}

template <typename T>
int64_t find_run(const void* from, int64_t count, const void* value) {
  const T* in = static_cast<const T*>(from);
  T wanted = *static_cast<const T*>(value);
  bool nan = wanted != wanted;
  auto is_it = [=](T x) { return nan ? x != x : x == wanted; };
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    uint32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int64_t j = 0; j < kBlock; j++) any |= is_it(in[i + j]) ? 1u : 0u;
    if (any != 0) break;
  }
  for (; i < count; i++)
    if (is_it(in[i])) return i;
  return count;
}

template <typename T>
void add_sums_run(const void* from, double* sums, int64_t count) {
  const T* in = static_cast<const T*>(from);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) sums[i] += static_cast<double>(in[i]);
}

template <typename T>
void add_sums_of_squares_run(const void* from, const double* means, double* sums, int64_t count) {
  const T* in = static_cast<const T*>(from);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    double off = static_cast<double>(in[i]) - means[i];
    sums[i] += off * off;
  }
}

template <bool largest, typename T>
void add_most_run(const void* from, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T* best = static_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) best[i] = more<largest>(best[i], in[i]);
}

template <typename T>
void fill_any(Loops& loops, int kind) {
  loops.most[0][kind] = most_run<false, T>;
  loops.most[1][kind] = most_run<true, T>;
  loops.add_most[0][kind] = add_most_run<false, T>;
  loops.add_most[1][kind] = add_most_run<true, T>;
  loops.find[kind] = find_run<T>;
  if constexpr (!std::is_floating_point_v<T>) loops.sum_integers[kind] = sum_integers_run<T>;
  if constexpr (std::is_floating_point_v<T>) {
    loops.sum[kind] = sum_run<T>;
    loops.sum_of_squares[kind] = sum_of_squares_run<T>;
    loops.product[kind] = product_run<T>;
    loops.dot[kind] = dot_run<T>;
    loops.add_sums[kind] = add_sums_run<T>;
    loops.add_sums_of_squares[kind] = add_sums_of_squares_run<T>;
  }
}

}  // namespace

void fill_reductions(Loops& loops) {
  fill_any<float>(loops, kF32);
  fill_any<double>(loops, kF64);
  fill_any<int64_t>(loops, kI64);
  fill_any<int32_t>(loops, kI32);
  fill_any<uint8_t>(loops, kU8);
}

}  // namespace flow::cpu::FLOW_ISA
