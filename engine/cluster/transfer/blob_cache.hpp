// The blobs of one side of a session: files under DIR/objects, where executors find them. A
// worker's folder has a size limit: blobs that can be downloaded again are evicted when space is
// needed, least recently used first.
//
// Pinned blobs are never evicted. An attempt pins its inputs and outputs until the head has
// acknowledged its report. Files that a running attempt creates or finds are not known to the cache
// before note_created(); they stay as long as some pin owner is older than they are. Therefore
// every attempt owns pins, possibly of no blob, before it begins. The folder must be on a local
// disk, because file times are compared with this machine's clock.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/blobs/blob_file.hpp"
#include "engine/blobs/references.hpp"
#include "engine/cluster/transfer/blob_index.hpp"
#include "engine/cluster/transfer/blob_reader.hpp"

namespace flow::cluster {

class BlobWriter;

/// Thread-safe. Functions access the disk unless they say "no disk".
class BlobCache : public std::enable_shared_from_this<BlobCache> {
 public:
  /// Opens a blob that is not under objects/; nothing if there is none.
  using Resolve = std::function<std::optional<Result<BlobReader>>(const Digest&)>;

  /// Opens a folder that belongs to this process and its executors; no executor may run yet.
  /// Removes incomplete files and indexes complete ones. `bytes_max` 0: no limit. Downloads are not
  /// synced: a blob that a power cut damaged is found by has(), which verifies files that this
  /// process has neither written nor read, and is downloaded again.
  static Result<std::shared_ptr<BlobCache>> open(const std::string& dir, uint64_t bytes_max);
  /// A cache over a head's state, which has its own garbage collection: nothing is evicted.
  /// `resolve` is called on any thread while this object lives.
  static std::shared_ptr<BlobCache> of_state(const std::string& dir, Resolve resolve);

  const std::string& dir() const { return dir_; }
  std::string path_of(const Digest& digest) const { return verified_.path(digest); }
  /// Whether the complete blob is under objects/; reads the file if it is not verified yet. Marks
  /// it as used.
  bool has(const BlobInfo& blob);
  /// Opens the blob under objects/, else a lent or resolved file. Not verified: the receiver
  /// verifies.
  Result<BlobReader> open_reader(const Digest& digest);
  /// Begins to write a blob of this size; evicts others if space is needed.
  Result<std::unique_ptr<BlobWriter>> begin(const Digest& digest, uint64_t size);
  /// Removes the blob if its content does not match its digest.
  void drop_if_damaged(const Digest& digest);

  /// Pins blobs until unpin(owner), also those that arrive later. No disk.
  void pin(const std::string& owner, const std::vector<Digest>& digests);
  /// Until unpin(owner) the blob is served from `path` if it is not under objects/. `may_change`:
  /// other programs may write to the file, as to an input that is read in place. No disk.
  void lend(const std::string& owner, const Digest& digest, const std::string& path,
            bool may_change);
  /// Releases the owner's pins. Returns whether the size exceeds the limit, so that trim() is due.
  /// No disk.
  bool unpin(const std::string& owner);
  std::vector<Digest> pinned_by(const std::string& owner) const;  // no disk
  /// Adds blobs that an attempt has created or found. No disk.
  void note_created(const std::vector<BlobInfo>& blobs);
  /// Evicts unpinned blobs until the size is within the limit.
  void trim();
  /// Evicts all unpinned blobs, because the disk is full.
  void evict_unpinned();
  /// Announces that the blob will be downloaded, linked to another path and then removed from
  /// objects/. Such uses are counted; the was_placed() of the last one removes it.
  void will_place(const Digest& digest);
  void was_placed(const Digest& digest);
  /// Links the blob to `file`, a path below the folder, and replaces an existing file. Durable in a
  /// state.
  Status link_to(const Digest& digest, const std::string& file);
  /// Links an existing `file` to objects/ under this digest. The digest is not verified here, but
  /// on use.
  bool adopt_placed(const Digest& digest, const std::string& file);
  /// Evicts the blob unless it is pinned.
  void evict(const Digest& digest);
  /// Moves the file or folder at this path below the folder aside, so that the caller can remove it
  /// later. Returns its new path; "" if there was nothing.
  std::string set_aside(const std::string& file);

  /// Large blobs in the cache, most recently used first.
  std::vector<BlobInfo> large(size_t count_max) const;
  /// `notify` is called for each large blob that is evicted, on any thread. A later call of this
  /// function replaces it.
  void on_evicted(std::function<void(const Digest&)> notify);

  struct Usage {
    uint64_t bytes = 0, pinned_bytes = 0, bytes_max = 0;
    uint64_t evicted = 0, evicted_bytes = 0;
  };
  Usage usage() const;

 private:
  friend class BlobWriter;
  BlobCache(const std::string& dir, Resolve resolve, bool is_own, uint64_t bytes_max);

  Status load_index();
  void find_leftovers();
  Status reserve(uint64_t size);
  Status reserve_disk(int file, uint64_t size);
  struct EvictedBlob {
    Digest digest;
    uint64_t size = 0;
    std::string path;  // the path to which it was moved
  };
  bool evict_for(uint64_t size, std::vector<EvictedBlob>& evicted);
  void remove(const std::vector<EvictedBlob>& evicted);
  void evict(const Digest& digest, const BlobIndex::Entry& entry,
             std::vector<EvictedBlob>& evicted);
  void notify_evicted(const Digest& digest);
  bool has_space_for(uint64_t size) const;
  void on_committed(const Digest& digest, uint64_t size);
  void release(uint64_t size);

  const std::string dir_;
  const Resolve resolve_;
  const bool is_own_;
  const uint64_t bytes_max_;
  VerifiedBlobs verified_;
  mutable std::mutex mutex_;
  BlobIndex index_;
  std::unordered_map<Digest, int, DigestHash> placing_;  // entries leave in was_placed()
  uint64_t reserved_ = 0;
  uint64_t evicted_ = 0, evicted_bytes_ = 0;
  std::mutex notify_mutex_;
  std::function<void(const Digest&)> on_evicted_;
};

/// Writes an incoming blob chunk by chunk. write() and hash() each take every byte in order; two
/// threads may call them concurrently.
class BlobWriter {
 public:
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  Status write(std::string_view bytes);
  void hash(std::string_view bytes) { hash_.update(bytes); }
  /// Whether the hashed bytes match the digest. Call it once.
  bool matches_digest() { return hash_.finish() == digest_; }
  /// Gives the file its name, durably in a state. Call it once, after matches_digest().
  Status commit();

 private:
  friend class BlobCache;
  BlobWriter(std::shared_ptr<BlobCache> store, const Digest& digest, uint64_t size);

  const std::shared_ptr<BlobCache> store_;
  const Digest digest_;
  const uint64_t size_;
  uint64_t written_ = 0;
  bool is_committed_ = false;
  Sha256 hash_;
  NewBlobFile object_;
};

}  // namespace flow::cluster
