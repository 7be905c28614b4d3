// Blobs as a turn sees them: those that turns have staged for a commit, and those in the state.
#pragma once
#include <memory>
#include <string>

#include "engine/runs/state_references.hpp"
#include "engine/runtime/commits.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Used by the turn's thread.
class TurnBlobs {
 public:
  TurnBlobs(Blobs& stored, Commits& commits, StopCause& stop)
      : stored_(stored), commits_(commits), stop_(stop) {}

  /// Adds a blob to the open batch. A large one is a file, durable on return. An error of the disk
  /// stops the engine.
  void stage(const Digest& digest, std::string bytes);
  /// A blob that is staged and may not be in the store yet; else null.
  const std::string* staged(const Digest& digest) const;
  /// Verified against the digest. Deletes a damaged file, unless keep_damaged(true) was called.
  Result<std::string> read(const Digest& digest) const;
  /// While set, read() deletes nothing: a preview only looks.
  void keep_damaged(bool keep) { keeps_damaged_ = keep; }
  /// The calls of a dynamic task; null if they cannot be read.
  std::shared_ptr<const PlanFragment> fragment(const Digest& digest) const;

  /// Whether all of these blobs are there, as far as names and sizes tell.
  bool has_all(const References& needed) const;
  /// Whether one of these blobs is lost or damaged. A blob that cannot be read now may not be.
  bool is_missing_any(const References& needed) const;
  /// Whether the result of a cache entry is there, with the blobs that it refers to; of a dynamic
  /// task also its calls and the blobs that they refer to.
  bool holds_result_of(const CacheEntry& entry) const;

 private:
  Blobs& stored_;
  Commits& commits_;
  StopCause& stop_;
  bool keeps_damaged_ = false;
};

}  // namespace flow
