// A strided window on somebody's memory: what every kernel takes and fills. Owns nothing.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "flow/value.hpp"

namespace flow::cpu {

constexpr int kRankMax = 8;

struct Shape {
  int rank = 0;
  std::array<int64_t, kRankMax> sizes{};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    for (int64_t size : list) sizes[rank++] = size;
  }
  int64_t operator[](int dim) const { return sizes[dim]; }
  int64_t& operator[](int dim) { return sizes[dim]; }
  void push(int64_t size) { sizes[rank++] = size; }
  int64_t count() const {  // elements
    int64_t product = 1;
    for (int dim = 0; dim < rank; dim++) product *= sizes[dim];
    return product;
  }
  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (int dim = 0; dim < rank; dim++)
      if (sizes[dim] != other.sizes[dim]) return false;
    return true;
  }
};
std::string text_of(const Shape& shape);  // "[2, 3]"

struct View {
  DType dtype = DType::f32;
  Shape shape;
  std::array<int64_t, kRankMax> strides{};  // in elements; 0 repeats
  char* data = nullptr;                     // of the first element

  int rank() const { return shape.rank; }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return static_cast<size_t>(count()) * dtype_size(dtype); }
  template <typename T>
  T* at() const {
    return reinterpret_cast<T*>(data);
  }
};

/// Dense row-major.
View dense(DType dtype, const Shape& shape, void* data);
bool is_dense(const View& view);
/// Elements `first`, first + step, … (0-based) of `dim`.
View narrow(View view, int dim, int64_t first, int64_t length, int64_t step = 1);
/// The view at `index` (0-based) of `dim`, which goes away.
View select(const View& view, int dim, int64_t index);
View swap_dims(View view, int a, int b);
/// The shape that both stretch to, NumPy's rule; false where there is none.
bool broadcast(const Shape& a, const Shape& b, Shape& out);
/// `view` stretched to `shape`, which `broadcast` allowed.
View stretch(const View& view, const Shape& shape);

/// Calls f(rows, length) for every innermost run of `n` views of one shape; `strides(i)` of the run
/// are in `views[i].strides[0]` of what `collapse` gives. Neighbouring dimensions that all views
/// walk alike are one run.
template <size_t n, typename F>
void for_each_run(std::array<View, n> views, F f) {
  // Merge dimensions from the right wherever every view allows it.
  Shape shape;
  std::array<std::array<int64_t, kRankMax>, n> strides{};  // innermost first
  for (int dim = views[0].rank() - 1; dim >= 0; dim--) {
    int64_t size = views[0].shape[dim];
    if (size == 1) continue;
    bool merge = shape.rank > 0;
    for (size_t i = 0; i < n && merge; i++)
      merge = views[i].strides[dim] == strides[i][shape.rank - 1] * shape[shape.rank - 1];
    if (merge) {
      shape[shape.rank - 1] *= size;
      continue;
    }
    for (size_t i = 0; i < n; i++) strides[i][shape.rank] = views[i].strides[dim];
    shape.push(size);
  }
  if (views[0].count() == 0) return;
  std::array<int64_t, n> sizes, run_strides{};
  std::array<char*, n> at;
  for (size_t i = 0; i < n; i++) {
    sizes[i] = static_cast<int64_t>(dtype_size(views[i].dtype));
    at[i] = views[i].data;
    run_strides[i] = strides[i][0];
  }
  int64_t length = shape.rank > 0 ? shape[0] : 1;
  std::array<int64_t, kRankMax> index{};
  for (;;) {
    f(at, run_strides, length);
    int dim = 1;
    for (; dim < shape.rank; dim++) {
      for (size_t i = 0; i < n; i++) at[i] += strides[i][dim] * sizes[i];
      if (++index[dim] < shape[dim]) break;
      for (size_t i = 0; i < n; i++) at[i] -= strides[i][dim] * sizes[i] * shape[dim];
      index[dim] = 0;
    }
    if (dim >= shape.rank) return;
  }
}

}  // namespace flow::cpu
