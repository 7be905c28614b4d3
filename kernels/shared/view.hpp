// A strided view of memory: the operand and result of every kernel. It owns nothing, is trivially
// copyable, and is passed to a device by value.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>

#include "flow/dtype.hpp"
#include "kernels/shared/hd.hpp"

namespace flow::kernels {

constexpr int kRankMax = 8;

struct Shape {
  int rank = 0;
  int64_t sizes[kRankMax] = {};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    for (int64_t size : list) sizes[rank++] = size;
  }
  FLOW_HD int64_t operator[](int dim) const { return sizes[dim]; }
  FLOW_HD int64_t& operator[](int dim) { return sizes[dim]; }
  int64_t last() const { return sizes[rank - 1]; }
  void push(int64_t size) { sizes[rank++] = size; }
  FLOW_HD int64_t count() const {  // elements
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
  int64_t strides[kRankMax] = {};  // in elements; 0 repeats, negative goes backwards
  char* data = nullptr;            // of the first element, on the operation's device

  int rank() const { return shape.rank; }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return static_cast<size_t>(count()) * dtype_size(dtype); }
  template <typename T>
  FLOW_HD T* at() const {
    return reinterpret_cast<T*>(data);
  }
};

/// Dense row-major.
View dense(DType dtype, const Shape& shape, void* data);
bool is_dense(const View& view);
/// Whether each row of the last dimension has no gaps (or has one element).
bool has_dense_rows(const View& view);
/// Whether two elements have one address: a dimension repeats, or two dimensions overlap.
bool overlaps_itself(const View& view);
/// Elements `first`, first + step, … (0-based) of `dim`; `step` may be negative, not 0.
View narrow(View view, int dim, int64_t first, int64_t length, int64_t step = 1);
/// The view at `index` (0-based) of `dim`, which is removed.
View select(const View& view, int dim, int64_t index);
View swap_dims(View view, int a, int b);
/// `order[i]` is the dimension that becomes dimension i.
View permute(const View& view, const int* order);
/// A new dimension of size 1 before `dim`.
View unsqueeze(const View& view, int dim);
/// The shape to which both broadcast, by NumPy's rule; false if there is none.
bool broadcast(const Shape& a, const Shape& b, Shape& out);
/// `view` broadcast to `shape`, which `broadcast` allowed.
View broadcast_to(const View& view, const Shape& shape);
/// `view` as `shape` of the same count without a copy; false if its strides do not allow that.
bool reshape(const View& view, const Shape& shape, View& out);

}  // namespace flow::kernels
