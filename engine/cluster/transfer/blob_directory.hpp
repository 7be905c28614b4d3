// Which of a head's workers have large content: whom one that wants it may ask, and where a task's
// inputs lie. It is what the workers said last: who lets go of something may be asked for it still,
// and whoever asks in vain turns to the head.
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

/// Of content and worker. Of what was asked for longest ago nothing is known beyond that.
constexpr size_t kHoldingsMax = 65'536;
/// Workers that are sent to one other at a time: of a content that many want each becomes one that
/// has it, and the head is one too.
constexpr size_t kAskersMax = 4;
/// Workers that are named to one that asks: where the first does not give it, the next may.
constexpr size_t kNamedMax = 3;

/// Thread-safe.
class BlobDirectory {
 public:
  using WorkerKey = uint64_t;

  /// For a session with a worker.
  WorkerKey enter();
  /// Nothing where it has left. `address`: where others ask this one; "" nowhere.
  void join(WorkerKey worker, const std::string& name, const std::string& address);
  void leave(WorkerKey worker);
  void update(WorkerKey worker, const BlobInventoryDelta& delta);

  /// Whom `asker` is to ask, in this order; none where it is to come from the head.
  Addresses locate(WorkerKey asker, const Digest& digest);
  /// Of these contents: what any worker has, and what each has, by its name.
  struct ByteCounts {
    uint64_t all = 0;
    std::vector<std::pair<std::string, uint64_t>> at;
  };
  ByteCounts bytes_of(const std::vector<BlobInfo>& blobs) const;
  /// What a worker said last; nothing where there is none of that name.
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
    std::map<WorkerKey, size_t> askers;                    // with how many contents
    std::deque<std::pair<Digest, WorkerKey>> is_fetching;  // from whom
    uint64_t named = 0;                                    // when it was named first last
  };
  void hold(WorkerKey worker, const BlobInfo& blob);
  void remove(WorkerKey worker, const Digest& digest);
  void forget(const Digest& digest);
  void end_fetch(WorkerKey asker, size_t which);

  mutable std::mutex mutex_;
  std::map<WorkerKey, KnownWorker> workers_;  // of sessions that are there: they leave in leave()
  // Up to kHoldingsMax, what was asked for longest ago leaves first.
  std::unordered_map<Digest, Entry, DigestHash> blobs_;
  std::map<uint64_t, Digest> by_use_;
  size_t holdings_ = 0;
  uint64_t last_ = 0;  // counts members, uses and namings
};

}  // namespace flow::cluster
