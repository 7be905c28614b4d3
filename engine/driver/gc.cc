// Garbage collection: mark what the kept runs and the cache entries of kept runs name, sweep the
// rest.
#include "engine/driver/gc.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "engine/base/checkpoint.hpp"
#include "engine/base/folder.hpp"
#include "engine/driver/fold.hpp"
#include "engine/driver/info.hpp"
#include "engine/driver/reader_impl.hpp"
#include "engine/store/keys.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::hours kYoung{1};  // an object that an attempt may not have reported yet

class Marks {
 public:
  explicit Marks(const Blobs& blobs) : blobs_(blobs) {}

  bool has(const Digest& digest) const { return marked_.contains(digest); }
  void add(const Digest& digest) { marked_.insert(digest); }
  void add_value_at(const Digest& digest) {
    if (!marked_.insert(digest).second) return;
    auto bytes = blobs_.get(digest);
    if (bytes.ok()) add_value(*bytes);
  }
  void add_value(std::string_view bytes) {
    auto value = decode_value(bytes);
    if (!value.ok()) return;
    std::vector<Digest> needed;
    collect_blobs(*value, needed);
    marked_.insert(needed.begin(), needed.end());
  }
  void add_plan(const Digest& digest, const Plan& plan) {
    add(digest);
    auto add_files = [&](const Value& value) {
      std::vector<Digest> needed;
      collect_blobs(value, needed);
      marked_.insert(needed.begin(), needed.end());
    };
    add_files(plan.params);
    for (const Node& node : plan.nodes) {
      add_files(node.args);
      add_files(node.items);
    }
  }

 private:
  const Blobs& blobs_;
  std::set<Digest> marked_;
};

void mark_run(const core::Run& run, Marks& marks) {
  for (const core::Unit& unit : run.units) {
    if (!unit.result.is_zero()) marks.add_value_at(unit.result);
  }
  if (run.has_result) marks.add_value_at(run.result);
  for (const auto& [name, digest] : run.signals) marks.add_value_at(digest);
  if (run.plan) marks.add_plan(run.plan_digest, *run.plan);
  for (const core::DynamicCalls& calls : run.dynamics) marks.add(calls.fragment_digest);
}

/// The regular file itself: what a link leads to is not the state's.
bool is_file(const fs::directory_entry& entry) {
  std::error_code failed;
  return entry.symlink_status(failed).type() == fs::file_type::regular;
}

// The walks below enter no linked folder but the top one, which a user may have put on another
// disk. The real parent of each entry is therefore that folder or lies inside it.
uint64_t sweep_objects(const std::string& dir, const Marks& marks, std::chrono::hours young) {
  uint64_t freed = 0;
  std::error_code failed;
  fs::path objects = fs::path(dir) / "objects";
  for (fs::recursive_directory_iterator walk(objects, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (!is_file(*walk)) continue;
    Digest digest;
    std::string hex =
        walk->path().parent_path().filename().string() + walk->path().filename().string();
    // What a killed process was writing has a name that no digest has.
    if (Digest::parse_hex(hex, digest) && marks.has(digest)) continue;
    // An attempt that still runs may have written it and not yet reported it.
    std::error_code each;
    auto age = fs::file_time_type::clock::now() - walk->last_write_time(each);
    if (each || age < young) continue;
    uint64_t size = walk->file_size(each);
    if (fs::remove(walk->path(), each)) freed += size;
  }
  return freed;
}

// Checkpoints of runs that are gone, and files that no row names: a crash left them.
uint64_t sweep_checkpoints(const std::string& dir, const std::set<std::string>& named,
                           std::chrono::hours young) {
  uint64_t freed = 0;
  std::error_code failed;
  std::vector<fs::path> folders;
  fs::path root(dir);
  for (fs::recursive_directory_iterator walk(root / "checkpoints", failed), end;
       !failed && walk != end; walk.increment(failed)) {
    std::error_code each;
    if (walk->symlink_status(each).type() == fs::file_type::directory)
      folders.push_back(walk->path());
    bool is_needed = !is_file(*walk) ||
                     named.contains(walk->path().lexically_relative(root).string()) ||
                     fs::file_time_type::clock::now() - walk->last_write_time(each) < young;
    if (is_needed) continue;
    uint64_t size = walk->file_size(each);
    if (fs::remove(walk->path(), each)) freed += size;
  }
  // Inner ones come later. One that is not empty stays.
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder)
    fs::remove(*folder, failed);
  return freed;
}

bool has_attempts(const core::State& live) {
  for (const auto& [id, run] : live.runs) {
    if (run.counts.running > 0) return true;
  }
  return false;
}

/// On a turn: nothing is committed meanwhile, so what is not marked now nobody needs.
class Collection {
 public:
  explicit Collection(Driver& driver)
      : driver_(driver), store_(driver.store()), marks_(driver.blobs()) {}

  /// Finds what is needed; what is not and is a row is erased by `batch`.
  Status mark(const core::State& live, uint32_t keep, Batch& batch) {
    if (has_attempts(live)) young_ = kYoung;
    FLOW_TRY(mark_runs(live, keep, batch));
    FLOW_TRY(mark_cache(batch));
    FLOW_TRY(drop_requests(batch));
    FLOW_TRY(drop_what_runs_left(batch));
    return drop_blobs(batch);
  }

  /// When the batch is committed: files.
  void sweep() {
    freed_ += sweep_objects(driver_.options().state_dir, marks_, young_);
    freed_ += sweep_checkpoints(driver_.options().state_dir, checkpoints_, young_);
    // Scratch of failed attempts stays until here.
    for (const std::string& run : dropped_)
      (void)remove_tree(driver_.options().state_dir + "/scratch/" + run);
  }

  uint64_t freed() const { return freed_; }

 private:
  Status mark_runs(const core::State& live, uint32_t keep, Batch& batch) {
    auto rows = all_rows(store_);
    FLOW_TRY(rows);
    uint32_t finished = 0;
    for (auto row = rows->rbegin(); row != rows->rend(); ++row) {
      bool keep_it = !is_over(row->status) || finished++ < keep;
      (keep_it ? kept_ : dropped_).insert(row->id);
    }
    for (const RunRow& row : *rows) {
      if (dropped_.contains(row.id)) {
        batch.erase(Family::runs, run_key(row.id));
        batch.erase(Family::kv, folded_key(row.id));
        continue;
      }
      marks_.add(row.plan_digest);
      marks_.add(row.bundle_digest);
      auto frozen = store_.get(Family::kv, folded_key(row.id));
      FLOW_TRY(frozen);
      if (!frozen->has_value()) continue;
      if (auto blob = frozen_blob(**frozen)) marks_.add(*blob);
      auto state = thaw(**frozen, driver_.blobs());
      FLOW_TRY(state);
      for (const auto& [id, run] : state->runs) mark_run(run, marks_);
    }
    for (const auto& [id, run] : live.runs) mark_run(run, marks_);
    return {};
  }

  /// A cache entry lives as long as the run that made it, or a kept run that was served from it.
  Status mark_cache(Batch& batch) {
    return store_.scan(Family::cache, "", "", [&](std::string_view key, std::string_view value) {
      auto entry = decode_cache_entry(value);
      bool lives = entry.ok() && (kept_.contains(entry->run) || marks_.has(entry->result));
      if (!lives) {
        batch.erase(Family::cache, std::string(key));
      } else {
        marks_.add_value_at(entry->result);
        if (entry->has_fragment) marks_.add(entry->fragment);
      }
      return true;
    });
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

  /// Steps, checkpoints and logs go with their run.
  Status drop_what_runs_left(Batch& batch) {
    for (Family family : {Family::kv, Family::logs}) {
      FLOW_TRY(store_.scan(family, "", "", [&](std::string_view key, std::string_view value) {
        std::optional<std::string> run = run_of_key(family, key);
        if (!run) return true;
        if (!kept_.contains(*run)) {
          freed_ += value.size();
          batch.erase(family, std::string(key));
        } else if (family == Family::kv && is_progress_key(key)) {
          marks_.add_value(value);
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
      if (Digest::from_bytes(key, digest) && !marks_.has(digest)) {
        freed_ += value.size();
        batch.erase(Family::blobs, std::string(key));
      }
      return true;
    });
  }

  Driver& driver_;
  Store& store_;
  Marks marks_;
  std::set<std::string> kept_, dropped_;  // runs
  std::set<std::string> checkpoints_;     // files that are named
  std::chrono::hours young_{0};
  uint64_t freed_ = 0;
};

}  // namespace

Result<uint64_t> collect_garbage(Driver& driver, uint32_t keep) {
  Collection collection(driver);
  Status marked;
  driver.collect(
      [&](const core::State& live, Batch& batch) {
        Batch erased;
        marked = collection.mark(live, keep, erased);
        if (marked.ok()) batch = std::move(erased);
      },
      [&] {
        if (marked.ok()) collection.sweep();
      });
  if (auto error = driver.stopped_by()) return *error;
  FLOW_TRY(marked);
  return collection.freed();
}

}  // namespace flow
