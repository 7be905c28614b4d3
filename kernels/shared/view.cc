// Shapes and strides: narrowing, selecting, transposing and broadcasting copy nothing.
#include "kernels/shared/view.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "flow/result.hpp"

namespace flow::kernels {

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

bool has_dense_rows(const View& view) {
  return view.rank() == 0 || view.shape.last() <= 1 || view.strides[view.rank() - 1] == 1;
}

bool overlaps_itself(const View& view) {
  if (view.count() == 0) return false;
  for (int a = 0; a < view.rank(); a++) {
    if (view.shape[a] < 2) continue;
    int64_t stride = std::abs(view.strides[a]);
    if (stride == 0) return true;
    for (int b = 0; b < a; b++) {
      if (view.shape[b] < 2) continue;
      // Steps of both dimensions that first reach the same address.
      int64_t other = std::abs(view.strides[b]), common = std::gcd(stride, other);
      if (other / common < view.shape[a] && stride / common < view.shape[b]) return true;
    }
  }
  return false;
}

View narrow(View view, int dim, int64_t first, int64_t length, int64_t step) {
  int64_t last = first + (length - 1) * step;
  FLOW_CHECK(length == 0 ||
             (std::min(first, last) >= 0 && std::max(first, last) < view.shape[dim]));
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

View permute(const View& view, const int* order) {
  View out{view.dtype, {}, {}, view.data};
  for (int dim = 0; dim < view.rank(); dim++) {
    out.strides[dim] = view.strides[order[dim]];
    out.shape.push(view.shape[order[dim]]);
  }
  return out;
}

View unsqueeze(const View& view, int dim) {
  FLOW_CHECK(view.rank() < kRankMax);
  View out{view.dtype, {}, {}, view.data};
  for (int at = 0; at <= view.rank(); at++) {
    if (at == dim) out.shape.push(1);
    if (at == view.rank()) break;
    out.strides[out.shape.rank] = view.strides[at];
    out.shape.push(view.shape[at]);
  }
  return out;
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

View broadcast_to(const View& view, const Shape& shape) {
  View out{view.dtype, shape, {}, view.data};
  for (int back = 1; back <= view.rank(); back++) {
    int from = view.rank() - back, to = shape.rank - back;
    out.strides[to] = view.shape[from] == shape[to] ? view.strides[from] : 0;
  }
  return out;
}

// Adjacent dimensions that are contiguous form one run; each new dimension is split off a run.
bool reshape(const View& view, const Shape& shape, View& out) {
  out = dense(view.dtype, shape, view.data);
  if (is_dense(view)) return true;
  int to = shape.rank - 1;
  for (int from = view.rank() - 1; from >= 0;) {
    if (view.shape[from] == 1) {
      from--;
      continue;
    }
    int64_t stride = view.strides[from], run = view.shape[from--];
    while (from >= 0 && (view.shape[from] == 1 || view.strides[from] == stride * run))
      run *= view.shape[from--];
    while (to >= 0 && run > 1) {
      if (run % shape[to] != 0) return false;
      out.strides[to] = stride;
      stride *= shape[to];
      run /= shape[to--];
    }
    if (run != 1) return false;
  }
  return true;
}

}  // namespace flow::kernels
