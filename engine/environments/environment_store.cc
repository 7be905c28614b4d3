#include "engine/environments/environment_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/blobs/folder.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

std::string lock_path(const std::string& environments, const std::string& key) {
  return environments + "/" + key + ".lock";
}

/// The name of the folder to which the link leads, or "".
std::string target_of(const std::string& environments, const std::string& key) {
  char target[PATH_MAX];
  ssize_t size = ::readlink((environments + "/" + key).c_str(), target, sizeof target);
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "";
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator walk(folder, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code each;
    if (walk->symlink_status(each).type() != fs::file_type::regular) continue;
    uint64_t size = walk->file_size(each);
    if (!each) bytes += size;
  }
  return bytes;
}

/// Calls `visit(key, name)` for each entry that belongs to an environment. `name` is KEY, or begins
/// with "KEY.".
template <typename Visit>
void each_entry(const std::string& environments, Visit&& visit) {
  std::error_code failed;
  for (fs::directory_iterator walk(environments, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::string name = walk->path().filename().string();
    std::string key = name.substr(0, name.find('.'));
    Digest digest;
    if (Digest::parse_hex(key, digest)) visit(key, name);
  }
}

}  // namespace

EnvironmentLock::EnvironmentLock(const std::string& environments, const std::string& key)
    : descriptor_(
          ::open(lock_path(environments, key).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}

EnvironmentLock::~EnvironmentLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<bool> EnvironmentLock::try_acquire() const {
  if (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return true;
  if (descriptor_ >= 0 && (errno == EWOULDBLOCK || errno == EINTR)) return false;
  return environment_error(
      fmt::format("cannot lock an environment of the state: {}", std::strerror(errno)));
}

std::string finished_environment(const std::string& environments, const std::string& key) {
  std::string name = target_of(environments, key), folder = environments + "/" + name;
  bool is_there = !name.empty() && ::access((folder + "/prefix").c_str(), X_OK) == 0;
  return is_there ? folder : "";
}

Status publish_environment(const std::string& environments, const std::string& key,
                           const std::string& name) {
  // What the tool wrote is on disk before the link names it.
  int folder = ::open((environments + "/" + name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool is_synced = folder >= 0 && ::syncfs(folder) == 0;
  int code = errno;
  if (folder >= 0) ::close(folder);
  if (!is_synced)
    return environment_error(
        fmt::format("cannot sync `{}/{}`: {}", environments, name, std::strerror(code)));
  std::string link = environments + "/" + key, temporary = link + ".link";
  ::unlink(temporary.c_str());
  if (::symlink(name.c_str(), temporary.c_str()) == 0 &&
      ::rename(temporary.c_str(), link.c_str()) == 0)
    return sync_dir(environments);
  return environment_error(fmt::format("cannot write `{}`: {}", link, std::strerror(errno)));
}

void remove_unfinished_environments(const std::string& environments, const std::string& key) {
  std::set<std::string> unfinished;
  each_entry(environments, [&](const std::string& each, const std::string& name) {
    bool is_kept = name == key || name == key + ".lock" || name == target_of(environments, key);
    if (each == key && !is_kept) unfinished.insert(name);
  });
  for (const std::string& name : unfinished) (void)remove_tree(environments + "/" + name);
}

uint64_t remove_unused_environments(const std::string& environments,
                                    const std::set<std::string>& needed) {
  std::set<std::string> unused;
  each_entry(environments, [&](const std::string& key, const std::string&) {
    if (!needed.contains(key)) unused.insert(key);
  });
  uint64_t freed = 0;
  for (const std::string& key : unused) {
    EnvironmentLock lock(environments, key);
    auto is_free = lock.try_acquire();
    if (!is_free.ok() || !*is_free) continue;
    std::string name = target_of(environments, key);  // "" if only its lock is left
    if (!name.empty()) freed += bytes_in(environments + "/" + name);
    ::unlink((environments + "/" + key).c_str());
    remove_unfinished_environments(environments, key);
    // The lock stays: another process may wait for it.
  }
  return freed;
}

}  // namespace flow
