// Reads and writes blobs without the database, which an executor never opens.
#include "engine/executor/blob_files.hpp"
#include "engine/crypto/file_digest.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/system_error.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/blobs/mapped_file.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSmallMax = 64 * 1024;       // equal to the store's inline limit
constexpr size_t kSmallTotalMax = 16u << 20;  // per message; further blobs go to objects/

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

/// A new file below objects/, removed again unless it was renamed.
struct TemporaryBlob {
  std::string path;
  int descriptor = -1;

  explicit TemporaryBlob(const std::string& dir) : path(temporary_blob(dir)) {
    if (!make_dirs(dir + "/objects").ok()) return;
    descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  }
  ~TemporaryBlob() {
    if (descriptor < 0) return;
    ::close(descriptor);
    ::unlink(path.c_str());
  }
  TemporaryBlob(const TemporaryBlob&) = delete;
  TemporaryBlob& operator=(const TemporaryBlob&) = delete;
};

Error missing_blob(const Digest& digest) {
  return environment_error("the blob " + digest.hex() +
                           " is no longer in the state: `flow resume` computes a result again, and "
                           "copies an input again from a file that has not changed");
}

/// A missing blob is computed again; a damaged one would be found each time, so it is removed.
Error damaged(const Digest& digest) {
  return environment_error("the blob " + digest.hex() +
                           " in the state is damaged. It was removed: the next `flow run`, or "
                           "`flow resume` of a run that failed, creates it again");
}

}  // namespace

void BlobFiles::add_received(const Digest& digest, std::string bytes) {
  received_.insert_or_assign(digest, std::make_shared<const std::string>(std::move(bytes)));
}

void BlobFiles::clear() {
  received_.clear();
  small_.clear();
  small_bytes_ = 0;
  moves_.clear();
  warnings_.clear();
}

std::vector<std::pair<Digest, std::string>> BlobFiles::take_small() {
  small_bytes_ = 0;
  return std::exchange(small_, {});
}

std::vector<std::pair<Digest, std::string>> BlobFiles::copies_of(
    const std::vector<Digest>& digests) const {
  std::vector<std::pair<Digest, std::string>> copies;
  if (digests.empty()) return copies;
  for (const auto& blob : small_) {
    if (std::find(digests.begin(), digests.end(), blob.first) != digests.end())
      copies.push_back(blob);
  }
  return copies;
}

Result<Bytes> BlobFiles::read(const Digest& digest) {
  auto found = received_.find(digest);
  if (found != received_.end()) return Bytes(found->second);
  auto now = stored_blobs_.stamp_of(digest);
  bool is_known = now && stored_blobs_.is_known_verified(digest, *now);
  auto bytes = map_file(blob_path(digest));
  if (!bytes.ok()) return missing_blob(digest);
  if (is_known) return bytes;
  if (sha256(**bytes) != digest) {
    drop_if_damaged(digest);
    return damaged(digest);
  }
  if (now) stored_blobs_.mark_verified(digest, *now);
  return bytes;
}

Result<std::string> BlobFiles::path(const Digest& digest, const std::string& dir) {
  auto found = received_.find(digest);
  if (found == received_.end()) {
    std::string blob = blob_path(digest);
    if (::access(blob.c_str(), R_OK) != 0) return missing_blob(digest);
    if (stored_blobs_.is_verified(digest)) return blob;
    drop_if_damaged(digest);
    return damaged(digest);
  }
  FLOW_TRY(make_dirs(dir));
  std::string path = dir + "/" + digest.hex();
  if (::access(path.c_str(), R_OK) == 0) return path;
  int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
  if (descriptor < 0) return failed("write", path);
  bool ok = write_fully(descriptor, *found->second);
  ::close(descriptor);
  if (!ok) return failed("write", path);
  return path;
}

// A truncated or damaged file is written again. Its time is updated before it is checked: garbage
// collection has either removed it already, or sees the new time and keeps it.
bool BlobFiles::mark_if_present(const Digest& digest) {
  auto before = stored_blobs_.stamp_of(digest);
  if (!before) return false;
  bool was_verified = stored_blobs_.is_known_verified(digest, *before);
  touch_blob(blob_path(digest));
  if (was_verified) stored_blobs_.mark_verified(digest);  // nothing else has changed
  return stored_blobs_.is_verified(digest);
}

Status BlobFiles::refresh(const Digest& digest) {
  FLOW_TRY(refresh_blob(blob_path(digest)));
  stored_blobs_.mark_verified(digest);
  return {};
}

Status BlobFiles::store(const Digest& digest, std::string_view bytes) {
  bool small = bytes.size() <= kSmallMax && small_bytes_ + bytes.size() <= kSmallTotalMax;
  if (small) {
    small_bytes_ += bytes.size();
    small_.emplace_back(digest, std::string(bytes));
    return {};
  }
  if (mark_if_present(digest)) return {};
  TemporaryBlob blob(state_dir_);
  if (blob.descriptor < 0 || !write_all(blob.descriptor, bytes)) return failed("write", blob.path);
  FLOW_TRY(publish_blob(blob.descriptor, blob.path, state_dir_, digest));
  stored_blobs_.mark_verified(digest);
  return {};
}

Result<File::Entry> BlobFiles::store_one(const std::string& path, const std::string& scratch) {
  struct stat info {};
  bool is_readable = ::stat(path.c_str(), &info) == 0 && ::access(path.c_str(), R_OK) == 0;
  if (!is_readable) {
    int code = errno;
    std::string broken = broken_link(path);
    if (!broken.empty()) return user_error(fmt::format("`{}` is {}", path, broken));
    return system_error("read", path, code);
  }
  if (!S_ISREG(info.st_mode)) return user_error(fmt::format("`{}` is not a regular file", path));
  File::Entry entry;
  entry.executable = (info.st_mode & S_IXUSR) != 0;
  if (static_cast<uint64_t>(info.st_size) > kSmallMax) {
    auto own = scratch.empty() ? std::nullopt : ScratchFile::open(scratch, path);
    FLOW_TRY(own ? hash_in_place(*own, path, scratch, entry) : copy_large(path, entry));
    return entry;
  }
  auto bytes = read_file(path);
  FLOW_TRY(bytes);
  entry.size = bytes->size();
  entry.digest = sha256(*bytes);
  FLOW_TRY(store(entry.digest, *bytes));
  return entry;
}

Status BlobFiles::hash_in_place(const ScratchFile& file, const std::string& path,
                                const std::string& scratch, File::Entry& entry) {
  auto content = copy_and_hash(file.descriptor(), path, -1, "");
  FLOW_TRY(content);
  entry.digest = content->digest;
  entry.size = content->size;
  moves_.push_back({path, scratch, file.info(), entry.digest});
  return {};
}

// Never reads the file into memory as a whole. It hashes the copy, because the file may change.
Status BlobFiles::copy_large(const std::string& path, File::Entry& entry) {
  TemporaryBlob copy(state_dir_);
  if (copy.descriptor < 0) return failed("write", copy.path);
  int source = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return system_error("read", path, errno);
  bool is_cloned = ::ioctl(copy.descriptor, FICLONE, source) == 0;
  auto content = is_cloned ? copy_and_hash(copy.descriptor, copy.path, -1, "")
                           : copy_and_hash(source, path, copy.descriptor, copy.path);
  ::close(source);
  FLOW_TRY(content);
  entry.digest = content->digest;
  entry.size = content->size;
  if (mark_if_present(entry.digest)) return refresh(entry.digest);
  FLOW_TRY(publish_blob(copy.descriptor, copy.path, state_dir_, entry.digest));
  stored_blobs_.mark_verified(entry.digest);
  return {};
}

Status BlobFiles::move_outputs() {
  for (const PendingMove& output : std::exchange(moves_, {})) FLOW_TRY(move(output));
  return {};
}

Status BlobFiles::move(const PendingMove& output) {
  if (mark_if_present(output.digest)) return refresh(output.digest);
  auto file = ScratchFile::open(output.scratch, output.path);
  auto is_same = [&](const struct stat& now) {
    return now.st_dev == output.info.st_dev && now.st_ino == output.info.st_ino &&
           now.st_size == output.info.st_size && now.st_mtim.tv_sec == output.info.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == output.info.st_mtim.tv_nsec;
  };
  std::string moved = temporary_blob(state_dir_);
  FLOW_TRY(make_dirs(state_dir_ + "/objects"));
  if (file && is_same(file->info()) && file->move_to(moved)) {
    FLOW_TRY(publish_blob(file->descriptor(), moved, state_dir_, output.digest));
    stored_blobs_.mark_verified(output.digest);
    return {};
  }
  File::Entry copied;
  FLOW_TRY(copy_large(output.path, copied));
  if (copied.digest == output.digest) return {};
  return user_error(
      fmt::format("`{}` was written to after the command had ended: a program that the command "
                  "left must end first",
                  output.path));
}

Result<File> BlobFiles::store_file(const std::string& path, const std::string& left_out) {
  return store_path(path, left_out, "");
}

Result<File> BlobFiles::store_output(const std::string& path, const std::string& scratch) {
  return store_path(path, "", scratch);
}

Result<File> BlobFiles::store_path(std::string path, const std::string& left_out,
                                   const std::string& scratch) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  File file;
  file.name = fs::path(path).filename().string();
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    auto entry = store_one(path, scratch);
    FLOW_TRY(entry);
    file.executable = entry->executable;
    file.size = entry->size;
    file.digest = entry->digest;
    return file;
  }
  file.is_folder = true;
  auto listing = list_folder(path, left_out, system_error);
  FLOW_TRY(listing);
  for (const std::string& state : listing->states)
    warnings_.push_back(fmt::format(
        "`{}` in the folder `{}` is a state of flow and is left out of the result", state, path));
  for (const FolderFile& each : listing->files) {
    auto entry = store_one(path + "/" + each.path, scratch);
    FLOW_TRY(entry);
    entry->path = each.path;
    file.size += entry->size;
    file.entries.push_back(std::move(*entry));
  }
  file.digest = folder_digest(file.entries);
  return file;
}

std::vector<std::string> BlobFiles::take_warnings() { return std::exchange(warnings_, {}); }

void BlobFiles::drop_if_damaged(const Digest& digest) { remove_unless(blob_path(digest), digest); }

}  // namespace flow
