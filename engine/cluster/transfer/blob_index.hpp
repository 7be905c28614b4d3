// The in-memory index of a BlobCache: sizes, order of use, pins. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow/digest.hpp"

namespace flow::cluster {

class BlobIndex {
 public:
  struct LentFile {
    std::string path;
    bool may_change = false;
  };
  struct Entry {
    uint64_t size = 0;
    int64_t written_ns = 0;  // time stamp of its file, if the cache wrote it
    uint64_t used = 0;       // counter of uses
  };

  /// Marks the blob as used; adds it if it is new.
  void use(const Digest& digest, uint64_t size);
  /// Adds a blob that the cache has written.
  void add_written(const Digest& digest, uint64_t size, int64_t written_ns);
  /// Adds a blob that was found on disk, as the least recently used.
  void add_unused(const Digest& digest, uint64_t size);
  void remove(const Digest& digest);
  bool contains(const Digest& digest) const { return entries_.contains(digest); }
  /// Null if the blob is unknown; valid until it is removed.
  const Entry* find(const Digest& digest) const;
  uint64_t bytes() const { return bytes_; }
  /// Blobs of at least `bytes_min` with their sizes, most recently used first.
  std::vector<std::pair<Digest, uint64_t>> newest(uint64_t bytes_min, size_t count_max) const;

  /// Pins blobs for `owner`, which is created at `now_ns` if it is new.
  void pin(const std::string& owner, const std::vector<Digest>& digests, int64_t now_ns);
  /// Until unpin(owner) the blob is also available at `file`. Replaces an earlier file of this
  /// owner: of a checkpoint that is saved again unchanged, the newest file stays.
  void lend(const std::string& owner, const Digest& digest, LentFile file, int64_t now_ns);
  /// Newest first.
  std::vector<LentFile> lent(const Digest& digest) const;
  void unpin(const std::string& owner);
  std::vector<Digest> pinned_by(const std::string& owner) const;
  bool is_pinned(const Digest& digest) const { return pins_.contains(digest); }
  uint64_t pinned_bytes() const;
  /// Creation time of the oldest pin owner; INT64_MAX if there is none.
  int64_t oldest_owner_ns() const;

  /// The first unpinned blob that was used after `used`; null if there is none. Valid until the
  /// blob is removed.
  const std::pair<const Digest, Entry>* next_unpinned(uint64_t used) const;

 private:
  struct Owner {
    int64_t began_ns = 0;
    std::vector<Digest> digests, lent;
  };
  void insert(const Digest& digest, Entry entry);

  // Blobs on disk, whose total size is limited; entries leave in remove().
  std::unordered_map<Digest, Entry, DigestHash> entries_;
  std::map<uint64_t, Digest> by_use_;
  uint64_t bytes_ = 0;
  uint64_t last_use_ = uint64_t{1} << 63, first_use_ = last_use_;
  // Pins of attempts whose end the head has not acknowledged; entries leave in unpin().
  std::unordered_map<Digest, int, DigestHash> pins_;
  std::map<std::string, Owner> owners_;
  using Lent = std::pair<std::string, LentFile>;  // owner and file
  std::unordered_map<Digest, std::vector<Lent>, DigestHash> lent_;
};

}  // namespace flow::cluster
