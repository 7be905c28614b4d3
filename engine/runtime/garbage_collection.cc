// Garbage collection: marks everything that the kept runs and their cache entries refer to, and
// sweeps the rest.
#include "engine/runtime/garbage_collection.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/errors.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/blobs/checkpoint.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/environments/environment_store.hpp"
#include "engine/environments/package_builds.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/runs/served_versions.hpp"
#include "engine/runs/state_references.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/worker/front_process.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr core::Time kYoungMs =
    3'600'000;  // a younger file may belong to an event that has not been reported yet
constexpr core::Time kNever = INT64_MAX;

/// Modification time of a file, by the clock of its file system; kNever if it is unknown.
core::Time written_ms(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return kNever;
  return core::Time{info.st_mtim.tv_sec} * 1000 + info.st_mtim.tv_nsec / 1'000'000;
}

/// Only regular files: the target of a link does not belong to the state.
bool is_file(const fs::directory_entry& entry) {
  std::error_code failed;
  return entry.symlink_status(failed).type() == fs::file_type::regular;
}

// The walks below enter no linked folder except the top one, which a user may have placed on
// another disk. So the real parent of each entry is that folder or lies inside it. Other files in
// the linked folder do not belong to the state: only names that flow creates are removed.

/// Removes the file unless it is too young. Returns the number of bytes freed.
uint64_t remove_old(const fs::directory_entry& file, core::Time until) {
  if (written_ms(file.path()) >= until) return 0;
  std::error_code failed;
  uint64_t size = file.file_size(failed);
  return fs::remove(file.path(), failed) ? size : 0;
}

/// Removes the unreferenced blobs in `objects`/`name`.
uint64_t sweep_blobs(const fs::path& folder, const References& needed, core::Time until) {
  uint64_t freed = 0;
  std::error_code failed;
  for (fs::directory_iterator walk(folder, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    Digest digest;
    std::string hex = folder.filename().string() + walk->path().filename().string();
    bool is_blob = is_file(*walk) && Digest::parse_hex(hex, digest);
    if (is_blob && !needed.has(digest)) freed += remove_old(*walk, until);
  }
  return freed;
}

/// Only unreferenced files that were written before `until`.
uint64_t sweep_blob_folders(const std::string& dir, const References& needed, core::Time until) {
  uint64_t freed = 0;
  std::error_code failed;
  for (fs::directory_iterator walk(fs::path(dir) / "objects", failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code each;
    std::string name = walk->path().filename().string();
    bool is_folder = walk->symlink_status(each).type() == fs::file_type::directory;
    // Left by a process that was killed while it wrote or removed them.
    bool is_temporary = name.starts_with(kTemporaryBlob);
    if (is_temporary && is_file(*walk)) freed += remove_old(*walk, until);
    if (is_temporary && is_folder && written_ms(walk->path()) < until)
      (void)remove_tree(walk->path().string());
    if (is_folder && name.size() == 2) freed += sweep_blobs(walk->path(), needed, until);
  }
  return freed;
}

/// Removes those checkpoint files of a run that no row names.
uint64_t sweep_run(const fs::path& root, const fs::path& run, const std::set<std::string>& named,
                   core::Time until) {
  uint64_t freed = 0;
  std::error_code failed;
  std::vector<fs::path> folders = {run};
  for (fs::recursive_directory_iterator walk(run, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code each;
    if (walk->symlink_status(each).type() == fs::file_type::directory)
      folders.push_back(walk->path());
    bool is_needed =
        !is_file(*walk) || named.contains(walk->path().lexically_relative(root).string());
    if (!is_needed) freed += remove_old(*walk, until);
  }
  // Inner folders come later. A folder that is not empty stays.
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder)
    fs::remove(*folder, failed);
  return freed;
}

// Checkpoints of removed runs, and files without a row: left by a crash.
uint64_t sweep_checkpoints(const std::string& dir, const std::set<std::string>& named,
                           core::Time until) {
  uint64_t freed = 0;
  std::error_code failed;
  fs::path root(dir);
  for (fs::directory_iterator walk(root / "checkpoints", failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code each;
    bool is_folder = walk->symlink_status(each).type() == fs::file_type::directory;
    if (is_folder && is_run_id(walk->path().filename().string()))
      freed += sweep_run(root, walk->path(), named, until);
  }
  return freed;
}

/// Files written since this time may be blobs that no event has reported yet: of an attempt, here
/// or on a worker that rejoins, or of a run that is being submitted. kNever if there cannot be such
/// blobs.
core::Time unreported_since(const EngineLoop& engine_loop, const core::State& live) {
  core::Time now = engine_loop.parts().clock.now();  // by the clock that stamps records
  core::Time oldest_ms = 0;                          // start of the oldest running attempt
  bool may_write = !engine_loop.parts().pins.empty();
  for (const auto& [id, run] : live.runs) {
    if (core::is_final(run.status)) continue;
    may_write = true;
    if (run.phase_count(core::Phase::running) == 0) continue;
    for (const core::Unit& unit : run.units) {
      if (unit.phase == core::Phase::running) oldest_ms = std::max(oldest_ms, now - unit.assigned);
    }
  }
  return may_write ? now_ms() - oldest_ms - kYoungMs : kNever;
}

/// Runs within a turn: nothing is committed meanwhile, so unmarked data is not needed.
class Collection {
 public:
  Collection(EngineLoop& engine_loop, std::set<std::string> watched)
      : engine_loop_(engine_loop),
        store_(engine_loop.parts().store),
        watched_(std::move(watched)),
        needed_([&blobs = engine_loop.parts().blobs](const Digest& digest) {
          return blobs.get(digest);
        }) {}

  /// Marks what is needed and lets `batch` erase unmarked rows.
  Status mark(const core::State& live, uint32_t keep, Batch& batch) {
    until_ = unreported_since(engine_loop_, live);
    for (const Digest& digest : engine_loop_.parts().pins.all()) needed_.add(digest);
    FLOW_TRY(mark_runs(live, keep, batch));
    FLOW_TRY(mark_cache(batch));
    FLOW_TRY(drop_requests(batch));
    FLOW_TRY(drop_what_runs_left(batch));
    FLOW_TRY(check_unread());
    return drop_blobs(batch);
  }

  /// Removes files, after the batch is committed.
  void sweep() {
    freed_ += sweep_blob_folders(engine_loop_.parts().options.state_dir, needed_, until_);
    freed_ += sweep_checkpoints(engine_loop_.parts().options.state_dir, checkpoints_, until_);
    freed_ += remove_unused_environments(environments_dir(), environments_);
    // Scratch folders of failed attempts are kept until gc.
    for (const std::string& run : dropped_)
      (void)remove_tree(engine_loop_.parts().options.state_dir + "/scratch/" + run);
    remove_ended_fronts(engine_loop_.parts().options.state_dir);
  }

  uint64_t freed() const { return freed_; }

 private:
  Status mark_runs(const core::State& live, uint32_t keep, Batch& batch) {
    auto records = all_records(store_);
    FLOW_TRY(records);
    auto versions = rollback_versions(store_, engine_loop_.parts().blobs);
    FLOW_TRY(versions);
    uint32_t finished = 0;
    for (auto record = records->rbegin(); record != records->rend(); ++record) {
      bool keep_it = !is_over(record->status) || finished++ < keep ||
                     watched_.contains(record->id) || versions->contains(record->id);
      (keep_it ? kept_ : dropped_).insert(record->id);
    }
    for (const RunRecord& record : *records) {
      if (dropped_.contains(record.id)) {
        batch.erase(Family::runs, run_key(record.id));
        batch.erase(Family::kv, archive_key(record.id));
        continue;
      }
      needed_.add(record.plan_digest);
      FLOW_TRY(mark_environments(record.plan_digest));
      needed_.add(record.bundle_digest);
      needed_.add_encoded(record.params);
      auto archived = store_.get(Family::kv, archive_key(record.id));
      FLOW_TRY(archived);
      if (!archived->has_value()) continue;
      if (auto blob = archive_blob(**archived)) needed_.add(*blob);
      auto state = load_archived_run(**archived, engine_loop_.parts().blobs);
      FLOW_TRY(state);
      for (const auto& [id, run] : state->runs) needed_.add(run);
    }
    for (const auto& [id, run] : live.runs) {
      needed_.add(run);
      if (!core::is_final(run.status)) kept_.insert(id);
    }
    return {};
  }

  std::string environments_dir() const {
    return engine_loop_.parts().options.state_dir + "/environments";
  }

  /// Marks the environments that tasks of the plan are built into.
  Status mark_environments(const Digest& plan_digest) {
    if (::access(environments_dir().c_str(), F_OK) != 0) return {};
    auto bytes = engine_loop_.parts().blobs.get(plan_digest);
    if (!bytes.ok()) return {};  // a run without a plan can't start a task
    auto plan = decode_plan(*bytes);
    FLOW_TRY(plan);
    for (const TaskDef& def : plan->defs) {
      for (const PackageBuild& build : package_builds(def.shell.environment))
        environments_.insert(build_key(build));
    }
    return {};
  }

  /// A cache entry is kept as long as the run that made it, or a kept run that used it.
  Status mark_cache(Batch& batch) {
    return store_.scan(Family::cache, "", "", [&](std::string_view key, std::string_view value) {
      auto entry = decode_cache_entry(value);
      bool lives = entry.ok() && (kept_.contains(entry->run) || needed_.has(entry->result) ||
                                  (entry->has_fragment && needed_.has(entry->fragment)));
      if (lives) {
        needed_.add(*entry);
      } else {
        batch.erase(Family::cache, std::string(key));
      }
      return true;
    });
  }

  /// If a blob cannot be read, its references are unknown. A lost or damaged blob is useless to all
  /// runs. But a blob that the disk does not return now may be readable later, so nothing is
  /// collected.
  Status check_unread() const {
    for (const Digest& digest : needed_.unread()) {
      Status status = engine_loop_.parts().blobs.check_unread(digest);
      if (!status.ok())
        return environment_error(
            status.error().message +
            ". Nothing was collected, because it may refer to content that is still needed. Repair "
            "the disk or the permissions and run `flow gc` again");
    }
    return {};
  }

  Status drop_requests(Batch& batch) {
    std::string requests = request_key("");
    return store_.scan(Family::kv, requests, requests,
                       [&](std::string_view key, std::string_view run) {
                         if (!kept_.contains(std::string(run)))
                           batch.erase(Family::kv, std::string(key));
                         return true;
                       });
  }

  /// Steps, checkpoints, logs and metrics are removed together with their run.
  Status drop_what_runs_left(Batch& batch) {
    for (Family family : {Family::kv, Family::logs, Family::metrics}) {
      FLOW_TRY(store_.scan(family, "", "", [&](std::string_view key, std::string_view value) {
        std::optional<std::string> run = run_of_key(family, key);
        if (!run) return true;
        if (!kept_.contains(*run)) {
          freed_ += value.size();
          batch.erase(family, std::string(key));
        } else if (family == Family::kv && is_progress_key(key)) {
          needed_.add_encoded(value);
          auto row = decode_checkpoint_row(value);
          if (row.ok() && !row->file.empty()) checkpoints_.insert(row->file);
        }
        return true;
      }));
    }
    return {};
  }

  Status drop_blobs(Batch& batch) {
    return store_.scan(Family::blobs, "", "", [&](std::string_view key, std::string_view value) {
      Digest digest;
      if (Digest::from_bytes(key, digest) && !needed_.has(digest)) {
        freed_ += value.size();
        batch.erase(Family::blobs, std::string(key));
      }
      return true;
    });
  }

  EngineLoop& engine_loop_;
  Store& store_;
  const std::set<std::string>
      watched_;  // finished runs that are still held by this process or a client
  References needed_;
  std::set<std::string> kept_, dropped_;  // runs
  std::set<std::string> checkpoints_;     // referenced files
  std::set<std::string> environments_;    // keys of those that kept runs use
  core::Time until_ = kNever;             // files written since then are kept
  uint64_t freed_ = 0;
};

Result<uint64_t> collect(EngineLoop& engine_loop, uint32_t keep,
                         const std::function<std::set<std::string>()>& watched) {
  std::optional<Collection> collection;
  Status marked;
  engine_loop.collect(
      [&](const core::State& live, Batch& batch) {
        collection.emplace(engine_loop, watched ? watched() : std::set<std::string>());
        Batch erased;
        marked = collection->mark(live, keep, erased);
        if (marked.ok()) batch = std::move(erased);
      },
      [&] {
        if (marked.ok()) collection->sweep();
      });
  if (auto error = engine_loop.stopped_by()) return *error;
  FLOW_TRY(marked);
  return collection->freed();
}

}  // namespace

Result<uint64_t> collect_garbage(EngineLoop& engine_loop, uint32_t keep,
                                 const std::function<std::set<std::string>()>& watched) {
  auto freed = collect(engine_loop, keep, watched);
  log_collection(freed, keep);
  return freed;
}

}  // namespace flow
