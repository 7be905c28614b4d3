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
#include "engine/executor/wire.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSmallMax = 64 * 1024;  // as the store keeps inline

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

}  // namespace

std::string BlobFiles::object_path(const Digest& digest) const {
  std::string hex = digest.hex();
  return state_dir_ + "/objects/" + hex.substr(0, 2) + "/" + hex.substr(2);
}

void BlobFiles::give(const Digest& digest, std::string bytes) {
  given_.insert_or_assign(digest, std::make_shared<const std::string>(std::move(bytes)));
}

void BlobFiles::clear() {
  given_.clear();
  small_.clear();
}

std::vector<std::pair<Digest, std::string>> BlobFiles::take_small() {
  return std::exchange(small_, {});
}

Result<std::shared_ptr<const std::string>> BlobFiles::read(const Digest& digest) {
  auto found = given_.find(digest);
  if (found != given_.end()) return found->second;
  auto bytes = read_file(object_path(digest));
  if (!bytes.ok())
    return environment_error("the content " + digest.hex() +
                             " is not in the state any more: " + bytes.error().message);
  if (sha256(*bytes) != digest)
    return environment_error("the content " + digest.hex() + " in the state is damaged");
  return std::make_shared<const std::string>(std::move(*bytes));
}

Result<std::string> BlobFiles::path(const Digest& digest, const std::string& dir) {
  std::string object = object_path(digest);
  if (::access(object.c_str(), R_OK) == 0) return object;
  auto found = given_.find(digest);
  if (found == given_.end())
    return environment_error("the content " + digest.hex() + " is not in the state any more");
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

Status BlobFiles::write_object(const Digest& digest, std::string_view bytes) {
  std::string target = object_path(digest);
  if (::access(target.c_str(), R_OK) == 0) return {};
  return write_file_atomic(target, bytes, 0400);
}

Status BlobFiles::store(const Digest& digest, std::string_view bytes) {
  if (bytes.size() > kSmallMax) {
    FLOW_TRY(make_dirs(fs::path(object_path(digest)).parent_path().string()));
    return write_object(digest, bytes);
  }
  small_.emplace_back(digest, std::string(bytes));
  return {};
}

Result<File::Entry> BlobFiles::store_one(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return failed("read", path);
  if (!S_ISREG(info.st_mode)) return user_error(fmt::format("`{}` is no regular file", path));
  auto bytes = read_file(path);
  FLOW_TRY(bytes);
  File::Entry entry;
  entry.executable = (info.st_mode & S_IXUSR) != 0;
  entry.size = bytes->size();
  entry.digest = sha256(*bytes);
  FLOW_TRY(store(entry.digest, *bytes));
  return entry;
}

Result<File> BlobFiles::store_file(const std::string& path) {
  File file;
  file.name = fs::path(path).filename().string();
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    auto entry = store_one(path);
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
    if (walk->is_regular_file(error)) names.push_back(fs::relative(walk->path(), path).string());
  }
  if (error)
    return environment_error(fmt::format("cannot read the folder `{}`: {}", path, error.message()));
  std::sort(names.begin(), names.end());
  Sha256 listing;
  for (const std::string& name : names) {
    auto entry = store_one((fs::path(path) / name).string());
    FLOW_TRY(entry);
    entry->path = name;
    file.size += entry->size;
    listing.update(fmt::format("{} {} {}\n", entry->digest.hex(), entry->executable ? 1 : 0, name));
    file.entries.push_back(std::move(*entry));
  }
  file.digest = listing.finish();
  return file;
}

}  // namespace flow
