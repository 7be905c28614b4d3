// A reference-counted view of immutable bytes: a string, a tensor's memory, a mapped file.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace flow {

class Bytes {
 public:
  Bytes() = default;
  Bytes(std::nullptr_t) {}
  Bytes(std::shared_ptr<const std::string> text)
      : view_(text == nullptr ? std::string_view() : std::string_view(*text)),
        keep_(std::move(text)) {}
  Bytes(std::shared_ptr<std::string> text)
      : Bytes(std::shared_ptr<const std::string>(std::move(text))) {}
  /// `keep` owns the memory of `view`. With `is_own` the last holder may write to it: no other
  /// memory and no file shares it.
  Bytes(std::string_view view, std::shared_ptr<const void> keep, bool is_own = false)
      : view_(view), keep_(std::move(keep)), is_own_(is_own) {}

  bool operator==(std::nullptr_t) const { return keep_ == nullptr; }
  const std::string_view& operator*() const { return view_; }
  const std::string_view* operator->() const { return &view_; }
  const std::shared_ptr<const void>& keep() const { return keep_; }
  bool is_own() const { return is_own_; }
  /// A part of the bytes; it shares ownership.
  Bytes part(size_t at, size_t size) const { return {view_.substr(at, size), keep_, is_own_}; }

 private:
  std::string_view view_;
  std::shared_ptr<const void> keep_;
  bool is_own_ = false;
};

}  // namespace flow
