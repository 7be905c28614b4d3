// A file in an attempt's scratch folder to which nothing else refers: the state can take it over
// without a copy.
#pragma once
#include <sys/stat.h>

#include <optional>
#include <string>

namespace flow {

class ScratchFile {
 public:
  /// Opens the regular file at `path`, which begins with `scratch` and a slash. Nothing if the file
  /// is not the attempt's alone: a link is part of the path below `scratch`, it has a second name,
  /// or it belongs to another user.
  static std::optional<ScratchFile> open(const std::string& scratch, const std::string& path);
  ~ScratchFile();
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&&) = delete;

  int descriptor() const { return file_; }
  const struct stat& info() const { return info_; }
  /// Moves the file to `target`, which must not exist. Returns false if the system does not allow
  /// it, as in a folder without write permission or on another file system.
  bool move_to(const std::string& target) const;

 private:
  ScratchFile() = default;

  int folder_ = -1;
  int file_ = -1;
  std::string name_;  // in the folder
  struct stat info_ {};
};

}  // namespace flow
