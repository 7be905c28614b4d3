// The content that one side of a session holds: files under DIR/objects, as an executor finds them
// there. A worker's folder has a limit: what it could fetch again goes when room is needed, least
// recently used first.
//
// Content that is pinned stays: by an attempt, what it is given and what it made, until the head
// has taken that. What an attempt is making the store does not know of before it is told; such
// files, and those that an attempt found made already, stay while an owner of pins is as old as
// they are. So an attempt has pins, if of nothing, from before it begins. The folder is on a disk
// of this machine's: its clock stamps the files.
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

/// Thread-safe. Reads and writes the disk, but for what says that it does not.
class BlobCache : public std::enable_shared_from_this<BlobCache> {
 public:
  /// Where content lies that is not under objects/: null where it is nowhere.
  using Resolve = std::function<std::optional<Result<BlobReader>>(const Digest&)>;

  /// A folder of this process's and its executors' alone, of which none runs yet. What a crash left
  /// half is removed, what is whole is found. `bytes_max` 0: no limit. Nothing that is fetched is
  /// synced: it can be fetched again, and what a power cut has spoilt is found by has(), which
  /// reads what this process has not written or read itself.
  static Result<std::shared_ptr<BlobCache>> open(const std::string& dir, uint64_t bytes_max);
  /// A head's state, whose garbage is collected elsewhere: nothing is evicted, pinned or not.
  /// `resolve` is called by any thread, as long as this is there.
  static std::shared_ptr<BlobCache> of_state(const std::string& dir, Resolve resolve);

  const std::string& dir() const { return dir_; }
  std::string path_of(const Digest& digest) const { return verified_.path(digest); }
  /// Whether it is under objects/, whole: it is read where that is not known. If so it counts as
  /// used now.
  bool has(const BlobInfo& blob);
  /// From objects/ or, where it is not there, where it is lent from or resolved to. Not verified:
  /// who gets it does that.
  Result<BlobReader> open_reader(const Digest& digest);
  /// Begins to take content of this size in; makes room for it.
  Result<std::unique_ptr<BlobWriter>> begin(const Digest& digest, uint64_t size);
  /// Removes an object that is not what its name says.
  void drop_if_damaged(const Digest& digest);

  /// Until unpin(owner) these stay, those that come later too. No disk.
  void pin(const std::string& owner, const std::vector<Digest>& digests);
  /// Until unpin(owner) this content is given from `path` where it is not under objects/.
  /// `may_change`: others may write to it, as to an input that is read in place. No disk.
  void lend(const std::string& owner, const Digest& digest, const std::string& path,
            bool may_change);
  /// Whether more is here now than may be, of which some may go: trim() is due. No disk.
  bool unpin(const std::string& owner);
  std::vector<Digest> pinned_by(const std::string& owner) const;  // no disk
  /// An attempt has made these, or found them made. No disk.
  void note_created(const std::vector<BlobInfo>& blobs);
  /// Lets go of what is beyond the limit and may go.
  void trim();
  /// Lets go of all that may go: somebody else has no room on the disk.
  void evict_unpinned();
  /// What is fetched to be linked to another place, and then is no object any more, is counted: the
  /// same may be fetched for several. The last one's was_placed() removes the object.
  void will_place(const Digest& digest);
  void was_placed(const Digest& digest);
  /// What is under objects/ is at `file`, a path below the folder, too, in a state durably;
  /// whatever was there.
  Status link_to(const Digest& digest, const std::string& file);
  /// The other way round: what lies at `file` is under objects/ too, where it is there. Who says
  /// what it is may be wrong: that is found when it is used.
  bool adopt_placed(const Digest& digest, const std::string& file);
  /// That nobody pins goes now.
  void evict(const Digest& digest);
  /// What lies at this path below the folder, a file or a folder, is there no more; where it is
  /// now, for whoever removes it, which may take its time. "" where there was nothing.
  std::string set_aside(const std::string& file);

  /// Large content that is here, what was used last first.
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
    std::string path;  // where it was moved to
  };
  bool evict_for(uint64_t size, std::vector<EvictedBlob>& evicted);
  void remove(const std::vector<EvictedBlob>& evicted);
  void evict(const Digest& digest, const BlobIndex::Entry& entry,
             std::vector<EvictedBlob>& evicted);
  void notify_evicted(const Digest& digest);
  bool has_room_for(uint64_t size) const;
  void on_committed(const Digest& digest, uint64_t size);
  void release(uint64_t size);

  const std::string dir_;
  const Resolve resolve_;
  const bool is_own_;
  const uint64_t bytes_max_;
  VerifiedBlobs verified_;
  mutable std::mutex mutex_;
  BlobIndex index_;
  std::unordered_map<Digest, int, DigestHash> placing_;  // they leave in was_placed()
  uint64_t reserved_ = 0;
  uint64_t evicted_ = 0, evicted_bytes_ = 0;
  std::mutex notify_mutex_;
  std::function<void(const Digest&)> on_evicted_;
};

/// Content that comes in, piece after piece. write() and hash() each take every byte in order, and
/// may be called by two threads.
class BlobWriter {
 public:
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  Status write(std::string_view bytes);
  void hash(std::string_view bytes) { hash_.update(bytes); }
  /// Whether all that was hashed is the content that was to come. Once.
  bool matches_digest() { return hash_.finish() == digest_; }
  /// Under its name, in a state durably. Once, after all came and is right.
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
