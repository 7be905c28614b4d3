// Checkpoints on a worker. While a rank needs one it lies at its place, where its process reads or
// wrote it, and others may have it from there. What is of no rank's any more, and may be asked for
// again, is content like other: it goes when room is needed. Of a run of which nothing runs here
// nothing lies at such a place.
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

/// Those at their places. One thread at a time.
class PlacedCheckpoints {
 public:
  struct PlacedCheckpoint {
    Digest digest;
    std::string file;  // below the store's folder
  };
  explicit PlacedCheckpoints(std::shared_ptr<BlobCache> store) : store_(std::move(store)) {}

  /// The rank is given this one, or has saved it, in place of another: that one's digest, where
  /// nobody has it any more.
  std::optional<Digest> take(const RankId& rank, PlacedCheckpoint placed);
  struct RemovedCheckpoint {
    std::optional<Digest> digest;
    std::optional<Digest> kept;  // what is content like other now
    std::string path;            // what is to be removed: "" nothing
  };
  /// The rank has ended; with `is_over` nobody begins it anew.
  RemovedCheckpoint leave(const RankId& rank, bool is_over);
  bool has(const Digest& digest) const;
  bool has_of(const core::RunId& run) const;
  void forget(const core::RunId& run);
  std::vector<BlobInfo> large() const;

 private:
  bool is_used(const std::string& file) const;

  const std::shared_ptr<BlobCache> store_;
  std::map<RankId, PlacedCheckpoint>
      placed_;  // of ranks that are here: they leave in leave(), forget()
};

/// Those that no rank here needs: of each gang the newest that was saved elsewhere, or the one
/// before it while that is on its way, and of each unit what its attempt here left. Nothing holds
/// them: they are there to save time. One thread at a time.
class Replicas {
 public:
  /// Gangs. Of one beyond that nothing is known any more: what is here of it is content like other.
  static constexpr size_t kMax = 256;
  struct NextStep {
    std::optional<Digest> fetch;
    std::vector<Digest> evict;
  };
  /// Whether to fetch it now.
  bool should_fetch(const core::AttemptId& of, const Digest& digest);
  /// What was to be fetched of it is here, or can't be had.
  NextStep on_fetched(const core::AttemptId& of, const Digest& digest, bool is_here);
  /// It is here, whoever saved it. What to let go of.
  std::vector<Digest> keep(const core::AttemptId& of, const Digest& digest);
  /// Nobody begins it anew. What to let go of.
  std::vector<Digest> drop(const core::AttemptId& of);
  std::vector<Digest> drop_run(const core::RunId& run);

 private:
  using Unit = std::pair<core::RunId, core::UnitId>;
  struct Replica {
    bool is_fetching = false, is_over = false;
    std::vector<Digest> kept;  // one, or none
    std::optional<Digest> next;
  };
  Replica& of_unit(const core::AttemptId& of);

  std::map<Unit, Replica> all_;  // up to kMax
};

}  // namespace flow::cluster
