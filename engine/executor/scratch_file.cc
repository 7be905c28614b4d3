#include "engine/executor/scratch_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace flow {

std::optional<ScratchFile> ScratchFile::open(const std::string& scratch, const std::string& path) {
  if (!path.starts_with(scratch + "/")) return std::nullopt;
  ScratchFile file;
  file.folder_ = ::open(scratch.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  std::string_view rest = std::string_view(path).substr(scratch.size() + 1);
  for (size_t slash = rest.find('/'); slash != rest.npos; slash = rest.find('/')) {
    std::string part(rest.substr(0, slash));
    rest.remove_prefix(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") return std::nullopt;
    int inner = ::openat(file.folder_, part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    ::close(std::exchange(file.folder_, inner));
    if (inner < 0) return std::nullopt;
  }
  file.name_ = rest;
  file.file_ =
      ::openat(file.folder_, file.name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  bool is_own = file.file_ >= 0 && ::fstat(file.file_, &file.info_) == 0 &&
                S_ISREG(file.info_.st_mode) && file.info_.st_nlink == 1 &&
                file.info_.st_uid == ::geteuid();
  return is_own ? std::optional(std::move(file)) : std::nullopt;
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : folder_(std::exchange(other.folder_, -1)),
      file_(std::exchange(other.file_, -1)),
      name_(std::move(other.name_)),
      info_(other.info_) {}

ScratchFile::~ScratchFile() {
  if (folder_ >= 0) ::close(folder_);
  if (file_ >= 0) ::close(file_);
}

bool ScratchFile::move_to(const std::string& target) const {
  return ::renameat(folder_, name_.c_str(), AT_FDCWD, target.c_str()) == 0;
}

}  // namespace flow
