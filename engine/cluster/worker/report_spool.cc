#include "engine/cluster/worker/report_spool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/ids.hpp"
#include "engine/core/mutants.hpp"
#include "flow/digest.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kHeaderBytes = 8;            // size and check, of four bytes each
constexpr uint64_t kFileMax = 64u << 20;      // size at which another file is started
constexpr size_t kCachedBytesMax = 8u << 20;  // bytes kept in memory too
constexpr uint64_t kEntryMax = 1u << 30;      // a longer entry is damaged
constexpr const char* kSuffix = ".reports";
constexpr const char* kIdFile = "id";

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

/// The name of the file whose first entry has this number.
std::string name_of(uint64_t file) { return fmt::format("{:020}{}", file, kSuffix); }

}  // namespace

Result<std::unique_ptr<ReportSpool>> ReportSpool::open(std::shared_ptr<SpoolFolder> folder) {
  std::unique_ptr<ReportSpool> spool(new ReportSpool(std::move(folder)));
  FLOW_TRY(spool->load());
  return spool;
}

// After a machine crash entries that the head has already seen may be lost, and their numbers would
// be reused: a new id starts a new sequence of numbers.
Status ReportSpool::read_id() {
  constexpr size_t kIdMax = 256;
  auto file = folder_->open(kIdFile);
  auto id = file.ok() ? (*file)->read(0, std::min<uint64_t>((*file)->size(), kIdMax))
                      : Result<std::string>(file.error());
  bool is_of_this_boot = id.ok() && id->ends_with("\n" + folder_->boot_id());
  if (!is_of_this_boot) return renew_id();
  id_ = id->substr(0, id->find('\n'));
  return {};
}

Status ReportSpool::renew_id() {
  constexpr size_t kIdLength = 24;
  id_ = random_name(kIdLength);
  return write_id();
}

Status ReportSpool::write_id() {
  return folder_->replace(kIdFile, id_ + "\n" + folder_->boot_id());
}

Status ReportSpool::load() {
  auto names = folder_->names();
  FLOW_TRY(names);
  FLOW_TRY(read_id());
  std::vector<uint64_t> files;
  for (const std::string& name : *names) {
    uint64_t file = 0;
    auto parsed = std::from_chars(name.data(), name.data() + name.size(), file);
    if (parsed.ec == std::errc() && file > 0 && std::string_view(parsed.ptr) == kSuffix)
      files.push_back(file);
  }
  std::sort(files.begin(), files.end());
  if (!files.empty()) first_ = files.front();
  for (uint64_t file : files) {
    // A file is complete if the next one starts with the number after its last entry.
    if (file != first_ + entries_.size()) {
      is_damaged_ = true;
      folder_->remove(name_of(file));
      continue;
    }
    FLOW_TRY(load_file(file));
  }
  next_ = first_;
  if (is_damaged_) FLOW_TRY(renew_id());
  return begin_file();
}

Status ReportSpool::load_file(uint64_t number) {
  auto file = folder_->open(name_of(number));
  FLOW_TRY(file);
  files_.push_back(number);
  uint64_t offset = 0, end = (*file)->size();
  while (offset + kHeaderBytes <= end) {
    auto header = (*file)->read(offset, kHeaderBytes);
    if (!header.ok()) break;
    uint32_t size = 0, check = 0;
    std::memcpy(&size, header->data(), sizeof size);
    std::memcpy(&check, header->data() + sizeof size, sizeof check);
    if (offset + kHeaderBytes + size > end) break;
    auto bytes = (*file)->read(offset + kHeaderBytes, size);
    if (!bytes.ok() || check_of(*bytes) != check) break;
    EntryLocation location;
    location.file = number;
    location.offset = offset + kHeaderBytes;
    location.size = size;
    entries_.push_back(std::move(location));
    bytes_ += size;
    offset += kHeaderBytes + size;
  }
  is_damaged_ = is_damaged_ || offset != end;
  return {};
}

Status ReportSpool::begin_file() {
  uint64_t number = first_ + entries_.size();
  auto file = folder_->create(name_of(number));
  FLOW_TRY(file);
  last_file_ = std::move(*file);
  end_ = 0;
  if (files_.empty() || files_.back() != number) files_.push_back(number);
  drop_files();
  return std::exchange(has_gap_, false) ? write_id() : Status();
}

uint64_t ReportSpool::append(std::string bytes) {
  EntryLocation location;
  location.size = static_cast<uint32_t>(bytes.size());
  Status written = write(bytes, location);
  if (!written) begin_gap(written.error());
  bytes_ += bytes.size();
  if (!written || cached_bytes_ + bytes.size() <= kCachedBytesMax) {
    cached_bytes_ += bytes.size();
    location.bytes = std::move(bytes);
  }
  entries_.push_back(std::move(location));
  return last();
}

// A file holds consecutive entries; after a gap a restart would misnumber the entries behind it. So
// nothing is written after a failed write until all entries are released and another file is begun.
Status ReportSpool::write(std::string_view bytes, EntryLocation& location) {
  if (bytes.size() > kEntryMax) return environment_error("a report is too long for the spool");
  if (has_gap_ && !entries_.empty()) return environment_error(problem_);
  if (has_gap_) {
    FLOW_TRY(begin_file());
  } else if (end_ >= kFileMax) {
    if (Status begun = begin_file(); !begun) problem_ = begun.error().message;
  }
  std::string frame = framed(bytes);
  FLOW_TRY(last_file_->write(end_, frame));
  location.file = files_.back();
  location.offset = end_ + kHeaderBytes;
  end_ += frame.size();
  return {};
}

// The head may get the numbers of the gap. The next process would use them again, so it must have
// another id.
void ReportSpool::begin_gap(const Error& why) {
  problem_ = why.message;
  if (std::exchange(has_gap_, true)) return;
  if (!core::has_mutant(core::Mutant::spool_keeps_id)) folder_->remove(kIdFile);
  (void)last_file_->truncate(end_);  // else a restart finds that the file is damaged
}

void ReportSpool::acknowledge(uint64_t number) {
  while (first_ <= number && !entries_.empty()) {
    EntryLocation& location = entries_.front();
    bytes_ -= location.size;
    if (location.bytes) cached_bytes_ -= location.size;
    entries_.pop_front();
    first_++;
  }
  next_ = std::max(next_, first_);
  if (entries_.empty() && (has_gap_ || end_ >= kFileMax)) {
    if (Status begun = begin_file(); !begun) problem_ = begun.error().message;
  }
  drop_files();
}

// A file is needed while one of its entries is; the last file always, for its number.
void ReportSpool::drop_files() {
  while (files_.size() > 1 && files_[1] <= first_) {
    folder_->remove(name_of(files_.front()));
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
  auto file = folder_->open(name_of(location.file));
  FLOW_TRY(file);
  return (*file)->read(location.offset, location.size);
}

}  // namespace flow::cluster
