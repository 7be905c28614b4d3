#include "engine/cluster/worker/spool_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"

namespace flow::cluster {

namespace {

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

class DiskFile final : public SpoolFile {
 public:
  DiskFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~DiskFile() override { ::close(descriptor_); }

  uint64_t size() const override {
    struct stat info {};
    return ::fstat(descriptor_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  }

  Result<std::string> read(uint64_t offset, size_t size) const override {
    std::string bytes(size, '\0');
    size_t read = 0;
    while (read < size) {
      ssize_t got =
          ::pread(descriptor_, bytes.data() + read, size - read, static_cast<off_t>(offset + read));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("read", path_);
      if (got == 0)
        return environment_error(fmt::format("`{}` became shorter while it was in use", path_));
      read += static_cast<size_t>(got);
    }
    return bytes;
  }

  Status write(uint64_t offset, std::string_view bytes) override {
    bool is_written = ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) >= 0 &&
                      write_all(descriptor_, bytes);
    if (!is_written) return failed("write", path_);
    return {};
  }

  Status truncate(uint64_t size) override {
    if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) return failed("truncate", path_);
    return {};
  }

 private:
  const std::string path_;
  const int descriptor_;
};

class DiskFolder final : public SpoolFolder {
 public:
  explicit DiskFolder(std::string dir) : dir_(std::move(dir)) {}

  Result<std::vector<std::string>> names() override {
    FLOW_TRY(make_dirs(dir_));
    std::vector<std::string> names;
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(dir_, failed))
      names.push_back(entry.path().filename().string());
    if (failed)
      return environment_error(fmt::format("cannot read `{}`: {}", dir_, failed.message()));
    return names;
  }

  Result<std::unique_ptr<SpoolFile>> open(const std::string& name) override {
    return open(name, O_RDONLY, "read");
  }
  Result<std::unique_ptr<SpoolFile>> create(const std::string& name) override {
    return open(name, O_RDWR | O_CREAT | O_TRUNC, "write");
  }
  Status replace(const std::string& name, std::string_view content) override {
    return write_file_atomic(path_of(name), content);
  }
  void remove(const std::string& name) override { ::unlink(path_of(name).c_str()); }
  std::string boot_id() const override { return flow::boot_id(); }

 private:
  std::string path_of(const std::string& name) const { return dir_ + "/" + name; }
  Result<std::unique_ptr<SpoolFile>> open(const std::string& name, int flags, const char* what) {
    std::string path = path_of(name);
    int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
    if (descriptor < 0) return failed(what, path);
    return std::unique_ptr<SpoolFile>(std::make_unique<DiskFile>(std::move(path), descriptor));
  }

  const std::string dir_;
};

}  // namespace

std::shared_ptr<SpoolFolder> open_spool_folder(const std::string& dir) {
  return std::make_shared<DiskFolder>(dir);
}

}  // namespace flow::cluster
