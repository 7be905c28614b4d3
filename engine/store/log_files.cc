#include "engine/store/log_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace flow {

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr uint64_t kAheadMin = 256 * 1024, kAheadMax = 2 << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kNoMore = UINT64_MAX;
constexpr size_t kScan = 32 * kLogBlock;  // bytes per read when searching a log's end

bool is_log(const std::string& path) { return path.ends_with(".log"); }

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

/// Size up to the last byte that is neither zero nor fill pattern.
size_t written_size_of(std::string_view bytes) {
  size_t end = bytes.size();
  while (end > 0 && (bytes[end - 1] == '\0' || written_bytes(bytes, end - 1, end) == 0)) end--;
  return end;
}

IOStatus io_error(const std::string& path) { return IOStatus::IOError(path, std::strerror(errno)); }

/// A log that is being written. Thread-safe except for appending.
class OpenLog {
 public:
  OpenLog(const std::string& path, std::shared_ptr<SyncProgress> progress)
      : number_(log_number(path)),
        descriptor_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)),
        progress_(std::move(progress)) {}
  ~OpenLog() { close(); }

  bool is_open() const { return descriptor_ >= 0; }
  uint64_t size() const { return size_; }
  void grew(uint64_t bytes) { size_ += bytes; }
  void synced(uint64_t size) { progress_->advance(number_, size); }

  /// On failure errno holds the error, also for an earlier failure to close.
  bool sync() {
    std::lock_guard lock(mutex_);
    if (descriptor_ >= 0) return sync_open();
    if (!is_durable_) errno = close_errno_;
    return is_durable_;
  }

  // If preallocation fails, as on a full disk, the log grows with each write.
  void fill_before(uint64_t coming) {
    uint64_t end = size_ + coming;
    if (end <= filled_) return;
    uint64_t until = end + std::clamp(end, kAheadMin, kAheadMax);
    until += kPage - until % kPage + kSector;  // the middle of a page is not the start of a sector
    std::string piece(64 * 1024, '\0');
    fill_unwritten(piece, filled_);
    while (filled_ < until) {
      auto n = static_cast<size_t>(std::min<uint64_t>(piece.size(), until - filled_));
      if (::pwrite(descriptor_, piece.data(), n, static_cast<off_t>(filled_)) !=
          static_cast<ssize_t>(n)) {
        filled_ = kNoMore;
        return;
      }
      filled_ += n;
    }
    if (::fdatasync(descriptor_) != 0) filled_ = kNoMore;
  }

  // The data is durable before the final size is: a log with a final size is complete.
  void close() {
    std::lock_guard lock(mutex_);
    if (descriptor_ < 0) return;
    is_durable_ = sync_open();
    if (!is_durable_) close_errno_ = errno;
    if (is_durable_) (void)!::ftruncate(descriptor_, static_cast<off_t>(size_.load()));
    ::close(std::exchange(descriptor_, -1));
  }

 private:
  bool sync_open() {
    uint64_t size = size_;
    if (::fdatasync(descriptor_) != 0) return false;
    synced(size);
    return true;
  }

  uint64_t number_;
  std::mutex mutex_;
  int descriptor_;
  bool is_durable_ = false;  // when it was closed
  int close_errno_ = EIO;    // why it was not
  std::shared_ptr<SyncProgress> progress_;
  std::atomic<uint64_t> size_{0};
  uint64_t filled_ = 0;
};

class WrittenLog final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WrittenLog(std::unique_ptr<rocksdb::FSWritableFile> file, std::shared_ptr<OpenLog> log,
             std::shared_ptr<OpenLog> before)
      : FSWritableFileOwnerWrapper(std::move(file)),
        log_(std::move(log)),
        before_(std::move(before)) {}
  ~WrittenLog() override { log_->close(); }

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return append(data, [&] { return FSWritableFileOwnerWrapper::Append(data, options, debug); });
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& verification,
                  IODebugContext* debug) override {
    return append(data, [&] {
      return FSWritableFileOwnerWrapper::Append(data, options, verification, debug);
    });
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    uint64_t size = log_->size();  // another thread may append meanwhile
    IOStatus status = FSWritableFileOwnerWrapper::Sync(options, debug);
    if (status.ok()) log_->synced(size);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    log_->close();
    return FSWritableFileOwnerWrapper::Close(options, debug);
  }
  void PrepareWrite(size_t, size_t, const IOOptions&, IODebugContext*) override {}

 private:
  template <typename F>
  IOStatus append(const Slice& data, F write) {
    if (before_ && !before_->sync())
      return IOStatus::IOError("sync of a log", std::strerror(errno));
    before_.reset();
    log_->fill_before(data.size());
    IOStatus status = write();
    if (status.ok()) log_->grew(data.size());
    return status;
  }

  std::shared_ptr<OpenLog> log_, before_;
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
    if (!status.ok() || !is_log(path)) return status;
    auto log = std::make_shared<OpenLog>(path, progress_);
    if (!log->is_open()) return io_error(path);
    std::lock_guard lock(mutex_);
    *file = std::make_unique<WrittenLog>(std::move(*file), log, std::exchange(newest_, log));
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
  std::mutex mutex_;
  std::shared_ptr<OpenLog> newest_;
};

}  // namespace

void SyncProgress::advance(uint64_t log, uint64_t size) {
  std::lock_guard lock(mutex_);
  if (log > marks_.newest.log) marks_ = {{log, size}, marks_.newest};
  for (SyncMark* mark : {&marks_.newest, &marks_.before}) {
    if (log == mark->log) mark->size = std::max(mark->size, size);
  }
}

SyncMarks SyncProgress::marks() const {
  std::lock_guard lock(mutex_);
  return marks_;
}

std::shared_ptr<rocksdb::FileSystem> make_log_files(std::shared_ptr<SyncProgress> progress) {
  return std::make_shared<LogFiles>(std::move(progress));
}

uint64_t written_size(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  struct stat info {};
  uint64_t end = ::fstat(descriptor, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  std::string bytes(kScan, '\0');
  while (end > 0) {
    uint64_t start = (end - 1) / kScan * kScan;
    ssize_t got = read_at(descriptor, bytes.data(), static_cast<size_t>(end - start), start);
    if (got != static_cast<ssize_t>(end - start)) break;
    size_t written = written_size_of({bytes.data(), static_cast<size_t>(got)});
    end = start + written;
    if (written > 0) break;
  }
  ::close(descriptor);
  return end;
}

}  // namespace flow
