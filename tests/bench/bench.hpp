// Shared by the benchmarks: a clock, a temporary folder, one line per result.
#pragma once
#include <fmt/format.h>
#include <rocksdb/db.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A folder below $FLOW_BENCH_DIR or the temporary one, removed at the end.
class Folder {
 public:
  Folder() {
    const char* base = std::getenv("FLOW_BENCH_DIR");
    std::string name =
        (base != nullptr ? std::string(base) : std::filesystem::temp_directory_path().string()) +
        "/flow-bench-XXXXXX";
    path_ = mkdtemp(name.data()) != nullptr ? name : "";
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A script of `count` independent tasks.
inline std::string independent(int count) {
  return fmt::format(R"(local flow = require "flow"
local number = flow.task("number", function(ctx, i) return i end)
return flow.pipeline("independent", {{}}, function()
  for i = 1, {} do number(i) end
end)
)",
                     count);
}

/// "independent_task_us 31.2 floor 8.1 ratio 3.85"
inline void figure(const std::string& name, double value, const std::string& floor_name,
                   double floor) {
  fmt::print("{} {:.3f} {} {:.3f} ratio {:.3f}\n", name, value, floor_name, floor,
             floor > 0 ? value / floor : 0.0);
  std::fflush(stdout);
}

constexpr int kWrites = 1'000;
constexpr size_t kWriteBytes = 200;

/// Synced writes of a RocksDB with its default options: the floor of a durable step. Because the
/// disk's speed varies, they are timed before and after the measurement that they are compared
/// with.
class SyncedWrites {
 public:
  explicit SyncedWrites(const std::string& dir) {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* database = nullptr;
    if (rocksdb::DB::Open(options, dir, &database).ok()) database_.reset(database);
    last_ = time();
  }
  /// Seconds per write: the mean of the newest round and of one made now.
  double mean_seconds() {
    double before = last_;
    last_ = time();
    return (before + last_) / 2;
  }

 private:
  double time() {
    rocksdb::WriteOptions options;
    options.sync = true;
    std::string value(kWriteBytes, 'x');
    double began = seconds();
    for (int i = 0; i < kWrites; i++) {
      if (!database_ || !database_->Put(options, fmt::format("bench/{:08}", i), value).ok())
        return 0;
    }
    return (seconds() - began) / kWrites;
  }

  std::unique_ptr<rocksdb::DB> database_;
  double last_ = 0;
};

/// Seconds of one synced write of the store's own.
inline double store_write_seconds(const std::string& dir) {
  auto store = open_store(dir);
  if (!store.ok()) return 0;
  double began = seconds();
  for (int i = 0; i < kWrites; i++) {
    Batch batch;
    batch.put(Family::kv, fmt::format("bench/{:08}", i), std::string(kWriteBytes, 'x'));
    if (!(*store)->commit(batch).ok()) return 0;
  }
  return (seconds() - began) / kWrites;
}

/// Runs a script to its end. Returns the seconds from the call to the result.
inline double run_seconds(Engine& engine, const std::string& script,
                          const RunOptions& options = {}) {
  double began = seconds();
  Run run = engine.run(script, {}, options);
  run.wait();
  return seconds() - began;
}

}  // namespace flow::bench
