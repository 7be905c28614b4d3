// Large content as files: DIR/objects/ab/cdef… by digest, read-only. In a state it is there whole
// and durable or not at all.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "engine/base/files.hpp"
#include "engine/crypto/file_digest.hpp"
#include "flow/digest.hpp"
#include "flow/result.hpp"

namespace flow {

/// Names in DIR/objects that begin so are garbage once their process has ended.
constexpr std::string_view kTemporaryBlob = "tmp-";
/// A new one of them. Creates nothing.
std::string temporary_blob(const std::string& dir);

/// Whether it exists or not.
std::string blob_path(const std::string& dir, const Digest& digest);
/// Hashes the rest of the open file `source`, and writes it to `target` unless that is below 0. The
/// paths are for errors.
Result<FileDigest> copy_and_hash(int source, const std::string& source_path, int target,
                                 const std::string& target_path);
/// Content that is there, in a state, is stored again: its name is synced, which whoever wrote and
/// synced it may not have come to, and it counts as new, so that what collects garbage leaves it
/// alone for a while.
Status refresh_blob(const std::string& path);
/// Counts as new from now on. Changes the file's times; a link is not followed.
void touch_blob(const std::string& path);
/// Makes the file at `path`, which is open, the object `digest` of `dir`: read-only, synced, under
/// its name, which is synced too. `path` lies on the file system of `dir`/objects.
Status publish_blob(int descriptor, const std::string& path, const std::string& dir,
                    const Digest& digest);

/// Content that is being written: a file that is removed again unless it is kept. One thread.
class NewBlobFile {
 public:
  explicit NewBlobFile(const std::string& dir);
  ~NewBlobFile();
  NewBlobFile(const NewBlobFile&) = delete;
  NewBlobFile& operator=(const NewBlobFile&) = delete;

  /// Below 0 where the file can't be made; errno says why until the next call of anything.
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  /// Synced, read-only, under its name, which is synced too.
  Status publish_as(const Digest& digest);
  /// The same, not synced: after a power cut there may be an object that is not what its name says.
  /// For who reads what he finds before he uses it, and can have it again.
  Status publish_unsynced_as(const Digest& digest);

 private:
  Status publish(const Digest& digest);

  const std::string dir_;
  std::string path_;
  int descriptor_ = -1;
  bool is_kept_ = false;
};

/// Which objects hold what their names say: one that was cut by a full disk, written to or damaged
/// does not. Each is read once for each change that the system knows of. Thread-safe.
class VerifiedBlobs {
 public:
  explicit VerifiedBlobs(std::string dir) : dir_(std::move(dir)) {}

  std::string path(const Digest& digest) const { return blob_path(dir_, digest); }
  /// Reads the whole object where it is not known.
  bool is_verified(const Digest& digest);

  using Stamp = std::array<int64_t, 6>;  // inode, size, times of change
  /// Of the object as it is now, or nothing where there is none.
  std::optional<Stamp> stamp_of(const Digest& digest) const;
  bool is_known_verified(const Digest& digest, const Stamp& now) const;
  void mark_verified(const Digest& digest, const Stamp& now);
  /// As it is now: somebody has just written or read it.
  void mark_verified(const Digest& digest);

 private:
  const std::string dir_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Stamp, DigestHash> verified_;
};

}  // namespace flow
