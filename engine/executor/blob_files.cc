// Reading and writing content beside the database, which an executor never opens.
#include "engine/executor/blob_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/mapped.hpp"
#include "engine/executor/faults.hpp"
#include "engine/executor/wire.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSmallMax = 64 * 1024;       // as the store keeps inline
constexpr size_t kSmallTotalMax = 16u << 20;  // of one message; what is over goes to objects/
constexpr size_t kFolderFilesMax = 1'000'000;

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

}  // namespace

void BlobFiles::give(const Digest& digest, std::string bytes) {
  given_.insert_or_assign(digest, std::make_shared<const std::string>(std::move(bytes)));
}

void BlobFiles::clear() {
  given_.clear();
  small_.clear();
  small_bytes_ = 0;
}

std::vector<std::pair<Digest, std::string>> BlobFiles::take_small() {
  small_bytes_ = 0;
  return std::exchange(small_, {});
}

std::vector<std::pair<Digest, std::string>> BlobFiles::copies_of(
    const std::vector<Digest>& digests) const {
  std::vector<std::pair<Digest, std::string>> copies;
  if (digests.empty()) return copies;
  for (const auto& piece : small_) {
    if (std::find(digests.begin(), digests.end(), piece.first) != digests.end())
      copies.push_back(piece);
  }
  return copies;
}

Result<Bytes> BlobFiles::read(const Digest& digest) {
  auto found = given_.find(digest);
  if (found != given_.end()) return Bytes(found->second);
  auto now = objects_.stamp_of(digest);
  bool is_known = now && objects_.is_known_sound(digest, *now);
  auto bytes = map_file(object_path(digest));
  if (!bytes.ok())
    return environment_error("the content " + digest.hex() +
                             " is not in the state any more: " + bytes.error().message);
  if (is_known) return bytes;
  if (sha256(**bytes) != digest)
    return environment_error("the content " + digest.hex() + " in the state is damaged");
  if (now) objects_.note_sound(digest, *now);
  return bytes;
}

Result<std::string> BlobFiles::path(const Digest& digest, const std::string& dir) {
  auto found = given_.find(digest);
  if (found == given_.end()) {
    std::string object = object_path(digest);
    if (::access(object.c_str(), R_OK) != 0)
      return environment_error("the content " + digest.hex() + " is not in the state any more");
    if (objects_.is_sound(digest)) return object;
    return environment_error("the content " + digest.hex() + " in the state is damaged");
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

// One that was cut, written to or damaged is written again. It counts as new before it is looked
// at: what collects garbage either has removed it, or sees that and leaves it alone.
bool BlobFiles::keep_what_is_there(const Digest& digest) {
  auto before = objects_.stamp_of(digest);
  if (!before) return false;
  bool was_sound = objects_.is_known_sound(digest, *before);
  ::utimensat(AT_FDCWD, object_path(digest).c_str(), nullptr, 0);
  if (was_sound) objects_.note_sound(digest);  // it is as it was but for that
  return objects_.is_sound(digest);
}

Status BlobFiles::store(const Digest& digest, std::string_view bytes) {
  bool small = bytes.size() <= kSmallMax && small_bytes_ + bytes.size() <= kSmallTotalMax;
  if (small) {
    small_bytes_ += bytes.size();
    small_.emplace_back(digest, std::string(bytes));
    return {};
  }
  if (keep_what_is_there(digest)) return {};
  std::string target = object_path(digest);
  FLOW_TRY(make_dirs(fs::path(target).parent_path().string()));
  FLOW_TRY(write_file_atomic(target, bytes, 0400));
  objects_.note_sound(digest);
  return {};
}

Result<File::Entry> BlobFiles::store_one(const std::string& path, bool may_move) {
  struct stat info {};
  bool is_readable = ::stat(path.c_str(), &info) == 0 && ::access(path.c_str(), R_OK) == 0;
  if (!is_readable) return system_error("read", path, errno);
  if (!S_ISREG(info.st_mode)) return user_error(fmt::format("`{}` is no regular file", path));
  File::Entry entry;
  entry.executable = (info.st_mode & S_IXUSR) != 0;
  if (static_cast<uint64_t>(info.st_size) > kSmallMax) {
    // A hard or symbolic link may be written to under its other name.
    struct stat link {};
    bool ours = may_move && ::lstat(path.c_str(), &link) == 0 && S_ISREG(link.st_mode) &&
                link.st_nlink == 1 && link.st_uid == ::geteuid();
    FLOW_TRY(store_large(path, ours, entry));
    return entry;
  }
  auto bytes = read_file(path);
  FLOW_TRY(bytes);
  entry.size = bytes->size();
  entry.digest = sha256(*bytes);
  FLOW_TRY(store(entry.digest, *bytes));
  return entry;
}

// Never whole in memory. What is hashed is what is kept: of a file that may still change, a copy.
Status BlobFiles::store_large(const std::string& path, bool may_move, File::Entry& entry) {
  std::string folder = state_dir_ + "/objects";
  FLOW_TRY(make_dirs(folder));
  std::string content = path;
  std::error_code error;
  if (!may_move) {
    content = folder + "/tmp-" + random_name();
    fs::copy_file(path, content, error);
    if (error)
      return environment_error(
          fmt::format("cannot copy `{}` to `{}`: {}", path, content, error.message()));
  }
  auto finish = [&]() -> Status {
    auto digest = sha256_file(content);
    FLOW_TRY(digest);
    entry.digest = digest->digest;
    entry.size = digest->size;
    std::string target = object_path(entry.digest);
    if (holds(target, entry.digest, entry.size)) return renew_object(target);
    FLOW_TRY(make_dirs(fs::path(target).parent_path().string()));
    if (::chmod(content.c_str(), 0400) != 0) return failed("change the mode of", content);
    FLOW_TRY(sync_file(content));
    if (::rename(content.c_str(), target.c_str()) != 0) return failed("rename a file to", target);
    FLOW_TRY(sync_dir(fs::path(target).parent_path().string()));
    return sync_dir(folder);
  };
  Status done = finish();
  if (!may_move) fs::remove(content, error);
  return done;
}

Result<File> BlobFiles::store_file(const std::string& path, bool may_move) {
  File file;
  file.name = fs::path(path).filename().string();
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    auto entry = store_one(path, may_move);
    FLOW_TRY(entry);
    file.executable = entry->executable;
    file.size = entry->size;
    file.digest = entry->digest;
    return file;
  }
  file.is_folder = true;
  std::vector<std::string> names;
  for (fs::recursive_directory_iterator walk(path, error), end; !error && walk != end;
       walk.increment(error)) {
    std::string name = walk->path().lexically_relative(path).string();
    bool is_folder = !walk->is_symlink(error) && walk->is_directory(error);
    if (walk->is_regular_file(error)) {
      names.push_back(name);
    } else if (!is_folder) {
      return user_error(fmt::format(
          "`{}` in the folder `{}` is no file, no folder, and no link to a file", name, path));
    }
    if (names.size() > kFolderFilesMax)
      return user_error(
          fmt::format("the folder `{}` has more than {} files", path, kFolderFilesMax));
  }
  if (error) return system_error("read the folder", path, error.value());
  std::sort(names.begin(), names.end());
  Sha256 listing;
  for (const std::string& name : names) {
    auto entry = store_one((fs::path(path) / name).string(), may_move);
    FLOW_TRY(entry);
    entry->path = name;
    file.size += entry->size;
    listing.update(fmt::format("{} {} {}\n", entry->digest.hex(), entry->executable ? 1 : 0, name));
    file.entries.push_back(std::move(*entry));
  }
  file.digest = listing.finish();
  return file;
}

void BlobFiles::drop_if_damaged(const Digest& digest) {
  remove_unless(object_path(digest), digest);
}

}  // namespace flow
