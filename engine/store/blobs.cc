// Blobs by digest: small ones in the database, large ones as read-only files under objects/.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/files.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/store/disk_space.hpp"
#include "engine/store/lock.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace {

Error failed(const std::string& what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

}  // namespace

Blobs::Blobs(Store& store, std::string dir) : store_(store), dir_(std::move(dir)) {}

std::string Blobs::path_of(const Digest& digest) const { return blob_path(dir_, digest); }

bool Blobs::has(const Digest& digest) const {
  auto row = store_.get(Family::blobs, digest.view());
  if (row.ok() && row->has_value()) return true;
  return ::access(path_of(digest).c_str(), R_OK) == 0;
}

bool Blobs::has(const Digest& digest, uint64_t size) const {
  if (size <= kInlineBlobMax) {
    auto row = store_.get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) return true;
  }
  struct stat info {};
  return ::stat(path_of(digest).c_str(), &info) == 0 && static_cast<uint64_t>(info.st_size) == size;
}

Status Blobs::check_unread(const Digest& digest) const {
  auto row = store_.get(Family::blobs, digest.view());
  FLOW_TRY(row);
  if (row->has_value()) return {};
  std::string path = path_of(digest);
  auto unread = [&](const std::string& why) {
    return environment_error(fmt::format("`{}` can't be read: {}", path, why));
  };
  if (::access(path.c_str(), F_OK) != 0)
    return errno == ENOENT ? Status() : unread(std::strerror(errno));
  auto bytes = read_file(path);
  return bytes.ok() ? Status() : unread(bytes.error().message);
}

bool Blobs::is_gone(const Digest& digest, std::optional<uint64_t> size) const {
  auto row = store_.get(Family::blobs, digest.view());
  if (!row.ok() || row->has_value()) return false;
  struct stat info {};
  if (::stat(path_of(digest).c_str(), &info) != 0) return errno == ENOENT || errno == ENOTDIR;
  return size && static_cast<uint64_t>(info.st_size) != *size;
}

Error Blobs::unwritten(const Error& error) const {
  return cannot_write(store_, dir_, error.message);
}

Status Blobs::write_blob_file(const Digest& digest, std::string_view bytes) const {
  NewBlobFile file(dir_);
  if (file.descriptor() < 0 || !write_all(file.descriptor(), bytes))
    return unwritten(failed("write", file.path()));
  if (Status published = file.publish_as(digest); !published) return unwritten(published.error());
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
    FLOW_TRY(refresh_blob(target));
    return digest;
  }
  FLOW_TRY(write_blob_file(digest, bytes));
  return digest;
}

Status Blobs::publish(NewBlobFile& file, const Digest& digest, uint64_t size) const {
  std::string target = path_of(digest);
  if (holds(target, digest, size)) return refresh_blob(target);
  if (Status published = file.publish_as(digest); !published) return unwritten(published.error());
  return {};
}

Blobs::Writer::Writer(const Blobs& blobs)
    : blobs_(blobs), file_(std::make_unique<NewBlobFile>(blobs.dir_)) {
  if (file_->descriptor() < 0) written_ = blobs_.unwritten(failed("write", file_->path()));
}

Blobs::Writer::~Writer() = default;

void Blobs::Writer::add(std::string_view piece) {
  if (!written_) return;
  hash_.update(piece);
  size_ += piece.size();
  if (!write_all(file_->descriptor(), piece))
    written_ = blobs_.unwritten(failed("write", file_->path()));
}

Result<Digest> Blobs::Writer::finish() {
  FLOW_TRY(written_);
  Digest digest = hash_.finish();
  FLOW_TRY(blobs_.publish(*file_, digest, size_));
  return digest;
}

Result<Digest> Blobs::put_file(const std::string& path, bool may_move) {
  FileDescriptor source(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (source.number < 0) return failed("read", path);
  NewBlobFile file(dir_);
  if (file.descriptor() < 0) return unwritten(failed("write", file.path()));
  // A reflink shares the data. The copy is hashed, because the source may still change.
  bool cloned = ::ioctl(file.descriptor(), FICLONE, source.number) == 0;
  int from = cloned ? file.descriptor() : source.number;
  auto content = sha256_descriptor(from, path, [&](std::string_view bytes) {
    if (cloned || write_all(file.descriptor(), bytes)) return Status();
    return Status(unwritten(failed("write", file.path())));
  });
  FLOW_TRY(content);
  Digest digest = content->digest;
  FLOW_TRY(publish(file, digest, content->size));
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
    if (::access(path.c_str(), R_OK) != 0) {
      FLOW_TRY(no_broken_links(dir_, {"objects"}));
      return environment_error(fmt::format(
          "the state does not hold the blob {}: it was collected or lost", digest.hex()));
    }
    auto content = read_file(path);
    FLOW_TRY(content);
    bytes = std::move(*content);
  }
  if (sha256(bytes) != digest)
    return environment_error(fmt::format(
        "the blob {} in the state is damaged: its bytes have another digest", digest.hex()));
  return bytes;
}

bool Blobs::drop_if_damaged(const Digest& digest) { return remove_unless(path_of(digest), digest); }

Result<std::string> Blobs::materialize(const Digest& digest) {
  std::string target = path_of(digest);
  if (::access(target.c_str(), R_OK) == 0) return target;
  auto bytes = get(digest);
  FLOW_TRY(bytes);
  FLOW_TRY(write_blob_file(digest, *bytes));
  return target;
}

}  // namespace flow
