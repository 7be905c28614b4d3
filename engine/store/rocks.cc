// The one file that knows RocksDB: options, and its statuses turned into ours.
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "engine/store/damage.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFamilies[] = {"meta",  "runs",  "journal", "snapshots",
                                     "cache", "blobs", "logs",    "kv"};
constexpr const char* kFormatKey = "format";
constexpr int kFormat = 1;
constexpr size_t kMemtableBytes = 16 << 20;
constexpr uint64_t kLogBytesMax = 64 << 20;  // 60 MB of log replays in 0.2 s
constexpr size_t kBlockCacheBytes = 64 << 20;

std::string free_space(const std::string& dir) {
  struct statvfs info {};
  if (statvfs(dir.c_str(), &info) != 0) return "unknown free space";
  return fmt::format("{} MiB free", info.f_bavail * info.f_frsize >> 20);
}

Error corruption(const std::string& dir, const rocksdb::Status& status) {
  std::string where = find_log_damage(dir + "/db");
  return environment_error(
      fmt::format("the state `{}` is damaged: {}{}. Nothing was dropped and nothing is written. "
                  "Bring the file back from a copy, or move "
                  "the folder away and start again.",
                  dir, status.ToString(), where.empty() ? "" : " in " + where));
}

rocksdb::Options database_options() {
  rocksdb::Options options;
  options.create_missing_column_families = true;
  // Point-in-time recovery would drop synced commits in silence after a flipped byte: a bad
  // checksum is an error, and only a log whose tail was never written whole opens at its last whole
  // batch.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.paranoid_checks = true;
  options.max_total_wal_size = kLogBytesMax;
  options.write_buffer_size = kMemtableBytes;
  options.max_background_jobs = 2;
  options.max_open_files = 256;
  options.skip_stats_update_on_db_open = true;
  options.skip_checking_sst_file_sizes_on_db_open = true;
  options.keep_log_file_num = 2;
  options.max_log_file_size = 1 << 20;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.avoid_flush_during_shutdown = true;  // the log has it
  options.avoid_unnecessary_blocking_io = true;
  return options;
}

rocksdb::ColumnFamilyOptions family_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = kMemtableBytes;
  options.compression = rocksdb::kLZ4Compression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = false;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

class RocksStore final : public Store {
 public:
  ~RocksStore() override {
    if (!db_) return;
    for (rocksdb::ColumnFamilyHandle* family : families_)
      (void)db_->DestroyColumnFamilyHandle(family);
    (void)db_->Close();
    db_.reset();
    if (!secondary_.empty()) {
      std::error_code ignored;
      fs::remove_all(secondary_, ignored);
    }
  }

  static Result<std::unique_ptr<Store>> open(const std::string& dir, const StoreOptions& options) {
    auto store = std::unique_ptr<RocksStore>(new RocksStore());
    store->dir_ = dir;
    std::string path = dir + "/db";
    auto cache = rocksdb::NewLRUCache(kBlockCacheBytes);
    std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
    descriptors.emplace_back(rocksdb::kDefaultColumnFamilyName, family_options(cache));
    for (const char* name : kFamilies) descriptors.emplace_back(name, family_options(cache));
    rocksdb::Options db_options = database_options();
    rocksdb::DB* db = nullptr;
    rocksdb::Status status;
    if (options.read_only) {
      std::string name = (fs::temp_directory_path() / "flow-reader-XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) {
        return environment_error(
            fmt::format("cannot make a folder for reading beside the writer below `{}`: {}",
                        fs::temp_directory_path().string(), std::strerror(errno)));
      }
      store->secondary_ = name;
      db_options.max_open_files = -1;
      status =
          rocksdb::DB::OpenAsSecondary(db_options, path, name, descriptors, &store->families_, &db);
    } else {
      db_options.create_if_missing = true;
      std::error_code ignored;
      fs::create_directories(dir, ignored);
      ::chmod(dir.c_str(), 0700);
      status = rocksdb::DB::Open(db_options, path, descriptors, &store->families_, &db);
    }
    if (!status.ok()) {
      if (!store->secondary_.empty()) fs::remove_all(store->secondary_);
      if (status.IsCorruption()) return corruption(dir, status);
      return environment_error(fmt::format("cannot open the state `{}`: {} ({})", dir,
                                           status.ToString(), free_space(dir)));
    }
    store->db_.reset(db);
    store->read_only_ = options.read_only;
    if (options.read_only) {
      status = store->db_->TryCatchUpWithPrimary();
      if (!status.ok())
        return environment_error(
            fmt::format("cannot read the state `{}`: {}", dir, status.ToString()));
    }
    FLOW_TRY(store->check_format());
    return std::unique_ptr<Store>(std::move(store));
  }

  Status commit(const Batch& batch, bool sync) override {
    rocksdb::WriteBatch writes;
    for (const Batch::Write& write : batch.writes) {
      rocksdb::ColumnFamilyHandle* family = handle(write.family);
      rocksdb::Status status = write.value ? writes.Put(family, write.key, *write.value)
                                           : writes.Delete(family, write.key);
      if (!status.ok()) return failed(status);
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
    rocksdb::PinnableSlice value;
    rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), handle(family),
                                      rocksdb::Slice(key.data(), key.size()), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (status.IsCorruption()) return corruption(dir_, status);
    if (!status.ok())
      return environment_error(
          fmt::format("cannot read the state `{}`: {}", dir_, status.ToString()));
    return std::optional<std::string>(value.ToString());
  }

  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    std::unique_ptr<rocksdb::Iterator> rows(
        db_->NewIterator(rocksdb::ReadOptions(), handle(family)));
    std::string_view first = std::max(prefix, from);
    for (rows->Seek(rocksdb::Slice(first.data(), first.size())); rows->Valid(); rows->Next()) {
      std::string_view key(rows->key().data(), rows->key().size());
      if (!key.starts_with(prefix)) break;
      if (!visit(key, {rows->value().data(), rows->value().size()})) break;
    }
    if (rows->status().IsCorruption()) return corruption(dir_, rows->status());
    if (!rows->status().ok())
      return environment_error(
          fmt::format("cannot read the state `{}`: {}", dir_, rows->status().ToString()));
    return {};
  }

  uint64_t bytes() const override {
    uint64_t total = 0;
    std::error_code failed;
    for (fs::recursive_directory_iterator walk(dir_, failed), end; !failed && walk != end;
         walk.increment(failed)) {
      std::error_code gone;
      if (walk->is_regular_file(gone)) total += walk->file_size(gone);
    }
    return total;
  }

 private:
  RocksStore() = default;

  rocksdb::ColumnFamilyHandle* handle(Family family) const {
    return families_[static_cast<size_t>(family) + 1];
  }

  Error failed(const rocksdb::Status& status) const {
    return environment_error(
        fmt::format("cannot write the state `{}`: {} (errno: {}; {}). Nothing that was committed "
                    "is lost; the engine stops here. Last committed sequence of the database: {}. "
                    "Make room or repair the disk, then `flow resume`.",
                    dir_, status.ToString(), std::strerror(errno), free_space(dir_),
                    db_->GetLatestSequenceNumber()));
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

  std::string dir_, secondary_;
  bool read_only_ = false;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_store(const std::string& dir, const StoreOptions& options) {
  return RocksStore::open(dir, options);
}

}  // namespace flow
