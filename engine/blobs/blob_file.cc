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
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/crypto/file_digest.hpp"

namespace flow {

namespace {

constexpr size_t kSoundMax = 65'536;
constexpr size_t kSizeOfStamp = 1;

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

/// A name that survives a power cut.
Status sync_name(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  FLOW_TRY(sync_dir(folder));
  return sync_dir(std::filesystem::path(folder).parent_path().string());
}

/// Renames `path` to the object's name. The folder that holds it is `dir`/objects/xx itself: a link
/// there would lead out of the state.
Status name_object(const std::string& path, const std::string& dir, const Digest& digest) {
  std::filesystem::path target = object_path(dir, digest);
  std::string folder = target.parent_path().string();
  FLOW_TRY(make_dirs(folder));
  int descriptor = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0 && (errno == ELOOP || errno == ENOTDIR))
    return environment_error(
        fmt::format("cannot write `{}`: `{}` is a symbolic link, and blobs are not written through "
                    "links. Replace it with a folder",
                    target.string(), folder));
  if (descriptor < 0) return failed("open the folder", folder);
  bool is_named = ::renameat(AT_FDCWD, path.c_str(), descriptor, target.filename().c_str()) == 0;
  int code = errno;
  ::close(descriptor);
  errno = code;
  return is_named ? Status() : failed("write", target.string());
}

}  // namespace

std::string object_path(const std::string& dir, const Digest& digest) {
  std::string hex = digest.hex();
  return dir + "/objects/" + hex.substr(0, 2) + "/" + hex.substr(2);
}

std::string temporary_object(const std::string& dir) {
  return fmt::format("{}/objects/{}{}", dir, kTemporaryObject, random_name());
}

Result<FileDigest> copy_content(int source, const std::string& source_path, int target,
                                const std::string& target_path) {
  constexpr size_t kChunk = 1 << 20;
  Sha256 hash;
  FileDigest content;
  std::string chunk(kChunk, '\0');
  while (true) {
    if (target >= 0) FLOW_TRY(check_copies_running(target_path));
    ssize_t got = ::read(source, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", source_path);
    if (got == 0) break;
    std::string_view bytes(chunk.data(), static_cast<size_t>(got));
    hash.update(bytes);
    content.size += bytes.size();
    if (target >= 0 && !write_all(target, bytes)) return failed("write", target_path);
  }
  content.digest = hash.finish();
  return content;
}

void touch_object(const std::string& path) {
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

Status renew_object(const std::string& path) {
  touch_object(path);
  return sync_name(path);
}

Status keep_object(int descriptor, const std::string& path, const std::string& dir,
                   const Digest& digest) {
  if (::fchmod(descriptor, 0400) != 0) return failed("change the mode of", path);
  if (::fsync(descriptor) != 0) return failed("sync", path);
  FLOW_TRY(name_object(path, dir, digest));
  return sync_name(object_path(dir, digest));
}

NewObject::NewObject(const std::string& dir) : dir_(dir), path_(dir + "/objects") {
  (void)make_dirs(path_);  // without it the file can't be made, which is told
  path_ += fmt::format("/{}XXXXXX", kTemporaryObject);
  failpoint("blob-before-temporary");
  descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
}

NewObject::~NewObject() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!is_kept_) ::unlink(path_.c_str());
}

Status NewObject::keep_as(const Digest& digest) {
  failpoint("blob-after-write");
  if (::fchmod(descriptor_, 0400) != 0) return failed("write", path_);
  if (::fsync(descriptor_) != 0) return failed("sync", path_);
  failpoint("blob-after-sync");
  FLOW_TRY(name_it(digest));
  failpoint("blob-after-rename");
  return sync_name(object_path(dir_, digest));
}

Status NewObject::keep_unsynced_as(const Digest& digest) {
  if (::fchmod(descriptor_, 0400) != 0) return failed("write", path_);
  return name_it(digest);
}

Status NewObject::name_it(const Digest& digest) {
  FLOW_TRY(name_object(path_, dir_, digest));
  is_kept_ = true;
  return {};
}

std::optional<SoundObjects::Stamp> SoundObjects::stamp_of(const Digest& digest) const {
  struct stat info {};
  if (::stat(path(digest).c_str(), &info) != 0) return std::nullopt;
  return Stamp{static_cast<int64_t>(info.st_ino),
               info.st_size,
               info.st_mtim.tv_sec,
               info.st_mtim.tv_nsec,
               info.st_ctim.tv_sec,
               info.st_ctim.tv_nsec};
}

bool SoundObjects::is_known_sound(const Digest& digest, const Stamp& now) const {
  std::lock_guard lock(mutex_);
  auto seen = sound_.find(digest);
  return seen != sound_.end() && seen->second == now;
}

void SoundObjects::note_sound(const Digest& digest, const Stamp& now) {
  std::lock_guard lock(mutex_);
  if (sound_.size() >= kSoundMax) sound_.clear();
  sound_.insert_or_assign(digest, now);
}

void SoundObjects::note_sound(const Digest& digest) {
  if (auto now = stamp_of(digest)) note_sound(digest, *now);
}

bool SoundObjects::is_sound(const Digest& digest) {
  auto now = stamp_of(digest);
  if (!now) return false;
  if (is_known_sound(digest, *now)) return true;
  if (!holds(path(digest), digest, static_cast<uint64_t>((*now)[kSizeOfStamp]))) return false;
  note_sound(digest, *now);
  return true;
}

}  // namespace flow
