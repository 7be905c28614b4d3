#include "engine/blobs/blob_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/base/copy_stop.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/base/file_descriptor.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/crypto/file_digest.hpp"

namespace flow {

namespace {

constexpr size_t kVerifiedMax = 65'536;
constexpr size_t kSizeOfStamp = 1;

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

/// Syncs the folder, so that the name survives a power cut.
Status sync_name(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  FLOW_TRY(sync_dir(folder));
  return sync_dir(std::filesystem::path(folder).parent_path().string());
}

/// Renames `path` to the blob's name. Does not follow a link at `dir`/objects/xx, which could lead
/// out of the state.
Status name_object(const std::string& path, const std::string& dir, const Digest& digest) {
  std::filesystem::path target = blob_path(dir, digest);
  std::string folder = target.parent_path().string();
  FLOW_TRY(make_dirs(folder));
  FileDescriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (opened.number < 0 && (errno == ELOOP || errno == ENOTDIR))
    return environment_error(
        fmt::format("cannot write `{}`: `{}` is a symbolic link, and blobs are not written through "
                    "links. Replace it with a folder",
                    target.string(), folder));
  if (opened.number < 0) return failed("open the folder", folder);
  bool is_named = ::renameat(AT_FDCWD, path.c_str(), opened.number, target.filename().c_str()) == 0;
  return is_named ? Status() : failed("write", target.string());
}

}  // namespace

std::string blob_path(const std::string& dir, const Digest& digest) {
  std::string hex = digest.hex();
  return dir + "/objects/" + hex.substr(0, 2) + "/" + hex.substr(2);
}

std::string temporary_blob(const std::string& dir) {
  return fmt::format("{}/objects/{}{}", dir, kTemporaryBlob, random_name());
}

Result<FileDigest> copy_and_hash(int source, const std::string& source_path, int target,
                                 const std::string& target_path) {
  return sha256_descriptor(source, source_path, [&](std::string_view bytes) -> Status {
    if (target < 0) return {};
    FLOW_TRY(check_copies_running(target_path));
    if (!write_all(target, bytes)) return failed("write", target_path);
    return {};
  });
}

void touch_blob(const std::string& path) {
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

Status refresh_blob(const std::string& path) {
  touch_blob(path);
  return sync_name(path);
}

Status publish_blob(int descriptor, const std::string& path, const std::string& dir,
                    const Digest& digest) {
  if (::fchmod(descriptor, 0400) != 0) return failed("change the mode of", path);
  if (::fsync(descriptor) != 0) return failed("sync", path);
  FLOW_TRY(name_object(path, dir, digest));
  return sync_name(blob_path(dir, digest));
}

NewBlobFile::NewBlobFile(const std::string& dir) : dir_(dir), path_(dir + "/objects") {
  (void)make_dirs(path_);  // on failure the file cannot be created, which is reported
  path_ += fmt::format("/{}XXXXXX", kTemporaryBlob);
  failpoint("blob-before-temporary");
  descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
}

NewBlobFile::~NewBlobFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!is_kept_) ::unlink(path_.c_str());
}

Status NewBlobFile::publish_as(const Digest& digest) {
  failpoint("blob-after-write");
  if (::fchmod(descriptor_, 0400) != 0) return failed("write", path_);
  if (::fsync(descriptor_) != 0) return failed("sync", path_);
  failpoint("blob-after-sync");
  FLOW_TRY(publish(digest));
  failpoint("blob-after-rename");
  return sync_name(blob_path(dir_, digest));
}

Status NewBlobFile::publish_unsynced_as(const Digest& digest) {
  if (::fchmod(descriptor_, 0400) != 0) return failed("write", path_);
  return publish(digest);
}

Status NewBlobFile::publish(const Digest& digest) {
  FLOW_TRY(name_object(path_, dir_, digest));
  is_kept_ = true;
  return {};
}

std::optional<VerifiedBlobs::Stamp> VerifiedBlobs::stamp_of(const Digest& digest) const {
  struct stat info {};
  if (::stat(path(digest).c_str(), &info) != 0) return std::nullopt;
  return Stamp{static_cast<int64_t>(info.st_ino),
               info.st_size,
               info.st_mtim.tv_sec,
               info.st_mtim.tv_nsec,
               info.st_ctim.tv_sec,
               info.st_ctim.tv_nsec};
}

bool VerifiedBlobs::is_known_verified(const Digest& digest, const Stamp& now) const {
  std::lock_guard lock(mutex_);
  auto seen = verified_.find(digest);
  return seen != verified_.end() && seen->second == now;
}

void VerifiedBlobs::mark_verified(const Digest& digest, const Stamp& now) {
  std::lock_guard lock(mutex_);
  if (verified_.size() >= kVerifiedMax) verified_.clear();
  verified_.insert_or_assign(digest, now);
}

void VerifiedBlobs::mark_verified(const Digest& digest) {
  if (auto now = stamp_of(digest)) mark_verified(digest, *now);
}

bool VerifiedBlobs::is_verified(const Digest& digest) {
  auto now = stamp_of(digest);
  if (!now) return false;
  if (is_known_verified(digest, *now)) return true;
  if (!holds(path(digest), digest, static_cast<uint64_t>((*now)[kSizeOfStamp]))) return false;
  mark_verified(digest, *now);
  return true;
}

}  // namespace flow
