// Lists the blobs to which parts of a state refer: plans, calls of dynamic tasks, cache entries,
// runs. Garbage collection keeps these blobs; cache hits and `flow resume` check that they exist.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/rows.hpp"
#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

class References {
 public:
  /// Returns the bytes of a blob.
  using ReadBlob = std::function<Result<std::string>(const Digest&)>;
  struct Blob {
    std::optional<uint64_t> size;  // in bytes, if known
    bool is_in_place = true;       // every reference reads a file outside the state
    bool is_followed = false;      // references in the blob itself are listed too
  };
  using Blobs = std::unordered_map<Digest, Blob, DigestHash>;

  explicit References(ReadBlob read) : read_(std::move(read)) {}

  void add(const Digest& digest);
  void add(const Value& value);              // its tensors and files
  void add_encoded(std::string_view bytes);  // the same for an encoded value
  /// Adds a blob that is an encoded value, and the blobs to which that value refers.
  void add_stored(const Digest& digest);
  void add(const Plan& plan);
  void add(const PlanFragment& fragment);
  void add_fragment(const Digest& digest);
  void add(const CacheEntry& entry);
  /// Adds the run's results, signals, plan and calls of dynamic tasks.
  void add(const core::Run& run);

  bool has(const Digest& digest) const { return blobs_.contains(digest); }
  const Blobs& blobs() const { return blobs_; }
  /// Blobs that refer to others and could not be read.
  const std::vector<Digest>& unread() const { return unread_; }

 private:
  Blob& note(const Digest& digest, std::optional<uint64_t> size, bool is_in_place);

  ReadBlob read_;
  Blobs blobs_;
  std::vector<Digest> unread_;
};

}  // namespace flow
