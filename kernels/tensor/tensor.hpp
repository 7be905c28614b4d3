// A tensor: a view, the memory of its elements, and its part in autograd. A Tensor is a handle;
// copies of it are the same tensor. One thread uses a tensor at a time.
//
// Dimensions count from 0 here. A user's error is thrown as a Failure that names the operation and
// the shapes.
#pragma once
#include <string>
#include <vector>

#include "kernels/tensor/runtime.hpp"

namespace flow::tensors {

class Node;
struct Body;

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(RefPtr<Body> body) : body_(std::move(body)) {}
  Tensor(const View& view, RefPtr<Storage> storage);
  /// Uninitialized elements.
  static Tensor empty(DType dtype, const Shape& shape, const Device& device = {});
  /// The same, [rows, columns], with a distance of `pitch` elements between the rows. The elements
  /// between them belong to no tensor: a kernel may write them.
  static Tensor empty_rows(DType dtype, int64_t rows, int64_t columns, int64_t pitch,
                           const Device& device);
  static Tensor full(DType dtype, const Shape& shape, Number value, const Device& device = {});
  static Tensor zeros(DType dtype, const Shape& shape, const Device& device = {}) {
    return full(dtype, shape, Number::of(int64_t{0}), device);
  }

  explicit operator bool() const { return bool(body_); }
  bool operator==(const Tensor& other) const { return body_ == other.body_; }
  const RefPtr<Body>& body() const { return body_; }

  const View& view() const;
  const RefPtr<Storage>& storage() const;
  DType dtype() const { return view().dtype; }
  const Shape& shape() const { return view().shape; }
  int rank() const { return view().shape.rank; }
  int64_t size(int dim) const { return view().shape[dim]; }
  int64_t count() const { return view().count(); }
  const Device& device() const { return storage()->device(); }

  /// The tensor, or one that it was computed from, wants a gradient.
  bool is_tracked() const;
  /// The user requested this tensor's gradient: it is a leaf.
  bool wants_gradient() const;
  bool is_parameter() const;
  void want_gradient(bool wanted);
  /// The sum of gradients so far; an empty handle before the first.
  Tensor gradient() const;
  void set_gradient(const Tensor& gradient);
  const RefPtr<Node>& node() const;
  void set_node(RefPtr<Node> node);
  /// The same elements without a part in autograd.
  Tensor detached() const;

  /// Call before an in-place write: rejects writes that autograd cannot follow, and read-only
  /// memory.
  void note_write(const char* operation) const;

 private:
  RefPtr<Body> body_;
};

struct Body : RefCounted {
  View view;
  RefPtr<Storage> storage;
  RefPtr<Node> node;  // null for a leaf and for untracked tensors
  RefPtr<Body> gradient;
  bool wants_gradient = false;
  bool is_parameter =
      false;  // it wants a gradient, or wanted one: a frozen parameter is not a buffer
  /// Of a parameter on a GPU: its elements in the type of mixed precision, as they were at a
  /// version of the storage. It may have more rows, of zeros.
  RefPtr<Body> rounded;
  uint32_t rounded_version = 0;
};

std::string text_of(const Tensor& tensor);  // "tensor f32 [2, 3]", " on cuda:0"

inline const View& Tensor::view() const { return body_->view; }
inline const RefPtr<Storage>& Tensor::storage() const { return body_->storage; }
inline bool Tensor::wants_gradient() const { return body_->wants_gradient; }
inline bool Tensor::is_parameter() const { return body_->is_parameter; }
inline const RefPtr<Node>& Tensor::node() const { return body_->node; }
inline bool Tensor::is_tracked() const { return body_->wants_gradient || bool(body_->node); }

}  // namespace flow::tensors
