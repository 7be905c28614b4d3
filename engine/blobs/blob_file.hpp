// Large blobs as read-only files DIR/objects/ab/cdef…, named by digest. A file in a state is
// complete and durable.
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

/// Prefix of temporary names in DIR/objects; such a file is garbage once its process has ended.
constexpr std::string_view kTemporaryBlob = "tmp-";
/// A new temporary name. Creates nothing.
std::string temporary_blob(const std::string& dir);

/// The path of a blob, which may not exist.
std::string blob_path(const std::string& dir, const Digest& digest);
/// Hashes the rest of the open file `source` and writes it to `target` unless that is negative. The
/// paths are for errors.
Result<FileDigest> copy_and_hash(int source, const std::string& source_path, int target,
                                 const std::string& target_path);
/// For an existing blob that is stored again: syncs its name, because its writer may have died
/// before doing so, and updates its time, so that garbage collection keeps it for a while.
Status refresh_blob(const std::string& path);
/// Updates the file's times, so that it counts as new. Does not follow a link.
void touch_blob(const std::string& path);
/// Makes the open file at `path` the blob `digest` of `dir`: read-only, synced, renamed, with its
/// name synced. `path` must be on the file system of `dir`/objects.
Status publish_blob(int descriptor, const std::string& path, const std::string& dir,
                    const Digest& digest);

/// A blob that is being written: a temporary file that is removed unless it is published. One
/// thread.
class NewBlobFile {
 public:
  explicit NewBlobFile(const std::string& dir);
  ~NewBlobFile();
  NewBlobFile(const NewBlobFile&) = delete;
  NewBlobFile& operator=(const NewBlobFile&) = delete;

  /// Negative if the file could not be created; errno then holds the reason.
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  /// Publishes the file under its digest: read-only and durable.
  Status publish_as(const Digest& digest);
  /// The same without syncing: after a power cut the content may not match the name. For caches
  /// that verify blobs before use and can download them again.
  Status publish_unsynced_as(const Digest& digest);

 private:
  Status publish(const Digest& digest);

  const std::string dir_;
  std::string path_;
  int descriptor_ = -1;
  bool is_kept_ = false;
};

/// Remembers which blob files match their digest: a file may be truncated by a full disk,
/// overwritten or damaged. Each file is read once per change of its times. Thread-safe.
class VerifiedBlobs {
 public:
  explicit VerifiedBlobs(std::string dir) : dir_(std::move(dir)) {}

  std::string path(const Digest& digest) const { return blob_path(dir_, digest); }
  /// Whether the file matches its digest. Reads it if that is not known.
  bool is_verified(const Digest& digest);

  using Stamp = std::array<int64_t, 6>;  // inode, size, times of change
  /// The stamp of the present file; nothing if there is none.
  std::optional<Stamp> stamp_of(const Digest& digest) const;
  bool is_known_verified(const Digest& digest, const Stamp& now) const;
  void mark_verified(const Digest& digest, const Stamp& now);
  /// Marks the present file as verified: the caller has just written or read it.
  void mark_verified(const Digest& digest);

 private:
  const std::string dir_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Stamp, DigestHash> verified_;
};

}  // namespace flow
