#include "engine/cluster/transfer/blob_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/size_units.hpp"
#include "engine/crypto/file_digest.hpp"

namespace flow::cluster {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kNsPerS = 1'000'000'000;

// The clock of file times (coarse): never ahead of a file time that is set later.
int64_t file_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

struct FileFacts {
  uint64_t size = 0;
  int64_t changed_ns = 0;
};

std::optional<FileFacts> facts_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return FileFacts{static_cast<uint64_t>(info.st_size),
                   info.st_ctim.tv_sec * kNsPerS + info.st_ctim.tv_nsec};
}

/// Parses the digest from a path under objects/; false if the path is not a blob's.
bool digest_of(const fs::path& path, const fs::path& objects, Digest& digest) {
  bool is_placed = path.parent_path().parent_path() == objects;
  std::string hex = path.parent_path().filename().string() + path.filename().string();
  return is_placed && Digest::parse_hex(hex, digest);
}

struct StoredFile {
  std::string path;
  std::optional<Digest> digest;  // nothing: not a blob
  FileFacts facts;
};

/// Free space for this user; nothing if the file system reports no limit.
std::optional<uint64_t> free_on_disk(int file) {
  struct statfs disk {};
  if (::fstatfs(file, &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return static_cast<uint64_t>(disk.f_bavail) * static_cast<uint64_t>(disk.f_bsize);
}

/// Allocates disk space before the download. Returns false if the disk lacks the space. One
/// allocation costs half as much as growing the file with each chunk.
bool preallocate(int file, uint64_t size) {
  auto free = free_on_disk(file);
  if (size == 0 || !free) return true;
  if (size > *free) return false;
  struct statfs disk {};
  // tmpfs would clear the memory now, before the first chunk arrives.
  bool is_disk = ::fstatfs(file, &disk) == 0 && disk.f_type != TMPFS_MAGIC;
  if (!is_disk || ::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) == 0)
    return true;
  return errno != ENOSPC && errno != EDQUOT && errno != EFBIG;  // other errors: not supported
}

std::vector<StoredFile> files_below(const std::string& dir) {
  std::vector<StoredFile> all;
  std::error_code error;
  fs::path objects = fs::path(dir) / "objects";
  for (fs::recursive_directory_iterator walk(objects, error), end; !error && walk != end;
       walk.increment(error)) {
    std::string path = walk->path().string();
    auto facts = facts_of(path);
    if (!facts) continue;
    StoredFile found{path, std::nullopt, *facts};
    if (Digest digest; digest_of(walk->path(), objects, digest)) found.digest = digest;
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace

BlobCache::BlobCache(const std::string& dir, Resolve resolve, bool is_own, uint64_t bytes_max)
    : dir_(dir),
      resolve_(std::move(resolve)),
      is_own_(is_own),
      bytes_max_(bytes_max),
      verified_(dir) {}

std::shared_ptr<BlobCache> BlobCache::of_state(const std::string& dir, Resolve resolve) {
  return std::shared_ptr<BlobCache>(new BlobCache(dir, std::move(resolve), false, 0));
}

Result<std::shared_ptr<BlobCache>> BlobCache::open(const std::string& dir, uint64_t bytes_max) {
  std::shared_ptr<BlobCache> store(new BlobCache(dir, nullptr, true, bytes_max));
  FLOW_TRY(store->load_index());
  return store;
}

Status BlobCache::load_index() {
  FLOW_TRY(make_dirs(dir_ + "/objects"));
  std::vector<StoredFile> all = files_below(dir_);
  std::sort(all.begin(), all.end(), [](const StoredFile& a, const StoredFile& b) {
    return a.facts.changed_ns < b.facts.changed_ns;
  });
  for (const StoredFile& found : all) {
    if (found.digest)
      index_.use(*found.digest, found.facts.size);
    else if (::unlink(found.path.c_str()) != 0)
      return environment_error(fmt::format("cannot remove `{}`, an incomplete file: {}", found.path,
                                           std::strerror(errno)));
  }
  return {};
}

bool BlobCache::has(const BlobInfo& blob) {
  auto facts = facts_of(path_of(blob.digest));
  bool is_there =
      facts && (!blob.size || *blob.size == facts->size) && verified_.is_verified(blob.digest);
  if (!is_there) return false;
  if (is_own_) {
    std::lock_guard lock(mutex_);
    index_.use(blob.digest, facts->size);
    return true;
  }
  // A head's garbage collection goes by file age, so the file is refreshed. A worker has pins
  // instead, and a new time would make its executors verify the file again.
  if (!refresh_blob(path_of(blob.digest)).ok()) return false;
  verified_.mark_verified(blob.digest);
  return true;
}

Result<BlobReader> BlobCache::open_reader(const Digest& digest) {
  auto object = BlobReader::of_file(path_of(digest), false);
  if (object.ok()) {
    std::lock_guard lock(mutex_);
    if (is_own_ && !index_.contains(digest)) index_.use(digest, object->size());
    return object;
  }
  if (::access(path_of(digest).c_str(), F_OK) == 0) return object.error();
  std::vector<BlobIndex::LentFile> lent;
  {
    std::lock_guard lock(mutex_);
    lent = index_.lent(digest);
  }
  std::optional<Error> problem;
  for (const BlobIndex::LentFile& file : lent) {
    auto source = BlobReader::of_file(file.path, file.may_change);
    if (source.ok()) return source;
    if (!problem) problem = source.error();
  }
  auto resolved = resolve_ ? resolve_(digest) : std::nullopt;
  if (resolved) return std::move(*resolved);
  if (problem) return *problem;
  return environment_error(
      fmt::format("the blob {} is not stored here: it was collected or lost", digest.hex()));
}

void BlobCache::drop_if_damaged(const Digest& digest) {
  if (!remove_unless(path_of(digest), digest)) return;
  {
    std::lock_guard lock(mutex_);
    index_.remove(digest);
  }
  notify_evicted(digest);
}

void BlobCache::pin(const std::string& owner, const std::vector<Digest>& digests) {
  std::lock_guard lock(mutex_);
  index_.pin(owner, digests, file_clock_ns());
}

void BlobCache::lend(const std::string& owner, const Digest& digest, const std::string& path,
                     bool may_change) {
  std::lock_guard lock(mutex_);
  index_.lend(owner, digest, {path, may_change}, file_clock_ns());
}

void BlobCache::will_place(const Digest& digest) {
  std::lock_guard lock(mutex_);
  placing_[digest]++;
}

void BlobCache::was_placed(const Digest& digest) {
  {
    std::lock_guard lock(mutex_);
    auto found = placing_.find(digest);
    if (found != placing_.end() && --found->second > 0) return;
    if (found != placing_.end()) placing_.erase(found);
    ::unlink(path_of(digest).c_str());
    index_.remove(digest);
  }
  notify_evicted(digest);
}

Status BlobCache::link_to(const Digest& digest, const std::string& file) {
  std::string target = dir_ + "/" + file, temporary = target + ".tmp-" + random_name();
  std::string folder = fs::path(target).parent_path().string();
  FLOW_TRY(make_dirs(folder));
  // The file may be replaced by the same content meanwhile; then the opened one has no name any
  // more.
  constexpr int kTries = 10;
  bool is_linked = false;
  for (int tries = 0; tries < kTries && !is_linked; tries++) {
    is_linked = ::link(path_of(digest).c_str(), temporary.c_str()) == 0;
    if (!is_linked && errno != ENOENT) break;
  }
  is_linked = is_linked && ::rename(temporary.c_str(), target.c_str()) == 0;
  int error = errno;
  ::unlink(temporary.c_str());  // a name of the same file is not renamed
  if (is_linked) return is_own_ ? Status() : sync_dir(folder);
  return environment_error(
      fmt::format("cannot link `{}` to `{}`: {}", path_of(digest), target, std::strerror(error)));
}

bool BlobCache::adopt_placed(const Digest& digest, const std::string& file) {
  std::string path = path_of(digest), placed = dir_ + "/" + file;
  if (!make_dirs(fs::path(path).parent_path().string()).ok()) return false;
  if (::link(placed.c_str(), path.c_str()) != 0 && errno != EEXIST) return false;
  auto facts = facts_of(path);
  if (!facts) return false;
  std::lock_guard lock(mutex_);
  index_.use(digest, facts->size);
  return true;
}

void BlobCache::evict(const Digest& digest) {
  std::vector<EvictedBlob> evicted;
  {
    std::lock_guard lock(mutex_);
    const BlobIndex::Entry* entry = index_.find(digest);
    if (entry == nullptr || index_.is_pinned(digest) || placing_.contains(digest)) return;
    evict(digest, *entry, evicted);
  }
  remove(evicted);
}

std::string BlobCache::set_aside(const std::string& file) {
  std::string trash_path = temporary_blob(dir_);
  return ::rename((dir_ + "/" + file).c_str(), trash_path.c_str()) == 0 ? trash_path : "";
}

bool BlobCache::unpin(const std::string& owner) {
  std::lock_guard lock(mutex_);
  index_.unpin(owner);
  return !has_space_for(0);
}

std::vector<Digest> BlobCache::pinned_by(const std::string& owner) const {
  std::lock_guard lock(mutex_);
  return index_.pinned_by(owner);
}

void BlobCache::note_created(const std::vector<BlobInfo>& blobs) {
  std::lock_guard lock(mutex_);
  for (const BlobInfo& blob : blobs)
    if (!index_.contains(blob.digest)) index_.use(blob.digest, *blob.size);
}

void BlobCache::trim() {
  std::vector<EvictedBlob> evicted;
  {
    std::lock_guard lock(mutex_);
    evict_for(0, evicted);
  }
  remove(evicted);
}

void BlobCache::evict_unpinned() {
  find_leftovers();
  std::vector<EvictedBlob> evicted;
  {
    std::lock_guard lock(mutex_);
    uint64_t used = 0;
    while (const auto* next = index_.next_unpinned(used)) {
      used = next->second.used;
      evict(next->first, next->second, evicted);
    }
  }
  remove(evicted);
}

BlobCache::Usage BlobCache::usage() const {
  std::lock_guard lock(mutex_);
  return {index_.bytes(), index_.pinned_bytes(), bytes_max_, evicted_, evicted_bytes_};
}

std::vector<BlobInfo> BlobCache::large(size_t count_max) const {
  std::vector<BlobInfo> blobs;
  std::lock_guard lock(mutex_);
  for (const auto& [digest, size] : index_.newest(kLargeBytes, count_max))
    blobs.push_back({digest, size});
  return blobs;
}

void BlobCache::on_evicted(std::function<void(const Digest&)> notify) {
  std::lock_guard lock(notify_mutex_);
  on_evicted_ = std::move(notify);
}

void BlobCache::notify_evicted(const Digest& digest) {
  std::lock_guard lock(notify_mutex_);
  if (on_evicted_) on_evicted_(digest);
}

Result<std::unique_ptr<BlobWriter>> BlobCache::begin(const Digest& digest, uint64_t size) {
  FLOW_TRY(reserve(size));
  std::unique_ptr<BlobWriter> writer(new BlobWriter(shared_from_this(), digest, size));
  if (writer->object_.descriptor() < 0)
    return environment_error(
        fmt::format("cannot write `{}`: {}", writer->object_.path(), std::strerror(errno)));
  FLOW_TRY(reserve_disk(writer->object_.descriptor(), size));
  return writer;
}

// Evicts blobs if the disk lacks space, but nothing if even evicting all of them would not suffice.
Status BlobCache::reserve_disk(int file, uint64_t size) {
  bool is_there = preallocate(file, size);
  if (!is_there && is_own_) find_leftovers();
  uint64_t used = 0;
  while (!is_there) {
    uint64_t free = free_on_disk(file).value_or(0);
    std::vector<EvictedBlob> evicted;
    {
      std::lock_guard lock(mutex_);
      uint64_t may_go = is_own_ ? index_.bytes() - index_.pinned_bytes() : 0;
      const auto* next = size <= free + may_go ? index_.next_unpinned(used) : nullptr;
      if (next == nullptr) {
        return environment_error(
            fmt::format("a blob of {} does not fit on the disk of `{}`, which has {} free: free "
                        "some space there{}",
                        format_bytes(size), dir_, format_bytes(free),
                        is_own_ ? ", or give the worker another --dir" : ""));
      }
      used = next->second.used;
      evict(next->first, next->second, evicted);
    }
    remove(evicted);
    is_there = preallocate(file, size);
  }
  return {};
}

Status BlobCache::reserve(uint64_t size) {
  std::vector<EvictedBlob> evicted;
  bool has_space;
  {
    std::lock_guard lock(mutex_);
    has_space = evict_for(size, evicted);
    if (has_space) reserved_ += size;
  }
  if (!has_space) {
    find_leftovers();
    std::lock_guard lock(mutex_);
    has_space = evict_for(size, evicted);
    if (has_space) reserved_ += size;
  }
  remove(evicted);
  if (has_space) return {};
  std::lock_guard lock(mutex_);
  if (size > bytes_max_)
    return environment_error(
        fmt::format("a blob of {} bytes exceeds the limit of `{}`: {} (--content-max)", size, dir_,
                    bytes_max_));
  return environment_error(
      fmt::format("a blob of {} bytes does not fit into `{}`: of its {} bytes {} belong to running "
                  "attempts or wait for the head, and {} are being downloaded",
                  size, dir_, bytes_max_, index_.pinned_bytes(), reserved_));
}

// Removing large files takes time, so they were only renamed under the lock.
void BlobCache::remove(const std::vector<EvictedBlob>& evicted) {
  for (const EvictedBlob& each : evicted) {
    ::unlink(each.path.c_str());
    if (each.size >= kLargeBytes) notify_evicted(each.digest);
  }
}

bool BlobCache::has_space_for(uint64_t size) const {
  uint64_t taken = index_.bytes() + reserved_;
  return bytes_max_ == 0 || (size <= bytes_max_ && taken <= bytes_max_ - size);
}

bool BlobCache::evict_for(uint64_t size, std::vector<EvictedBlob>& evicted) {
  uint64_t used = 0;
  while (!has_space_for(size)) {
    const auto* next = index_.next_unpinned(used);
    if (next == nullptr) return false;
    used = next->second.used;
    evict(next->first, next->second, evicted);
  }
  return true;
}

void BlobCache::evict(const Digest& digest, const BlobIndex::Entry& entry,
                      std::vector<EvictedBlob>& evicted) {
  std::string path = path_of(digest);
  auto now = facts_of(path);
  // A file that the cache did not write, or that was touched later, may belong to a running
  // attempt.
  bool is_ours = now && now->changed_ns == entry.written_ns;
  if (now && !is_ours && now->changed_ns >= index_.oldest_owner_ns()) return;
  if (now) {
    std::string trash_path = temporary_blob(dir_);
    if (::rename(path.c_str(), trash_path.c_str()) != 0) return;
    evicted.push_back({digest, now->size, trash_path});
    evicted_++;
    evicted_bytes_ += now->size;
  }
  index_.remove(Digest(digest));  // the given path lies in it
}

// Indexes files that ended attempts created and nothing has requested.
void BlobCache::find_leftovers() {
  std::vector<StoredFile> all = files_below(dir_);
  std::lock_guard lock(mutex_);
  for (const StoredFile& found : all) {
    bool is_left = found.digest && !index_.contains(*found.digest) &&
                   found.facts.changed_ns < index_.oldest_owner_ns();
    if (is_left) index_.add_unused(*found.digest, found.facts.size);
  }
}

void BlobCache::on_committed(const Digest& digest, uint64_t size) {
  verified_.mark_verified(digest);
  auto facts = facts_of(path_of(digest));
  std::lock_guard lock(mutex_);
  reserved_ -= size;
  if (is_own_ && facts) index_.add_written(digest, size, facts->changed_ns);
}

void BlobCache::release(uint64_t size) {
  std::lock_guard lock(mutex_);
  reserved_ -= size;
}

BlobWriter::BlobWriter(std::shared_ptr<BlobCache> store, const Digest& digest, uint64_t size)
    : store_(std::move(store)), digest_(digest), size_(size), object_(store_->dir()) {}

BlobWriter::~BlobWriter() {
  if (!is_committed_) store_->release(size_);
}

Status BlobWriter::write(std::string_view bytes) {
  FLOW_CHECK(bytes.size() <= size_ - written_);
  if (!write_all(object_.descriptor(), bytes))
    return environment_error(
        fmt::format("cannot write `{}`: {}", object_.path(), std::strerror(errno)));
  if (!store_->is_own_)  // the disk has work now: keep() waits for the rest
    ::sync_file_range(object_.descriptor(), static_cast<off_t>(written_),
                      static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
  written_ += bytes.size();
  return {};
}

Status BlobWriter::commit() {
  FLOW_CHECK(written_ == size_);
  FLOW_TRY(store_->is_own_ ? object_.publish_unsynced_as(digest_) : object_.publish_as(digest_));
  is_committed_ = true;
  store_->on_committed(digest_, size_);
  return {};
}

}  // namespace flow::cluster
