// Checkpoints on a worker. While a rank uses a checkpoint, the file is at its path below the
// folder, where the rank's process reads or wrote it, and peers can download it from there. A
// checkpoint that no rank uses and that may be needed again is an ordinary blob, which can be
// evicted. A run without attempts on this worker has no such files.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/transfer/blob_cache.hpp"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

/// The checkpoints at their paths. One thread at a time.
class PlacedCheckpoints {
 public:
  struct PlacedCheckpoint {
    Digest digest;
    std::string file;  // below the cache's folder
  };
  explicit PlacedCheckpoints(std::shared_ptr<BlobCache> store) : store_(std::move(store)) {}

  /// The rank starts from this checkpoint, or has saved it, in place of its former one. Returns the
  /// digest of the former one if no rank uses it any more.
  std::optional<Digest> place(const RankId& rank, PlacedCheckpoint placed);
  struct RemovedCheckpoint {
    std::optional<Digest> digest;
    std::optional<Digest> kept;  // an ordinary blob now
    std::string path;            // path of the file to remove; "": none
  };
  /// The rank has ended; with `is_over` it is not started again.
  RemovedCheckpoint end_rank(const RankId& rank, bool is_over);
  bool has(const Digest& digest) const;
  bool has_of(const core::RunId& run) const;
  void forget(const core::RunId& run);
  std::vector<BlobInfo> large() const;

 private:
  bool is_used(const std::string& file) const;

  const std::shared_ptr<BlobCache> store_;
  std::map<RankId, PlacedCheckpoint>
      placed_;  // of present ranks: entries leave in end_rank() and forget()
};

/// Replicas of checkpoints that no rank on this worker uses: per gang the newest one that another
/// worker saved (or its predecessor during the download), and per unit the one that its attempt
/// here left. They are not pinned: they only save time. One thread at a time.
class CheckpointReplicas {
 public:
  /// Maximum number of gangs. Checkpoints of further ones are ordinary blobs.
  static constexpr size_t kMax = 256;
  struct NextStep {
    std::optional<Digest> fetch;
    std::vector<Digest> evict;
  };
  /// Whether to download it now.
  bool should_fetch(const core::AttemptId& of, const Digest& digest);
  /// The download has ended; `is_here`: with success.
  NextStep on_fetched(const core::AttemptId& of, const Digest& digest, bool is_here);
  /// The checkpoint is present. Returns the blobs to release.
  std::vector<Digest> keep(const core::AttemptId& of, const Digest& digest);
  /// The unit is not started again. Returns the blobs to release.
  std::vector<Digest> drop(const core::AttemptId& of);
  std::vector<Digest> drop_run(const core::RunId& run);

 private:
  using UnitKey = std::pair<core::RunId, core::UnitId>;
  struct Replica {
    bool is_fetching = false, is_over = false;
    std::vector<Digest> kept;  // one, or none
    std::optional<Digest> next;
  };
  Replica& of_unit(const core::AttemptId& of);

  std::map<UnitKey, Replica> all_;  // up to kMax
};

}  // namespace flow::cluster
