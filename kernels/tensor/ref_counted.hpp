// Reference-counted objects: tensors, their memory, and autograd's nodes.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

namespace flow::tensors {

/// The last Ref destroys the object. Refs to one object may be used by several threads.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void hold() { references_.fetch_add(1, std::memory_order_relaxed); }
  /// As hold(), unless the object is being destroyed: for an owner of a plain pointer to it.
  bool try_hold() {
    uint32_t count = references_.load(std::memory_order_relaxed);
    while (count != 0)
      if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire))
        return true;
    return false;
  }
  void drop() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  bool is_shared() const { return references_.load(std::memory_order_acquire) > 1; }

 private:
  std::atomic<uint32_t> references_{0};
};

template <typename T>
class RefPtr {
 public:
  RefPtr() = default;
  explicit RefPtr(T* object) : object_(object) {
    if (object_ != nullptr) object_->hold();
  }
  RefPtr(const RefPtr& other) : RefPtr(other.object_) {}
  RefPtr(RefPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <typename U>
  RefPtr(const RefPtr<U>& other) : RefPtr(other.get()) {}
  RefPtr& operator=(RefPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RefPtr() {
    if (object_ != nullptr) object_->drop();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const RefPtr& other) const { return object_ == other.object_; }

 private:
  T* object_ = nullptr;
};

template <typename T, typename... Args>
RefPtr<T> make(Args&&... args) {
  return RefPtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace flow::tensors
