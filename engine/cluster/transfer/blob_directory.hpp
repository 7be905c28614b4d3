// The directory records which workers have which large blobs. The head redirects downloads to these
// workers, and the scheduler uses the directory for data locality. An entry may be out of date,
// because a worker may have evicted a blob since its last report; a failed download falls back to
// the head.
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

/// Maximum number of (blob, worker) pairs; beyond it the least recently requested blobs are
/// removed.
constexpr size_t kHoldingsMax = 65'536;
/// Maximum number of workers that download from one worker at a time. A few are enough: each worker
/// that has downloaded a blob is another source, and so is the head.
constexpr size_t kDownloadsPerSourceMax = 4;
/// Maximum number of sources in one redirect; the downloader tries the next one if a source fails.
constexpr size_t kRedirectSourcesMax = 3;

/// Thread-safe.
class BlobDirectory {
 public:
  using WorkerKey = uint64_t;  // of a session with a worker

  /// Registers a session with a worker.
  WorkerKey enter();
  /// Sets the worker's name and the address from which peers download; "": peers cannot. Has no
  /// effect after leave().
  void join(WorkerKey worker, const std::string& name, const std::string& address);
  /// Removes the session and everything that its worker reported.
  void leave(WorkerKey worker);
  /// Applies a worker's report.
  void update(WorkerKey worker, const BlobInventoryDelta& delta);

  /// Addresses from which `requester` should download the blob, in the order to try them; empty:
  /// from the head. The download counts as in progress at the first source until the requester
  /// reports the blob or asks again.
  Addresses locate(WorkerKey requester, const Digest& digest);
  struct ByteCounts {
    uint64_t all = 0;  // bytes of the blobs that at least one worker has, each counted once
    std::vector<std::pair<std::string, uint64_t>> at;  // by worker's name: bytes of those it has
  };
  ByteCounts bytes_of(const std::vector<BlobInfo>& blobs) const;
  /// The traffic that the worker last reported; zeros if no worker has that name.
  Traffic traffic_of(const std::string& name) const;

 private:
  struct Entry {
    uint64_t size = 0;
    uint64_t used = 0;  // counter value at the last request
    std::vector<WorkerKey> holders;
  };
  struct KnownWorker {
    std::string name, address;
    Traffic traffic;
    std::unordered_set<Digest, DigestHash> has;
    // Number of blobs that each requester downloads from this worker.
    std::map<WorkerKey, size_t> requesters;
    std::deque<std::pair<Digest, WorkerKey>> fetches;  // downloads in progress: blob and source
    uint64_t redirected = 0;  // counter value at the last redirect to this worker
  };
  void hold(WorkerKey worker, const BlobInfo& blob);
  void remove(WorkerKey worker, const Digest& digest);
  void forget(const Digest& digest);
  void end_fetch(WorkerKey requester, size_t which);

  mutable std::mutex mutex_;
  std::map<WorkerKey, KnownWorker> workers_;  // one per open session; leave() removes it
  // With at most kHoldingsMax holders in all; the least recently requested blob is removed first.
  std::unordered_map<Digest, Entry, DigestHash> blobs_;
  std::map<uint64_t, Digest> by_use_;  // by Entry::used
  size_t holdings_ = 0;                // (blob, worker) pairs
  uint64_t last_ = 0;  // newest value of the counter of sessions, requests and redirects
};

}  // namespace flow::cluster
