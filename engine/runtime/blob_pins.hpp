// Which blobs garbage collection keeps although no run refers to them yet.
#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "flow/digest.hpp"

namespace flow {

/// Thread-safe.
class BlobPins {
 public:
  /// While it lives its blobs are kept, also blobs that are stored later. Must not outlive
  /// BlobPins.
  class Pin {
   public:
    Pin(BlobPins& pins, std::vector<Digest> digests) : pins_(pins), digests_(std::move(digests)) {
      std::lock_guard lock(pins_.mutex_);
      pins_.digests_.insert(digests_.begin(), digests_.end());
    }
    ~Pin() {
      std::lock_guard lock(pins_.mutex_);
      for (const Digest& digest : digests_) pins_.digests_.erase(pins_.digests_.find(digest));
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    BlobPins& pins_;
    const std::vector<Digest> digests_;
  };
  std::unique_ptr<Pin> pin(std::vector<Digest> digests) {
    return std::make_unique<Pin>(*this, std::move(digests));
  }
  bool empty() const {
    std::lock_guard lock(mutex_);
    return digests_.empty();
  }
  std::vector<Digest> all() const {
    std::lock_guard lock(mutex_);
    return {digests_.begin(), digests_.end()};
  }

  /// While one is held nothing is collected: blobs may be stored before the run that needs them.
  std::shared_lock<std::shared_mutex> hold() { return std::shared_lock(collecting_); }
  /// For a collection. Blocks until none is held.
  std::unique_lock<std::shared_mutex> lock_for_collection() {
    return std::unique_lock(collecting_);
  }

 private:
  std::shared_mutex collecting_;
  mutable std::mutex mutex_;
  std::multiset<Digest> digests_;  // entries leave with their Pin
};

}  // namespace flow
