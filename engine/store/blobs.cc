// Content by digest: small in the database, large as read-only files under objects/.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/store/room.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kChunk = 1 << 20;

Error failed(const std::string& what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

/// A name that survives a power cut.
Status sync_name(const std::string& target) {
  std::string folder = fs::path(target).parent_path().string();
  FLOW_TRY(sync_dir(folder));
  return sync_dir(fs::path(folder).parent_path().string());
}

/// Content that is stored again counts as new: what collects garbage leaves it alone for a while.
void touch(const std::string& target) { ::utimensat(AT_FDCWD, target.c_str(), nullptr, 0); }

/// A file that is removed again unless it was renamed into place.
class Temporary {
 public:
  explicit Temporary(const std::string& dir) {
    (void)make_dirs(dir);  // without it the file can't be made, which is told
    path_ = dir + "/tmp-XXXXXX";
    failpoint("blob-before-temporary");
    descriptor_ = mkostemp(path_.data(), O_CLOEXEC);
  }
  ~Temporary() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!kept_ && descriptor_ >= 0) ::unlink(path_.c_str());
  }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

  /// Synced, read-only, under its name, which is synced too.
  Status keep_as(const std::string& target) {
    failpoint("blob-after-write");
    if (::fchmod(descriptor_, 0400) != 0 || ::fsync(descriptor_) != 0) return failed("sync", path_);
    failpoint("blob-after-sync");
    std::string folder = fs::path(target).parent_path().string();
    FLOW_TRY(make_dirs(folder));
    if (::rename(path_.c_str(), target.c_str()) != 0) return failed("write", target);
    kept_ = true;
    failpoint("blob-after-rename");
    return sync_name(target);
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  bool kept_ = false;
};

}  // namespace

Blobs::Blobs(Store& store, std::string dir) : store_(store), dir_(std::move(dir)) {}

std::string Blobs::path_of(const Digest& digest) const {
  std::string hex = digest.hex();
  return dir_ + "/objects/" + hex.substr(0, 2) + "/" + hex.substr(2);
}

bool Blobs::has(const Digest& digest) const {
  auto row = store_.get(Family::blobs, digest.view());
  if (row.ok() && row->has_value()) return true;
  return ::access(path_of(digest).c_str(), R_OK) == 0;
}

Error Blobs::unwritten(const Error& error) const {
  return cannot_write(store_, dir_, error.message);
}

Status Blobs::write_object(const std::string& target, std::string_view bytes) const {
  Temporary temporary(dir_ + "/objects");
  if (temporary.descriptor() < 0 || !write_all(temporary.descriptor(), bytes))
    return unwritten(failed("write", temporary.path()));
  if (Status kept = temporary.keep_as(target); !kept) return unwritten(kept.error());
  return {};
}

Result<Digest> Blobs::put(std::string_view bytes, Batch& batch) {
  Digest digest = sha256(bytes);
  if (bytes.size() <= kInlineBlobMax) {
    batch.put(Family::blobs, std::string(digest.view()), std::string(bytes));
    return digest;
  }
  std::string target = path_of(digest);
  if (holds(target, digest, bytes.size())) {  // a damaged one is written again
    // Whoever wrote it may not have come to sync its name yet.
    FLOW_TRY(sync_name(target));
    touch(target);
    return digest;
  }
  FLOW_TRY(write_object(target, bytes));
  return digest;
}

Result<Digest> Blobs::put_file(const std::string& path, bool may_move) {
  int source = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return failed("read", path);
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } close_source{source};
  Temporary temporary(dir_ + "/objects");
  if (temporary.descriptor() < 0) return unwritten(failed("write", temporary.path()));
  // A reflink shares the content. What is hashed is what is kept: the source may still change.
  bool cloned = ::ioctl(temporary.descriptor(), FICLONE, source) == 0;
  int from = cloned ? temporary.descriptor() : source;
  Sha256 hash;
  uint64_t size = 0;
  std::string chunk(kChunk, '\0');
  while (true) {
    ssize_t got = ::read(from, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path);
    if (got == 0) break;
    std::string_view bytes(chunk.data(), static_cast<size_t>(got));
    hash.update(bytes);
    size += bytes.size();
    if (!cloned && !write_all(temporary.descriptor(), bytes))
      return unwritten(failed("write", temporary.path()));
  }
  Digest digest = hash.finish();
  std::string target = path_of(digest);
  if (holds(target, digest, size)) {
    FLOW_TRY(sync_name(target));
    touch(target);
  } else {
    if (Status kept = temporary.keep_as(target); !kept) return unwritten(kept.error());
  }
  if (may_move) ::unlink(path.c_str());
  return digest;
}

Result<std::string> Blobs::get(const Digest& digest) const {
  auto row = store_.get(Family::blobs, digest.view());
  FLOW_TRY(row);
  std::string bytes;
  if (row->has_value()) {
    bytes = std::move(**row);
  } else {
    std::string path = path_of(digest);
    if (::access(path.c_str(), R_OK) != 0)
      return environment_error(fmt::format(
          "the state does not hold the content {}: it was collected or lost", digest.hex()));
    auto content = read_file(path);
    FLOW_TRY(content);
    bytes = std::move(*content);
  }
  if (sha256(bytes) != digest)
    return environment_error(fmt::format(
        "the content {} in the state is damaged: its bytes have another digest", digest.hex()));
  return bytes;
}

bool Blobs::drop_if_damaged(const Digest& digest) { return remove_unless(path_of(digest), digest); }

Result<std::string> Blobs::materialize(const Digest& digest) {
  std::string target = path_of(digest);
  if (::access(target.c_str(), R_OK) == 0) return target;
  auto bytes = get(digest);
  FLOW_TRY(bytes);
  FLOW_TRY(write_object(target, *bytes));
  return target;
}

}  // namespace flow
