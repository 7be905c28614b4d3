// Stages inputs as inputs/N/NAME in the scratch folder, and detects changes.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/files.hpp"
#include "engine/base/system_error.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/executor/attempt.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// A Lua task knows its inputs by their paths only: all other names in ctx.dir belong to it.
constexpr const char* kHiddenInputs = ".flow-inputs";

bool runs_command(const wire::Start& start) {
  return static_cast<TaskKind>(start.kind()) == TaskKind::shell || !start.shell().command().empty();
}

Error failed(const char* what, const std::string& path) { return system_error(what, path, errno); }

Error changed(const std::string& path, const char* when) {
  return user_error(
      fmt::format("input changed: `{}` {}. Inputs are shared and read-only: `stage = \"copy\"` "
                  "gives a task writable copies; start the run again for new content",
                  path, when));
}

/// Shares the file's blocks if the file system supports it; otherwise false.
bool reflink(const std::string& source, const std::string& target) {
  static bool supported = true;
  if (!supported) return false;
  int from = ::open(source.c_str(), O_RDONLY | O_CLOEXEC);
  int to = ::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
  bool done = from >= 0 && to >= 0 && ::ioctl(to, FICLONE, from) == 0;
  if (from >= 0) ::close(from);
  if (to >= 0) ::close(to);
  if (!done && to >= 0) {
    ::unlink(target.c_str());
    supported = false;
  }
  return done;
}

bool is_safe(const std::string& relative) {
  fs::path path = fs::path(relative).lexically_normal();
  if (path.empty() || path.is_absolute() || *path.begin() == ".." || path == ".") return false;
  if (relative.find('\0') != relative.npos || relative.size() >= PATH_MAX) return false;
  return std::all_of(path.begin(), path.end(),
                     [](const fs::path& part) { return part.native().size() <= NAME_MAX; });
}

/// A folder cannot be staged if it names a file twice, or has a file inside a file.
Status check_folder(const File& folder, const std::string& name) {
  std::set<fs::path> files;
  for (const File::Entry& entry : folder.entries) {
    if (!is_safe(entry.path))
      return user_error(fmt::format("the folder `{}` has the unsafe path `{}`", name, entry.path));
    if (!files.insert(fs::path(entry.path).lexically_normal()).second)
      return user_error(fmt::format("the folder `{}` has the file `{}` twice", name, entry.path));
  }
  for (const fs::path& file : files) {
    for (fs::path parent = file.parent_path(); !parent.empty(); parent = parent.parent_path()) {
      if (files.contains(parent))
        return user_error(fmt::format("the folder `{}` has `{}` as a file and as a folder", name,
                                      parent.string()));
    }
  }
  return {};
}

}  // namespace

Result<std::string> Attempt::file_path(const File& file) {
  return note_error(stage(file, start_.shell().stage_copy()));
}

std::string Attempt::inputs_folder() const {
  return start_.dir() + "/" + (runs_command(start_) ? "inputs" : kHiddenInputs);
}

std::optional<Attempt::FileStamp> Attempt::stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  constexpr int64_t kNsPerS = 1'000'000'000;
  return FileStamp{info.st_dev, info.st_ino, info.st_size,
                   info.st_mtim.tv_sec * kNsPerS + info.st_mtim.tv_nsec,
                   info.st_ctim.tv_sec * kNsPerS + info.st_ctim.tv_nsec};
}

/// Whether a large input, which is read in place, still has the content with which the run was
/// started. An executor hashes each version of the file once.
Status Attempt::check_origin(const std::string& path, const Digest& digest) {
  static std::map<std::string, std::pair<FileStamp, Digest>> known;
  auto now = stamp_of(path);
  if (!now) return failed("read the input", path);
  auto seen = known.find(path);
  if (seen == known.end() || seen->second.first != *now) {
    auto content = sha256_file(path);
    FLOW_TRY(content);
    seen = known.insert_or_assign(path, std::pair(*now, content->digest)).first;
  }
  if (seen->second.second == digest) return {};
  return changed(path, "differs from what the run was started with");
}

Status Attempt::place_file(const std::string& source, const std::string& target,
                           const Digest& digest, bool is_blob, bool executable, bool copy) {
  Source kind = is_blob ? Source::blob : Source::origin;
  if (!is_blob) {
    Status same = check_origin(source, digest);
    if (!same.ok()) changed_input_ = same;
    FLOW_TRY(same);
  }
  if (copy || executable) {
    std::error_code error;
    fs::copy_file(source, target, error);
    if (error)
      return system_error("copy", fmt::format("{}` to `{}", source, target), error.value());
    mode_t mode = (copy ? 0600u : 0400u) | (executable ? 0100u : 0u);
    if (::chmod(target.c_str(), mode) != 0) return failed("change the mode of", target);
    if (copy) return {};
    kind = Source::copy;
  } else if (is_blob && reflink(source, target)) {
    kind = Source::copy;
  } else if (::symlink(source.c_str(), target.c_str()) != 0) {
    return failed("write", target);
  }
  auto stamp = stamp_of(target);
  if (!stamp) return failed("read the input", source);
  staged_.push_back({target, *stamp, digest, kind});
  return {};
}

Status Attempt::make_scratch() {
  wait_durable();
  // A run that continues with other code counts its attempts from 1 again.
  if (!std::exchange(has_scratch_, true)) FLOW_TRY(note_error(remove_tree(start_.dir())));
  return note_error(make_dirs(start_.dir()));
}

void Attempt::remove_scratch() {
  if (!has_scratch_) return;
  if (Status removed = remove_tree(start_.dir()); !removed.ok()) warn(removed.error().message);
}

Result<File> Attempt::store_file(const std::string& path) {
  wait_durable();
  FLOW_TRY(wait_for_writers(path));
  auto file = note_error(blobs_.store_file(path, path == start_.dir() ? kHiddenInputs : ""));
  log_warnings();
  return file;
}

void Attempt::log_warnings() {
  for (const std::string& warning : blobs_.take_warnings()) warn(warning);
}

Result<std::string> Attempt::stage(const File& file, bool copy) {
  std::string name = file.name.empty() ? "input" : file.name;
  std::string identity = file.digest.hex() + (file.is_folder ? "/" : " ") + name;
  auto known = staged_paths_.find(identity);
  if (known != staged_paths_.end()) return known->second;
  // A file of a folder is named by its path in it (flow.list).
  if (!is_safe(name) || fs::path(name).lexically_normal() != fs::path(name))
    return user_error(fmt::format("a file can't be named `{}`", name));
  FLOW_TRY(make_scratch());
  std::string folder = fmt::format("{}/{}", inputs_folder(), staged_paths_.size() + 1);
  std::string path = folder + "/" + name;
  FLOW_TRY(make_dirs(fs::path(path).parent_path().string()));
  if (!file.origin.empty()) origins_.insert(file.origin);
  // Small blobs from the order are written here. A command may list `inputs`.
  std::string content = (runs_command(start_) ? start_.dir() : inputs_folder()) + "/.content";
  auto place_content = [&](const Digest& digest, const std::string& origin,
                           const std::string& target, bool executable) -> Status {
    if (!origin.empty()) return place_file(origin, target, digest, false, executable, copy);
    auto source = blobs_.path(digest, content);
    FLOW_TRY(source);
    return place_file(*source, target, digest, true, executable, copy);
  };
  if (!file.is_folder) {
    FLOW_TRY(place_content(file.digest, file.origin, path, file.executable));
  } else {
    FLOW_TRY(check_folder(file, name));
    FLOW_TRY(make_dirs(path));
    for (const File::Entry& entry : file.entries) {
      std::string target = path + "/" + entry.path;
      FLOW_TRY(make_dirs(fs::path(target).parent_path().string()));
      std::string origin = file.origin.empty() ? "" : file.origin + "/" + entry.path;
      FLOW_TRY(place_content(entry.digest, origin, target, entry.executable));
    }
  }
  staged_paths_[identity] = path;
  return path;
}

std::vector<std::string> Attempt::outside_inputs() const {
  std::vector<std::string> paths(origins_.begin(), origins_.end());
  std::string objects = state_dir_ + "/objects";
  if (!staged_.empty() && ::access(objects.c_str(), R_OK) == 0) paths.push_back(objects);
  return paths;
}

// The digest decides for blobs in the state: another attempt may have stored the same blob again,
// which changes the file's times. flow never changes the times of a file that is read in place, so
// every difference counts there, also one that was undone.
bool Attempt::is_unchanged(const Staged& input) {
  auto now = stamp_of(input.path);
  if (now == input.stamp) return true;
  if (!now || input.source == Source::origin || now->size != input.stamp.size) return false;
  auto content = sha256_file(input.path);
  return content.ok() && content->digest == input.digest;
}

Status Attempt::check_inputs() {
  if (!changed_input_.ok()) return changed_input_;
  for (const Staged& input : staged_) {
    if (is_unchanged(input)) continue;
    if (input.source == Source::blob) blobs_.drop_if_damaged(input.digest);
    return changed(input.path, "was written to while the attempt ran");
  }
  return {};
}

}  // namespace flow
