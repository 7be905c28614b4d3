#include "engine/store/log_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace flow {

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr size_t kAhead = 256 * 1024;
constexpr uint64_t kNoMore = UINT64_MAX;
constexpr size_t kScan = 32 * kLogBlock;  // read at once in search of a log's end

bool is_log(const std::string& path) { return path.ends_with(".log"); }

uint64_t number_of(const std::string& path) {
  return std::strtoull(std::filesystem::path(path).stem().c_str(), nullptr, 10);
}

ssize_t read_at(int descriptor, char* to, size_t size, uint64_t at) {
  size_t got = 0;
  while (got < size) {
    ssize_t n = ::pread(descriptor, to + got, size - got, static_cast<off_t>(at + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(got);
}

IOStatus io_error(const std::string& path) { return IOStatus::IOError(path, std::strerror(errno)); }

class WrittenLog final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WrittenLog(std::unique_ptr<rocksdb::FSWritableFile> file, const std::string& path,
             std::shared_ptr<SyncProgress> progress)
      : FSWritableFileOwnerWrapper(std::move(file)),
        number_(number_of(path)),
        descriptor_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)),
        progress_(std::move(progress)) {
    if (descriptor_ < 0) zeros_until_ = kNoMore;
  }
  ~WrittenLog() override { cut_zeros(); }

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    prepare(data.size());
    IOStatus status = FSWritableFileOwnerWrapper::Append(data, options, debug);
    if (status.ok()) size_ += data.size();
    return status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& verification,
                  IODebugContext* debug) override {
    prepare(data.size());
    IOStatus status = FSWritableFileOwnerWrapper::Append(data, options, verification, debug);
    if (status.ok()) size_ += data.size();
    return status;
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    uint64_t size = size_;  // another thread may append meanwhile
    IOStatus status = FSWritableFileOwnerWrapper::Sync(options, debug);
    if (status.ok()) progress_->advance(number_, size);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    cut_zeros();
    return FSWritableFileOwnerWrapper::Close(options, debug);
  }
  void PrepareWrite(size_t, size_t, const IOOptions&, IODebugContext*) override {}

 private:
  // Where that fails, on a full disk, the log just grows.
  void prepare(size_t coming) {
    uint64_t end = size_ + coming;
    if (end <= zeros_until_) return;
    static const std::string zeros(kAhead, '\0');
    ssize_t written = ::pwrite(descriptor_, zeros.data(), kAhead, static_cast<off_t>(end));
    zeros_until_ = written == ssize_t{kAhead} ? end + kAhead : kNoMore;
  }

  void cut_zeros() {
    if (descriptor_ < 0) return;
    (void)!::ftruncate(descriptor_, static_cast<off_t>(size_.load()));
    ::close(std::exchange(descriptor_, -1));
    zeros_until_ = kNoMore;
  }

  uint64_t number_;
  int descriptor_;
  std::shared_ptr<SyncProgress> progress_;
  std::atomic<uint64_t> size_{0};
  uint64_t zeros_until_ = 0;
};

class ReadLog final : public rocksdb::FSSequentialFile {
 public:
  ReadLog(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~ReadLog() override { ::close(descriptor_); }

  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    if (at_ + n > end_ && !find_end()) return io_error(path_);
    ssize_t got = read_at(descriptor_, scratch, std::min<uint64_t>(n, end_ - at_), at_);
    if (got < 0) return io_error(path_);
    *result = Slice(scratch, static_cast<size_t>(got));
    at_ += static_cast<uint64_t>(got);
    return IOStatus::OK();
  }
  IOStatus Skip(uint64_t n) override {
    if (at_ + n > end_ && !find_end()) return io_error(path_);
    at_ = std::min(at_ + n, end_);
    return IOStatus::OK();
  }

 private:
  bool find_end() {
    std::string bytes;
    while (true) {
      uint64_t start = end_ - end_ % kLogBlock;
      bytes.resize(kScan);
      ssize_t got = read_at(descriptor_, bytes.data(), bytes.size(), start);
      if (got < 0) return false;
      bytes.resize(static_cast<size_t>(got));
      if (bytes.size() <= end_ - start) return true;
      end_ = start + end_of_whole(bytes, end_ - start);
      if (end_ < start + kScan) return true;
    }
  }

  std::string path_;
  int descriptor_;
  uint64_t at_ = 0, end_ = 0;
};

class LogFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit LogFiles(std::shared_ptr<SyncProgress> progress)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), progress_(std::move(progress)) {}
  const char* Name() const override { return "flow"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewWritableFile(path, options, file, debug);
    if (status.ok() && is_log(path))
      *file = std::make_unique<WrittenLog>(std::move(*file), path, progress_);
    return status;
  }
  IOStatus NewSequentialFile(const std::string& path, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* file,
                             IODebugContext* debug) override {
    if (!is_log(path)) return FileSystemWrapper::NewSequentialFile(path, options, file, debug);
    int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return errno == ENOENT ? IOStatus::PathNotFound(path, std::strerror(errno)) : io_error(path);
    }
    *file = std::make_unique<ReadLog>(path, descriptor);
    return IOStatus::OK();
  }

 private:
  std::shared_ptr<SyncProgress> progress_;
};

}  // namespace

void SyncProgress::advance(uint64_t log, uint64_t size) {
  std::lock_guard lock(mutex_);
  if (log > newest_.log) newest_ = {log, size};
  if (log == newest_.log) newest_.size = std::max(newest_.size, size);
}

SyncMark SyncProgress::mark() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

std::shared_ptr<rocksdb::FileSystem> make_log_files(std::shared_ptr<SyncProgress> progress) {
  return std::make_shared<LogFiles>(std::move(progress));
}

uint64_t written_size(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  struct stat info {};
  uint64_t end = ::fstat(descriptor, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  std::string bytes(kLogBlock, '\0');
  while (end > 0) {
    size_t n = std::min<uint64_t>(bytes.size(), end);
    ssize_t got = read_at(descriptor, bytes.data(), n, end - n);
    if (got != static_cast<ssize_t>(n)) break;
    size_t last = std::string_view(bytes.data(), n).find_last_not_of('\0');
    end -= last == std::string_view::npos ? n : n - 1 - last;
    if (last != std::string_view::npos) break;
  }
  ::close(descriptor);
  return end;
}

}  // namespace flow
