// Which workers have which large blobs: the head redirects downloads to them, and the scheduler
// uses it for data locality. It holds the workers' last reports, so a worker may have evicted a
// blob already; a failed download falls back to the head.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/cluster/transfer/worker_messages.hpp"

namespace flow::cluster {

/// Maximum number of (blob, worker) entries; the least recently requested blobs are dropped.
constexpr size_t kHoldingsMax = 65'536;
/// Maximum number of workers that download from one worker at a time. Each worker that has
/// downloaded a blob serves it too, and so does the head.
constexpr size_t kDownloadsPerSourceMax = 4;
/// Number of sources named in one redirect; if the first fails, the next may have the blob.
constexpr size_t kRedirectSourcesMax = 3;

/// Thread-safe.
class BlobDirectory {
 public:
  using WorkerKey = uint64_t;

  /// Registers a session with a worker.
  WorkerKey enter();
  /// No effect after leave(). `address`: where peers download from this worker; "": nowhere.
  void join(WorkerKey worker, const std::string& name, const std::string& address);
  void leave(WorkerKey worker);
  void update(WorkerKey worker, const BlobInventoryDelta& delta);

  /// Addresses from which `requester` should download the blob, in order; none: from the head.
  Addresses locate(WorkerKey requester, const Digest& digest);
  /// Bytes of a set of blobs: those that any worker has, and those of each worker by name.
  struct ByteCounts {
    uint64_t all = 0;
    std::vector<std::pair<std::string, uint64_t>> at;
  };
  ByteCounts bytes_of(const std::vector<BlobInfo>& blobs) const;
  /// The last report of a worker; empty if there is none of that name.
  Traffic traffic_of(const std::string& name) const;

 private:
  struct Entry {
    uint64_t size = 0, used = 0;
    std::vector<WorkerKey> holders;
  };
  struct KnownWorker {
    std::string name, address;
    Traffic traffic;
    std::unordered_set<Digest, DigestHash> has;
    // Number of blobs that each requester downloads.
    std::map<WorkerKey, size_t> requesters;
    std::deque<std::pair<Digest, WorkerKey>> is_fetching;  // downloads in progress: blob and source
    uint64_t named = 0;                                    // counter value when it was last named
  };
  void hold(WorkerKey worker, const BlobInfo& blob);
  void remove(WorkerKey worker, const Digest& digest);
  void forget(const Digest& digest);
  void end_fetch(WorkerKey requester, size_t which);

  mutable std::mutex mutex_;
  std::map<WorkerKey, KnownWorker> workers_;  // of open sessions; entries leave in leave()
  // Up to kHoldingsMax entries; the least recently requested leaves first.
  std::unordered_map<Digest, Entry, DigestHash> blobs_;
  std::map<uint64_t, Digest> by_use_;
  size_t holdings_ = 0;
  uint64_t last_ = 0;  // counter of sessions, uses and redirects
};

}  // namespace flow::cluster
