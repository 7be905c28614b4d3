// A file that an attempt's command made in its scratch folder and that nothing else names: the
// state may take it over without a copy.
#pragma once
#include <sys/stat.h>

#include <optional>
#include <string>

namespace flow {

class ScratchFile {
 public:
  /// Opens the regular file at `path`, which begins with `scratch` and a slash. Nothing where the
  /// file is not the attempt's own: a link lies on the way from `scratch`, it has a second name, or
  /// it belongs to another user.
  static std::optional<ScratchFile> open(const std::string& scratch, const std::string& path);
  ~ScratchFile();
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&&) = delete;

  int descriptor() const { return file_; }
  const struct stat& info() const { return info_; }
  /// Moves it to `target`, which must not exist. False where the system refuses, as for a folder
  /// without write permission or another file system.
  bool move_to(const std::string& target) const;

 private:
  ScratchFile() = default;

  int folder_ = -1;
  int file_ = -1;
  std::string name_;  // in the folder
  struct stat info_ {};
};

}  // namespace flow
