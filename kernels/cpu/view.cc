// Shapes and strides: narrowing, selecting, transposing and stretching copy nothing.
#include "kernels/cpu/view.hpp"

#include <algorithm>

namespace flow::cpu {

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (int dim = 0; dim < shape.rank; dim++) {
    if (dim > 0) text += ", ";
    text += std::to_string(shape[dim]);
  }
  return text + "]";
}

View dense(DType dtype, const Shape& shape, void* data) {
  View view{dtype, shape, {}, static_cast<char*>(data)};
  int64_t stride = 1;
  for (int dim = shape.rank - 1; dim >= 0; dim--) {
    view.strides[dim] = stride;
    stride *= std::max<int64_t>(shape[dim], 1);
  }
  return view;
}

bool is_dense(const View& view) {
  int64_t stride = 1;
  for (int dim = view.rank() - 1; dim >= 0; dim--) {
    if (view.shape[dim] != 1 && view.strides[dim] != stride) return view.count() == 0;
    stride *= view.shape[dim];
  }
  return true;
}

View narrow(View view, int dim, int64_t first, int64_t length, int64_t step) {
  FLOW_CHECK(length == 0 || (first >= 0 && first + (length - 1) * step < view.shape[dim]));
  if (length > 0)
    view.data += first * view.strides[dim] * static_cast<int64_t>(dtype_size(view.dtype));
  view.shape[dim] = length;
  view.strides[dim] *= step;
  return view;
}

View select(const View& view, int dim, int64_t index) {
  View from = narrow(view, dim, index, 1);
  View out{view.dtype, {}, {}, from.data};
  for (int at = 0; at < view.rank(); at++) {
    if (at == dim) continue;
    out.strides[out.shape.rank] = view.strides[at];
    out.shape.push(view.shape[at]);
  }
  return out;
}

View swap_dims(View view, int a, int b) {
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.strides[a], view.strides[b]);
  return view;
}

bool broadcast(const Shape& a, const Shape& b, Shape& out) {
  out.rank = std::max(a.rank, b.rank);
  for (int back = 1; back <= out.rank; back++) {
    int64_t left = back <= a.rank ? a[a.rank - back] : 1;
    int64_t right = back <= b.rank ? b[b.rank - back] : 1;
    if (left != right && left != 1 && right != 1) return false;
    out[out.rank - back] = left == 1 ? right : left;
  }
  return true;
}

View stretch(const View& view, const Shape& shape) {
  View out{view.dtype, shape, {}, view.data};
  for (int back = 1; back <= view.rank(); back++) {
    int from = view.rank() - back, to = shape.rank - back;
    out.strides[to] = view.shape[from] == shape[to] ? view.strides[from] : 0;
  }
  return out;
}

}  // namespace flow::cpu
