// The spool: reports that the head has not acknowledged yet, numbered, in files that outlive the
// worker process. Outcomes of attempts are not lost while there is no head.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/cluster/worker/spool_folder.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

/// One thread at a time. Numbers start at 1 and grow over the lifetime of the folder.
class ReportSpool {
 public:
  /// Opens the reports that an earlier process left in `dir`. Drops an incomplete or damaged entry
  /// and everything behind it.
  static Result<std::unique_ptr<ReportSpool>> open(const std::string& dir) {
    return open(open_spool_folder(dir));
  }
  static Result<std::unique_ptr<ReportSpool>> open(std::shared_ptr<SpoolFolder> folder);
  ReportSpool(const ReportSpool&) = delete;
  ReportSpool& operator=(const ReportSpool&) = delete;

  /// Identifies the number sequence: numbers of different ids are unrelated.
  const std::string& id() const { return id_; }
  /// Appends a report and returns its number. If it cannot be written, it is kept in memory, and
  /// problem() returns the error.
  uint64_t append(std::string bytes);
  /// Releases entries up to this number. Unknown numbers are ignored.
  void acknowledge(uint64_t number);
  /// Restarts next() at the first unacknowledged entry.
  void rewind() { next_ = first_; }
  struct Entry {
    uint64_t number = 0;
    std::string bytes;
  };
  /// The next entry, if there is one.
  std::optional<Entry> next();
  bool has_next() const { return next_ < first_ + entries_.size(); }
  /// Bytes of unacknowledged entries.
  uint64_t bytes() const { return bytes_; }
  uint64_t last() const { return first_ + entries_.size() - 1; }
  /// The last file error, or "".
  const std::string& problem() const { return problem_; }

 private:
  /// The location of an entry. A few recent entries are in memory too.
  struct EntryLocation {
    uint64_t file = 0;  // number of its first entry; 0: in memory only
    uint64_t offset = 0;
    uint32_t size = 0;
    std::optional<std::string> bytes;
  };
  explicit ReportSpool(std::shared_ptr<SpoolFolder> folder) : folder_(std::move(folder)) {}
  Status read_id();
  Status renew_id();
  Status write_id();
  Status load();
  Status load_file(uint64_t file);
  Status begin_file();
  Status write(std::string_view bytes, EntryLocation& location);
  void begin_gap(const Error& why);
  void drop_files();
  Result<std::string> read(const EntryLocation& location) const;

  const std::shared_ptr<SpoolFolder> folder_;
  std::string id_;
  std::deque<EntryLocation>
      entries_;         // unacknowledged entries; attempts that write logs wait at kSpoolLogsMax
  uint64_t first_ = 1;  // number of the first entry, or of the next one
  uint64_t next_ = 1;
  uint64_t bytes_ = 0;
  size_t cached_bytes_ = 0;  // of those in memory
  std::deque<uint64_t> files_;
  std::unique_ptr<SpoolFile> last_file_;
  uint64_t end_ = 0;  // of the last file
  bool is_damaged_ = false;
  bool has_gap_ = false;  // what follows the entries of the last file is in memory only
  std::string problem_;
};

}  // namespace flow::cluster
