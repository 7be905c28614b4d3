// What content a folder holds, as its store remembers it: sizes, which was used last, and who needs
// what to stay. Pure.
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
    int64_t written_ns = 0;  // its file's stamp, where the store wrote that
    uint64_t used = 0;       // counts uses
  };

  /// Used now, whether it was known or not.
  void use(const Digest& digest, uint64_t size);
  /// The store has written it.
  void add_written(const Digest& digest, uint64_t size, int64_t written_ns);
  /// Found, and used before all that is known.
  void add_unused(const Digest& digest, uint64_t size);
  void remove(const Digest& digest);
  bool knows(const Digest& digest) const { return entries_.contains(digest); }
  /// Null where it is not known; there until it is removed.
  const Entry* find(const Digest& digest) const;
  uint64_t bytes() const { return bytes_; }
  /// Of so many bytes or more, those used last first, with their sizes.
  std::vector<std::pair<Digest, uint64_t>> newest(uint64_t bytes_min, size_t count_max) const;

  /// `owner` needs these too from now on; first seen at `now_ns`.
  void pin(const std::string& owner, const std::vector<Digest>& digests, int64_t now_ns);
  /// Until unpin(owner) this content lies at `file` too, and no more where this owner lent it
  /// before: of a checkpoint that is saved again as it was, the newest file stays.
  void lend(const std::string& owner, const Digest& digest, LentFile file, int64_t now_ns);
  /// The newest first.
  std::vector<LentFile> lent(const Digest& digest) const;
  void unpin(const std::string& owner);
  std::vector<Digest> pinned_by(const std::string& owner) const;
  bool is_pinned(const Digest& digest) const { return pins_.contains(digest); }
  uint64_t pinned_bytes() const;
  /// When the oldest of the owners there are was first seen; INT64_MAX where there is none.
  int64_t oldest_owner_ns() const;

  /// What nobody pins and was used after `used`, the first of it; null where there is none. What it
  /// points to is there until that is removed.
  const std::pair<const Digest, Entry>* next_unpinned(uint64_t used) const;

 private:
  struct Owner {
    int64_t began_ns = 0;
    std::vector<Digest> digests, lent;
  };
  void insert(const Digest& digest, Entry entry);

  // Content on disk, whose size is limited: entries leave in remove().
  std::unordered_map<Digest, Entry, DigestHash> entries_;
  std::map<uint64_t, Digest> by_use_;
  uint64_t bytes_ = 0;
  uint64_t last_use_ = uint64_t{1} << 63, first_use_ = last_use_;
  // Attempts whose end the head has not acknowledged: entries leave in unpin().
  std::unordered_map<Digest, int, DigestHash> pins_;
  std::map<std::string, Owner> owners_;
  using Lent = std::pair<std::string, LentFile>;  // by whom
  std::unordered_map<Digest, std::vector<Lent>, DigestHash> lent_;
};

}  // namespace flow::cluster
