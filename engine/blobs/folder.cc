#include "engine/blobs/folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kEntriesMax = 1'000'000;  // files, and folders, of one folder

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// Lists depth first. Links may make a tree of folders as large as they like, so folders count.
class Lister {
 public:
  Lister(const std::string& folder, const std::string& left_out, SystemError system_error)
      : folder_(folder), left_out_(left_out), system_error_(system_error) {}

  Status list_top() {
    if (is_state_folder(folder_))
      return user_error(fmt::format(
          "the folder `{}` is the state of a flow, which cannot be a value: name another folder",
          folder_));
    struct stat info {};
    if (::stat(folder_.c_str(), &info) != 0) return system_error_("read", folder_, errno);
    return list("", info);
  }

  FolderListing listing;

 private:
  using Identity = std::pair<dev_t, ino_t>;

  std::string full(const std::string& path) const {
    return path.empty() ? folder_ : folder_ + "/" + path;
  }

  Status list(const std::string& path, const struct stat& info) {
    if (++folders_ > kEntriesMax) return too_many("folders");
    around_.emplace_back(info.st_dev, info.st_ino);
    std::error_code error;
    for (fs::directory_iterator at(full(path), error), end; !error && at != end;
         at.increment(error)) {
      std::string name = at->path().filename().string();
      if (path.empty() && name == left_out_) continue;
      FLOW_TRY(add(path.empty() ? name : path + "/" + name));
    }
    if (error) return system_error_("read the folder", full(path), error.value());
    around_.pop_back();
    return {};
  }

  Status add(std::string path) {
    struct stat info {};
    if (::stat(full(path).c_str(), &info) != 0) {
      int code = errno;
      std::string broken = broken_link(full(path));
      if (broken.empty()) return system_error_("read", full(path), code);
      return not_a_value(path, broken);
    }
    if (S_ISREG(info.st_mode)) {
      listing.files.push_back({std::move(path), info});
      return listing.files.size() > kEntriesMax ? too_many("files") : Status();
    }
    if (!S_ISDIR(info.st_mode)) return not_a_value(path, kind_of(info.st_mode));
    if (leads_back(path, info))
      return not_a_value(path, "a symbolic link to a folder that contains it");
    if (is_state_folder(full(path))) {
      listing.states.push_back(std::move(path));
      return {};
    }
    return list(path, info);
  }

  /// Also reports a link to a folder above the listed one: everything there would be listed before
  /// the walk came back to the link.
  bool leads_back(const std::string& path, const struct stat& info) const {
    Identity identity(info.st_dev, info.st_ino);
    if (std::find(around_.begin(), around_.end(), identity) != around_.end()) return true;
    struct stat link {};
    bool is_link = ::lstat(full(path).c_str(), &link) == 0 && S_ISLNK(link.st_mode);
    return is_link && lies_inside(full(path), full(path));
  }

  Error not_a_value(const std::string& path, const std::string& kind) const {
    return user_error(
        fmt::format("`{}` in the folder `{}` is {}. A folder may hold files, folders and links to "
                    "them: remove it, or name another folder",
                    path, folder_, kind));
  }

  Error too_many(const char* what) const {
    return user_error(fmt::format("the folder `{}` has more than {} {}, links followed", folder_,
                                  kEntriesMax, what));
  }

  const std::string& folder_;
  const std::string& left_out_;
  const SystemError system_error_;
  std::vector<Identity> around_;  // the folders that are being listed, outermost first
  size_t folders_ = 0;
};

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

/// Removes one tree through descriptors: a name that is replaced by a link meanwhile is not
/// followed.
class Remover {
 public:
  explicit Remover(std::string path) : path_(std::move(path)) {}

  void remove(int parent, const char* name) {
    struct stat info {};
    if (::fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return note();
    if (!S_ISDIR(info.st_mode)) {
      if (::unlinkat(parent, name, 0) != 0) note();
      return;
    }
    if (::unlinkat(parent, name, AT_REMOVEDIR) == 0) return;  // it was empty
    if (is_mount_point(parent, name)) return note_mount(parent, name);
    empty(parent, name, info.st_mode);
    if (::unlinkat(parent, name, AT_REMOVEDIR) != 0) note();
  }

  std::optional<Error> error;

 private:
  void empty(int parent, const char* name, mode_t mode) {
    if ((mode & S_IRWXU) != S_IRWXU) make_writable(parent, name, mode);
    int descriptor = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) return note();
    std::unique_ptr<DIR, CloseFolder> folder(::fdopendir(descriptor));
    if (folder == nullptr) {
      note();
      ::close(descriptor);
      return;
    }
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(folder.get())) {
      std::string_view each = entry->d_name;
      if (each != "." && each != "..") names.emplace_back(each);
    }
    for (const std::string& each : names) remove(descriptor, each.c_str());
  }

  /// A mounted file system is not part of the tree. A bind mount may have the st_dev of its parent.
  static bool is_mount_point(int parent, const char* name) {
    struct statx info {};
    if (::statx(parent, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &info) != 0) return false;
    if ((info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0)
      return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    // Linux before 5.8: a bind mount of the same file system is not recognized.
    struct statx around {};
    return ::statx(parent, "", AT_EMPTY_PATH, 0, &around) == 0 &&
           (info.stx_dev_major != around.stx_dev_major ||
            info.stx_dev_minor != around.stx_dev_minor);
  }

  void note_mount(int parent, const char* name) {
    if (error) return;
    std::error_code failed;
    fs::path folder = fs::read_symlink(fmt::format("/proc/self/fd/{}", parent), failed);
    std::string mount = (folder / name).string();
    error = environment_error(fmt::format(
        "cannot remove all of `{}`: a file system is mounted at `{}`, and what is on it "
        "is kept. Unmount it: umount `{}`",
        path_, mount, mount));
  }

  // fchmodat() follows links on most kernels. The descriptor's own name in /proc does not.
  static void make_writable(int parent, const char* name, mode_t mode) {
    int descriptor = ::openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) return;
    std::string opened = fmt::format("/proc/self/fd/{}", descriptor);
    (void)!::chmod(opened.c_str(), (mode & 07777) | S_IRWXU);  // opening it says why it failed
    ::close(descriptor);
  }

  void note() {
    int code = errno;
    if (code == ENOENT || error) return;
    error =
        environment_error(fmt::format("cannot remove all of `{}`: {}", path_, std::strerror(code)));
  }

  const std::string path_;
};

}  // namespace

Result<FolderListing> list_folder(const std::string& folder, const std::string& left_out,
                                  SystemError system_error) {
  Lister lister(folder, left_out, system_error);
  FLOW_TRY(lister.list_top());
  std::sort(lister.listing.files.begin(), lister.listing.files.end(),
            [](const FolderFile& a, const FolderFile& b) { return a.path < b.path; });
  return std::move(lister.listing);
}

Digest folder_digest(const std::vector<File::Entry>& entries) {
  Sha256 listing;
  for (const File::Entry& entry : entries) {
    std::string path;
    for (char c : entry.path) {
      if (c == '\\') path += '\\';
      path += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
    }
    listing.update(fmt::format("{} {} {}\n", entry.digest.hex(), entry.executable ? 1 : 0, path));
  }
  return listing.finish();
}

bool is_state_folder(const std::string& path) {
  struct stat info {};
  auto has_file = [&](const char* name) {
    return ::lstat((path + name).c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  return has_file("/lock") && has_file("/db/CURRENT");
}

std::string broken_link(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return "";
  int code = errno;
  std::error_code error;
  std::string target = fs::read_symlink(path, error).string();
  if (error) return "";
  if (code == ENOENT) return fmt::format("a symbolic link to `{}`, which does not exist", target);
  if (code == ELOOP) return fmt::format("a symbolic link to `{}`, which leads back to it", target);
  return "";
}

bool lies_inside(const std::string& folder, const std::string& path) {
  std::error_code error;
  fs::path outer = fs::canonical(folder, error);
  if (error) return false;
  fs::path parent = fs::path(path).parent_path();
  fs::path inner = fs::canonical(parent.empty() ? fs::path(".") : parent, error);
  if (error) return false;
  auto [end, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

Status remove_tree(const std::string& path) {
  fs::path named(path);
  if (!named.has_filename()) named = named.parent_path();
  fs::path parent = named.has_parent_path() ? named.parent_path() : fs::path(".");
  Remover remover(path);
  int descriptor = ::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) return {};
  if (descriptor < 0)
    return environment_error(fmt::format("cannot remove `{}`: {}", path, std::strerror(errno)));
  remover.remove(descriptor, named.filename().c_str());
  ::close(descriptor);
  return remover.error ? Status(*remover.error) : Status();
}

}  // namespace flow
