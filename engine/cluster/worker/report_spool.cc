#include "engine/cluster/worker/report_spool.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "flow/digest.hpp"

namespace flow::cluster {

namespace fs = std::filesystem;

namespace {

constexpr size_t kHeaderBytes = 8;            // size and check, of four bytes each
constexpr uint64_t kFileMax = 64u << 20;      // size at which another file is started
constexpr size_t kCachedBytesMax = 8u << 20;  // bytes kept in memory too
constexpr uint64_t kEntryMax = 1u << 30;      // a longer entry is damaged
constexpr const char* kSuffix = ".reports";

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

uint32_t check_of(std::string_view bytes) {
  Digest digest = sha256(bytes);
  uint32_t check = 0;
  std::memcpy(&check, digest.view().data(), sizeof check);
  return check;
}

std::string framed(std::string_view bytes) {
  uint32_t size = static_cast<uint32_t>(bytes.size()), check = check_of(bytes);
  std::string frame(kHeaderBytes, '\0');
  std::memcpy(frame.data(), &size, sizeof size);
  std::memcpy(frame.data() + sizeof size, &check, sizeof check);
  return frame.append(bytes);
}

bool read_at(int descriptor, char* to, size_t size, uint64_t offset) {
  while (size > 0) {
    ssize_t got = ::pread(descriptor, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    size -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<ReportSpool>> ReportSpool::open(const std::string& dir) {
  std::unique_ptr<ReportSpool> spool(new ReportSpool(dir));
  FLOW_TRY(make_dirs(dir));
  FLOW_TRY(spool->read_id());
  FLOW_TRY(spool->load());
  return spool;
}

ReportSpool::~ReportSpool() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string ReportSpool::id_path() const { return dir_ + "/id"; }

std::string ReportSpool::path_of(uint64_t file) const {
  return fmt::format("{}/{:020}{}", dir_, file, kSuffix);
}

// After a machine crash entries that the head has already seen may be lost, and their numbers would
// be reused: a new id starts a new sequence of numbers.
Status ReportSpool::read_id() {
  constexpr size_t kIdMax = 256;
  auto id = read_file(id_path(), kIdMax);
  bool is_of_this_boot = id.ok() && id->ends_with("\n" + boot_id());
  if (!is_of_this_boot) return renew_id();
  id_ = id->substr(0, id->find('\n'));
  return {};
}

Status ReportSpool::renew_id() {
  constexpr size_t kIdLength = 24;
  id_ = random_name(kIdLength);
  return write_file_atomic(id_path(), id_ + "\n" + boot_id());
}

Status ReportSpool::load() {
  std::vector<uint64_t> files;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(dir_, failed)) {
    std::string name = entry.path().filename().string();
    uint64_t file = 0;
    auto parsed = std::from_chars(name.data(), name.data() + name.size(), file);
    if (parsed.ec == std::errc() && file > 0 && std::string_view(parsed.ptr) == kSuffix)
      files.push_back(file);
  }
  if (failed) return environment_error(fmt::format("cannot read `{}`: {}", dir_, failed.message()));
  std::sort(files.begin(), files.end());
  if (!files.empty()) first_ = files.front();
  for (uint64_t file : files) {
    // A file is complete if the next one starts with the number after its last entry.
    if (file != first_ + entries_.size()) {
      is_damaged_ = true;
      ::unlink(path_of(file).c_str());
      continue;
    }
    FLOW_TRY(load_file(file));
  }
  next_ = first_;
  if (is_damaged_) FLOW_TRY(renew_id());
  return begin_file();
}

Status ReportSpool::load_file(uint64_t file) {
  std::string path = path_of(file);
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failed("read", path);
  files_.push_back(file);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) info.st_size = 0;
  uint64_t offset = 0, end = static_cast<uint64_t>(info.st_size);
  while (offset + kHeaderBytes <= end) {
    char header[kHeaderBytes];
    uint32_t size = 0, check = 0;
    if (!read_at(descriptor, header, sizeof header, offset)) break;
    std::memcpy(&size, header, sizeof size);
    std::memcpy(&check, header + sizeof size, sizeof check);
    if (offset + kHeaderBytes + size > end) break;
    std::string bytes(size, '\0');
    if (!read_at(descriptor, bytes.data(), size, offset + kHeaderBytes)) break;
    if (check_of(bytes) != check) break;
    EntryLocation location;
    location.file = file;
    location.offset = offset + kHeaderBytes;
    location.size = size;
    entries_.push_back(std::move(location));
    bytes_ += size;
    offset += kHeaderBytes + size;
  }
  ::close(descriptor);
  is_damaged_ = is_damaged_ || offset != end;
  return {};
}

Status ReportSpool::begin_file() {
  uint64_t file = first_ + entries_.size();
  std::string path = path_of(file);
  int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return failed("write", path);
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = descriptor;
  end_ = 0;
  if (files_.empty() || files_.back() != file) files_.push_back(file);
  return {};
}

uint64_t ReportSpool::append(std::string bytes) {
  if (end_ >= kFileMax) {
    if (Status begun = begin_file(); !begun) problem_ = begun.error().message;
    drop_files();
  }
  EntryLocation location;
  location.size = static_cast<uint32_t>(bytes.size());
  bytes_ += bytes.size();
  bool is_written = write(bytes, location);
  if (!is_written || cached_bytes_ + bytes.size() <= kCachedBytesMax) {
    cached_bytes_ += bytes.size();
    location.bytes = std::move(bytes);
  }
  entries_.push_back(std::move(location));
  return last();
}

// A file holds consecutive entries; after a gap a restart would misnumber the entries behind it. So
// nothing is appended to a file with a failed write, or to any later one, until all are released.
bool ReportSpool::write(std::string_view bytes, EntryLocation& location) {
  bool has_gap = !entries_.empty() && entries_.back().file == 0;
  if (has_gap || bytes.size() > kEntryMax) return false;
  std::string frame = framed(bytes);
  if (::lseek(descriptor_, static_cast<off_t>(end_), SEEK_SET) < 0 ||
      !write_all(descriptor_, frame)) {
    problem_ = failed("write", path_of(files_.back())).message;
    if (::ftruncate(descriptor_, static_cast<off_t>(end_)) != 0) end_ = kFileMax;
    return false;
  }
  location.file = files_.back();
  location.offset = end_ + kHeaderBytes;
  end_ += frame.size();
  return true;
}

void ReportSpool::acknowledge(uint64_t number) {
  bool had_gap = !entries_.empty() && entries_.back().file == 0;
  while (first_ <= number && !entries_.empty()) {
    EntryLocation& location = entries_.front();
    bytes_ -= location.size;
    if (location.bytes) cached_bytes_ -= location.size;
    entries_.pop_front();
    first_++;
  }
  next_ = std::max(next_, first_);
  // Numbers continue behind those that are in no file.
  if (entries_.empty() && (had_gap || end_ >= kFileMax)) {
    if (Status begun = begin_file(); !begun) problem_ = begun.error().message;
  }
  drop_files();
}

// A file is needed while one of its entries is; the last file always, for its number.
void ReportSpool::drop_files() {
  while (files_.size() > 1 && files_[1] <= first_) {
    ::unlink(path_of(files_.front()).c_str());
    files_.pop_front();
  }
}

std::optional<ReportSpool::Entry> ReportSpool::next() {
  while (has_next()) {
    const EntryLocation& location = entries_[next_ - first_];
    uint64_t number = next_++;
    if (location.bytes) return Entry{number, *location.bytes};
    auto bytes = read(location);
    if (bytes.ok()) return Entry{number, std::move(*bytes)};
    problem_ = bytes.error().message;
  }
  return std::nullopt;
}

Result<std::string> ReportSpool::read(const EntryLocation& location) const {
  std::string path = path_of(location.file);
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failed("read", path);
  std::string bytes(location.size, '\0');
  bool ok = read_at(descriptor, bytes.data(), bytes.size(), location.offset);
  ::close(descriptor);
  if (ok) return bytes;
  return environment_error(fmt::format("`{}` became shorter while it was in use", path));
}

}  // namespace flow::cluster
