// Opens RocksDB with flow's options and converts its statuses.
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/base/files.hpp"
#include "engine/store/damage.hpp"
#include "engine/store/disk_space.hpp"
#include "engine/store/hashed_memtable.hpp"
#include "engine/store/lock.hpp"
#include "engine/store/log_files.hpp"
#include "engine/store/open_lock.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFamilies[] = {"meta",  "runs", "journal", "snapshots", "cache",
                                     "blobs", "logs", "kv",      "metrics"};
// Those of a state that a flow without metrics wrote: all but the last one.
constexpr size_t kFamiliesWithoutMetrics = std::size(kFamilies) - 1;
constexpr const char* kFormatKey = "format";
constexpr int kFormat = 1;
constexpr size_t kMemtableBytes = 16 << 20;
constexpr uint64_t kLogBytesMax = 64 << 20;  // 60 MB of log replays in 0.2 s
constexpr size_t kHashedBytes = 8;           // of a digest
constexpr size_t kBuckets = 1 << 16;
constexpr size_t kBlockCacheBytes = 64 << 20;  // of rows, indexes and filters
constexpr int kCacheShardBits = 2;             // a filter has up to 1 MB: a shard must hold many
// RocksDB wants a folder for a reader's notes; this one cannot be created.
constexpr const char* kNoFolder = "/dev/null/none";
// Each process that opens the state turns its log into tables and may end before RocksDB merges
// them.
constexpr size_t kTablesMax = 32;               // of a family,
constexpr uint64_t kSmallTableBytes = 1 << 20;  // with a smaller average size than this
constexpr int kReaderTries = 10;  // a live writer may remove a file that was just named
constexpr std::chrono::milliseconds kReaderPause{20};

Error damaged(const std::string& dir, const std::string& what) {
  return environment_error(
      fmt::format("the state `{}` is damaged: {}. Nothing was dropped and nothing was written. "
                  "Restore the file from a copy, or move the folder elsewhere and start again.",
                  dir, what));
}

/// RocksDB names file and offset for a table but not for a log.
Error corruption(const std::string& dir, const rocksdb::Status& status) {
  std::string where = check_logs(dir + "/db").damage;
  return damaged(dir, status.ToString() + (where.empty() ? "" : " in " + where));
}

Error cannot_read(const std::string& dir, const rocksdb::Status& status) {
  if (status.IsCorruption()) return corruption(dir, status);
  return environment_error(fmt::format("cannot read the state `{}`: {}", dir, status.ToString()));
}

Error cannot_open(const std::string& dir, const rocksdb::Status& status) {
  if (status.IsCorruption()) return corruption(dir, status);
  if (status.ToString().find("Column families not opened") != std::string::npos) {
    return environment_error(
        fmt::format("the state `{}` was written by a newer version of flow ({}): use that version, "
                    "or a newer one",
                    dir, status.ToString()));
  }
  if (status.ToString().find(std::strerror(EMFILE)) != std::string::npos) {
    return environment_error(
        fmt::format("cannot open the state `{}`: {}. Nothing that was committed is lost. Raise the "
                    "limit on open files (`ulimit -n 4096`), then try again.",
                    dir, status.ToString()));
  }
  return environment_error(
      fmt::format("cannot open the state `{}`: {} ({}). Nothing that was committed is lost. Free "
                  "some space or repair the disk, then try again.",
                  dir, status.ToString(), free_space(dir)));
}

/// Creates `dir` (0700) if it is missing.
Status own_folder(const std::string& dir) {
  FLOW_TRY(make_dirs(dir));
  return own_state(dir);
}

/// Discards RocksDB's own log. Its file would abort the process on a full disk, and a reader has no
/// folder for it.
class SilentLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options database_options(rocksdb::Env* files) {
  rocksdb::Options options;
  options.env = files;
  options.create_missing_column_families = true;
  // Point-in-time recovery would silently drop synced commits after a flipped byte. Here a wrong
  // checksum is an error, and only an incomplete tail of a log is cut to the last complete batch.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.paranoid_checks = true;
  options.max_total_wal_size = kLogBytesMax;
  options.write_buffer_size = kMemtableBytes;
  options.max_background_jobs = 2;
  options.max_open_files = 256;
  options.max_file_opening_threads = 1;  // else each family starts 16 when the state is opened
  options.skip_stats_update_on_db_open = true;
  options.skip_checking_sst_file_sizes_on_db_open = true;
  options.info_log = std::make_shared<SilentLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.avoid_flush_during_shutdown = true;  // the log contains the data
  options.avoid_unnecessary_blocking_io = true;
  options.allow_concurrent_memtable_write = false;  // there is one writer
  return options;
}

rocksdb::ColumnFamilyOptions family_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = kMemtableBytes;
  options.compression = rocksdb::kLZ4Compression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  // Outside the cache they would grow with the state.
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

/// Rows by digest are written and looked up individually in random order, so they are hashed.
rocksdb::ColumnFamilyOptions digest_family_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options = family_options(cache);
  options.prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(kHashedBytes));
  options.memtable_factory = hashed_memtable(kBuckets);
  return options;
}

using Families = std::vector<rocksdb::ColumnFamilyHandle*>;
using FamilyDescriptors = std::vector<rocksdb::ColumnFamilyDescriptor>;

FamilyDescriptors first_families(size_t count) {
  auto cache = rocksdb::NewLRUCache(kBlockCacheBytes, kCacheShardBits);
  FamilyDescriptors descriptors;
  descriptors.emplace_back(rocksdb::kDefaultColumnFamilyName, family_options(cache));
  for (const char* name : std::span(kFamilies, count)) {
    bool by_digest = name == std::string_view("cache") || name == std::string_view("blobs");
    descriptors.emplace_back(name,
                             by_digest ? digest_family_options(cache) : family_options(cache));
  }
  return descriptors;
}

FamilyDescriptors all_families() { return first_families(std::size(kFamilies)); }

bool has_room_for(const std::string& dir, uint64_t bytes) {
  struct statvfs info {};
  return ::statvfs(dir.c_str(), &info) == 0 && info.f_bavail * info.f_frsize > 2 * bytes;
}

/// Merges the tables of each family with many small ones, so that their number does not grow with
/// the number of processes that opened the state.
rocksdb::Status merge_small_tables(rocksdb::DB& db, const std::string& dir,
                                   const Families& families) {
  for (rocksdb::ColumnFamilyHandle* family : families) {
    rocksdb::ColumnFamilyMetaData tables;
    db.GetColumnFamilyMetaData(family, &tables);
    bool are_small = tables.size < tables.file_count * kSmallTableBytes;
    if (tables.file_count <= kTablesMax || !are_small || !has_room_for(dir, tables.size)) continue;
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    rocksdb::Status status = db.CompactRange(all, family, nullptr, nullptr);
    if (!status.ok()) return status;
  }
  return rocksdb::Status::OK();
}

/// Whether there is a database. CURRENT is written before any log or table: if only those exist, it
/// was lost, and RocksDB would create an empty database and remove the tables.
Result<bool> has_database(const std::string& dir) {
  std::string current = dir + "/db/CURRENT";
  if (::access(current.c_str(), F_OK) == 0) return true;
  if (errno != ENOENT) {
    return environment_error(
        fmt::format("cannot read the state `{}`: `{}`: {}", dir, current, std::strerror(errno)));
  }
  std::error_code failed;
  for (fs::directory_iterator walk(dir + "/db", failed), end; !failed && walk != end;
       walk.increment(failed)) {
    auto kind = walk->path().extension();
    if (kind == ".sst" || kind == ".log") return damaged(dir, current + " is missing");
  }
  return false;
}

/// DB::Open would create them too, and sync a file of options after each one.
rocksdb::Status create_families(rocksdb::DB& db, const FamilyDescriptors& missing,
                                Families& families) {
  if (missing.empty()) return rocksdb::Status::OK();
  Families created;
  rocksdb::Status status = db.CreateColumnFamilies(missing, &created);
  families.insert(families.end(), created.begin(), created.end());
  return status;
}

Result<rocksdb::DB*> open_writer(const std::string& dir, const LogCheck& logs, rocksdb::Env* files,
                                 Families& families) {
  FLOW_TRY(own_folder(dir));
  FLOW_TRY(make_dirs(dir + "/db"));
  OpenLock alone(dir, OpenLock::Access::writer);
  auto exists = has_database(dir);
  FLOW_TRY(exists);
  truncate_unwritten(logs);
  rocksdb::Options options = database_options(files);
  options.create_if_missing = true;
  rocksdb::DB* db = nullptr;
  NoSignals none;  // for RocksDB's threads
  FamilyDescriptors known = all_families(), missing;
  if (!*exists) missing.assign(std::next(known.begin()), known.end());
  known.resize(known.size() - missing.size(), known.front());
  rocksdb::Status status = rocksdb::DB::Open(options, dir + "/db", known, &families, &db);
  if (!status.ok()) return cannot_open(dir, status);
  std::unique_ptr<rocksdb::DB> opened(db);
  status = create_families(*opened, missing, families);
  if (status.ok()) status = merge_small_tables(*opened, dir, families);
  if (!status.ok()) {
    for (rocksdb::ColumnFamilyHandle* family : families) delete family;
    families.clear();
    return cannot_open(dir, status);
  }
  return opened.release();
}

Error no_state(const std::string& dir) {
  return user_error(fmt::format(
      "there is no state in `{}`: name one with --state DIR or FLOW_STATE, or start a run", dir));
}

/// With less, an allocation fails in one of RocksDB's threads, which ends the process by a signal.
constexpr rlim_t kAddressSpaceMin = rlim_t{200} << 20;

Status check_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= kAddressSpaceMin) return {};
  return environment_error(fmt::format(
      "the address space of this process is limited to {} MiB, and a state needs at least {} MiB: "
      "raise the limit, for example with `ulimit -v unlimited`",
      limit.rlim_cur >> 20, kAddressSpaceMin >> 20));
}

bool is_half_made(const rocksdb::Status& status) {
  return status.IsInvalidArgument() &&
         status.ToString().find("Column family not found") != std::string::npos;
}

/// A reader keeps all tables open, because a writer may remove them, but at most half of the files
/// that this process may open.
int reader_tables_max(const std::string& database) {
  constexpr int kAll = -1;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kAll;
  rlim_t tables = 0;
  std::error_code failed;
  for (fs::directory_iterator walk(database, failed), end; !failed && walk != end;
       walk.increment(failed))
    tables += walk->path().extension() == ".sst" ? 1 : 0;
  rlim_t most = std::min<rlim_t>(limit.rlim_cur / 2, INT_MAX);
  return tables <= most ? kAll : static_cast<int>(most);
}

/// Opens a secondary instance, which works next to a live writer.
Result<rocksdb::DB*> open_reader(const std::string& dir, rocksdb::Env* files, Families& families) {
  rocksdb::Options options = database_options(files);
  options.max_open_files = reader_tables_max(dir + "/db");
  rocksdb::DB* db = nullptr;
  rocksdb::Status status;
  size_t family_count = std::size(kFamilies);
  OpenLock beside(dir, OpenLock::Access::reader);
  auto is_there = has_database(dir);
  FLOW_TRY(is_there);
  if (!*is_there) return no_state(dir);
  for (int tries = 0; tries < kReaderTries; tries++) {
    if (tries > 0) std::this_thread::sleep_for(kReaderPause);
    NoSignals none;
    status = rocksdb::DB::OpenAsSecondary(options, dir + "/db", kNoFolder,
                                          first_families(family_count), &families, &db);
    if (is_half_made(status) && family_count > kFamiliesWithoutMetrics) {
      family_count = kFamiliesWithoutMetrics;
      status = rocksdb::DB::OpenAsSecondary(options, dir + "/db", kNoFolder,
                                            first_families(family_count), &families, &db);
    }
    // A writer that opens the database meanwhile turns the log to be read into tables.
    if (status.ok()) status = db->TryCatchUpWithPrimary();
    if (status.ok()) break;
    for (rocksdb::ColumnFamilyHandle* family : families) delete family;
    families.clear();
    delete std::exchange(db, nullptr);
  }
  // The families of a new state are created one by one; a killed creator leaves an empty state.
  if (is_half_made(status)) return no_state(dir);
  if (!status.ok()) return cannot_open(dir, status);
  return db;
}

rocksdb::ReadOptions scan_options(Family family) {
  rocksdb::ReadOptions options;
  options.total_order_seek = true;
  // Its rows are read once, when the state is opened or before a snapshot replaces them.
  options.fill_cache = family != Family::journal;
  return options;
}

/// About the size of the batch as RocksDB encodes it.
size_t bytes_of(const Batch& batch) {
  constexpr size_t kEachWrite = 16;  // its kind, its family and two lengths
  constexpr size_t kOnce = 256;      // the header and the marks
  size_t bytes = kOnce;
  for (const Batch::Write& write : batch.writes)
    bytes += kEachWrite + write.key.size() + (write.value ? write.value->size() : 0);
  return bytes;
}

/// Checks the logs; with a live writer a record that is being written may look damaged for a
/// moment.
LogCheck checked_logs(const std::string& dir, bool has_writer) {
  LogCheck logs = check_logs(dir + "/db");
  for (int tries = 1; has_writer && !logs.damage.empty() && tries < kReaderTries; tries++) {
    std::this_thread::sleep_for(kReaderPause);
    logs = check_logs(dir + "/db");
  }
  return logs;
}

class RocksStore final : public Store {
 public:
  ~RocksStore() override {
    for (rocksdb::ColumnFamilyHandle* family : families_)
      (void)db_->DestroyColumnFamilyHandle(family);
    if (db_) (void)db_->Close();
  }

  static Result<std::unique_ptr<Store>> open(const std::string& dir, const StoreOptions& options) {
    FLOW_TRY(check_address_space());
    LogCheck logs = checked_logs(dir, options.read_only);
    if (!logs.damage.empty()) return damaged(dir, logs.damage + " there is a damaged record");
    auto store = std::unique_ptr<RocksStore>(new RocksStore());
    store->dir_ = dir;
    store->read_only_ = options.read_only;
    auto db = options.read_only ? open_reader(dir, store->files_.get(), store->families_)
                                : open_writer(dir, logs, store->files_.get(), store->families_);
    FLOW_TRY(db);
    store->db_.reset(*db);
    FLOW_TRY(store->check_format());
    return std::unique_ptr<Store>(std::move(store));
  }

  Status commit(Batch batch, bool sync) override {
    if (read_only_)
      return internal_error(fmt::format("the state `{}` was opened for reading only", dir_));
    rocksdb::WriteBatch writes(bytes_of(batch));
    rocksdb::Status marked = writes.PutLogData(encode_marks(synced_->marks()));
    if (!marked.ok()) return failed(marked);
    for (Batch::Write& write : batch.writes) {
      rocksdb::ColumnFamilyHandle* family = handle(write.family);
      rocksdb::Status status = write.value ? writes.Put(family, write.key, *write.value)
                                           : writes.Delete(family, write.key);
      if (!status.ok()) return failed(status);
      write.value.reset();  // a snapshot may have 100 MB, which the memtable copies too
    }
    rocksdb::WriteOptions options;
    options.sync = sync;
    failpoint("commit-before");
    rocksdb::Status status = db_->Write(options, &writes);
    failpoint("commit-after");
    if (!status.ok()) return failed(status);
    return {};
  }

  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    if (!has(family)) return std::optional<std::string>();
    rocksdb::PinnableSlice value;
    rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), handle(family),
                                      rocksdb::Slice(key.data(), key.size()), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return cannot_read(dir_, status);
    return std::optional<std::string>(value.ToString());
  }

  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    if (!has(family)) return std::vector<std::optional<std::string>>(keys.size());
    if (keys.size() == 1) {
      auto row = get(family, keys.front());
      FLOW_TRY(row);
      return std::vector<std::optional<std::string>>{std::move(*row)};
    }
    // With sorted keys RocksDB looks up each block once for all of its keys.
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    std::vector<rocksdb::Slice> sorted;
    for (size_t i : order) sorted.emplace_back(keys[i].data(), keys[i].size());
    std::vector<rocksdb::PinnableSlice> values(keys.size());
    std::vector<rocksdb::Status> statuses(keys.size());
    db_->MultiGet(rocksdb::ReadOptions(), handle(family), sorted.size(), sorted.data(),
                  values.data(), statuses.data(), true);
    std::vector<std::optional<std::string>> rows(keys.size());
    for (size_t i = 0; i < order.size(); i++) {
      if (statuses[i].IsNotFound()) continue;
      if (!statuses[i].ok()) return cannot_read(dir_, statuses[i]);
      rows[order[i]] = values[i].ToString();
    }
    return rows;
  }

  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    if (!has(family)) return {};
    std::unique_ptr<rocksdb::Iterator> rows(db_->NewIterator(scan_options(family), handle(family)));
    std::string_view first = std::max(prefix, from);
    for (rows->Seek(rocksdb::Slice(first.data(), first.size())); rows->Valid(); rows->Next()) {
      std::string_view key(rows->key().data(), rows->key().size());
      if (!key.starts_with(prefix)) break;
      if (!visit(key, {rows->value().data(), rows->value().size()})) break;
    }
    if (!rows->status().ok()) return cannot_read(dir_, rows->status());
    return {};
  }

  Status refresh() override {
    if (!read_only_) return {};
    rocksdb::Status status = db_->TryCatchUpWithPrimary();
    if (!status.ok()) return cannot_read(dir_, status);
    return {};
  }

  uint64_t bytes() const override {
    uint64_t total = 0;
    std::error_code failed;
    for (fs::recursive_directory_iterator walk(dir_, failed), end; !failed && walk != end;
         walk.increment(failed)) {
      std::error_code gone;
      // The target of a link is not part of the state.
      if (walk->symlink_status(gone).type() != fs::file_type::regular) continue;
      bool is_log = walk->path().extension() == ".log";
      total += is_log ? written_size(walk->path()) : walk->file_size(gone);
    }
    return total;
  }

 private:
  RocksStore() = default;

  /// False for metrics in a reader of a state that a flow without them wrote.
  bool has(Family family) const { return static_cast<size_t>(family) + 1 < families_.size(); }

  rocksdb::ColumnFamilyHandle* handle(Family family) const {
    return families_[static_cast<size_t>(family) + 1];
  }

  /// Converts the status, which names the file and the system's error.
  Error failed(const rocksdb::Status& status) const {
    return cannot_write(*this, dir_, status.ToString());
  }

  Status check_format() {
    auto format = get(Family::meta, kFormatKey);
    FLOW_TRY(format);
    if (format->has_value()) {
      int version = std::atoi((*format)->c_str());
      if (version > kFormat) {
        return environment_error(
            fmt::format("the state `{}` has format {}, which is newer than this program's {}: use "
                        "the flow that wrote it, or a newer one",
                        dir_, version, kFormat));
      }
      return {};
    }
    if (read_only_) return {};
    Batch batch;
    batch.put(Family::meta, kFormatKey, std::to_string(kFormat));
    return commit(batch, true);
  }

  std::string dir_;
  bool read_only_ = false;
  std::shared_ptr<SyncProgress> synced_ = std::make_shared<SyncProgress>();
  std::unique_ptr<rocksdb::Env> files_ = rocksdb::NewCompositeEnv(make_log_files(synced_));
  std::unique_ptr<rocksdb::DB> db_;
  Families families_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_store(const std::string& dir, const StoreOptions& options) {
  return RocksStore::open(dir, options);
}

}  // namespace flow
