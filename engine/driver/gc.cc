// Garbage collection: mark what the kept runs and the cache entries of kept runs name, sweep the
// rest.
#include "engine/driver/gc.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <set>

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

uint64_t sweep_objects(const std::string& dir, const Marks& marks, std::chrono::hours young) {
  uint64_t freed = 0;
  std::error_code failed;
  fs::path objects = fs::path(dir) / "objects";
  for (fs::recursive_directory_iterator walk(objects, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (!walk->is_regular_file(failed)) continue;
    Digest digest;
    std::string hex =
        walk->path().parent_path().filename().string() + walk->path().filename().string();
    // What a killed process was writing has a name that no digest has.
    if (Digest::parse_hex(hex, digest) && marks.has(digest)) continue;
    // An attempt that still runs may have written it and not yet reported it.
    auto age = fs::file_time_type::clock::now() - walk->last_write_time(failed);
    if (age < young) continue;
    uint64_t size = walk->file_size(failed);
    std::error_code removal;
    if (fs::remove(walk->path(), removal)) freed += size;
  }
  return freed;
}

bool has_attempts(const core::State& live) {
  for (const auto& [id, run] : live.runs) {
    if (run.counts.running > 0) return true;
  }
  return false;
}

// On a turn: nothing is committed meanwhile, so what is not marked now nobody needs.
Result<uint64_t> collect(Driver& driver, const core::State& live, uint32_t keep) {
  Store& store = driver.store();
  auto rows = all_rows(store);
  FLOW_TRY(rows);
  std::set<std::string> kept, dropped;
  uint32_t finished = 0;
  for (auto row = rows->rbegin(); row != rows->rend(); ++row) {
    bool keep_it = !is_over(row->status) || finished++ < keep;
    (keep_it ? kept : dropped).insert(row->id);
  }
  Batch batch;
  uint64_t freed = 0;
  Marks marks(driver.blobs());
  for (const RunRow& row : *rows) {
    if (dropped.contains(row.id)) {
      batch.erase(Family::runs, run_key(row.id));
      batch.erase(Family::kv, folded_key(row.id));
      continue;
    }
    marks.add(row.plan_digest);
    marks.add(row.bundle_digest);
    auto frozen = store.get(Family::kv, folded_key(row.id));
    FLOW_TRY(frozen);
    if (!frozen->has_value()) continue;
    if (auto blob = frozen_blob(**frozen)) marks.add(*blob);
    auto state = thaw(**frozen, driver.blobs());
    FLOW_TRY(state);
    for (const auto& [id, run] : state->runs) mark_run(run, marks);
  }
  for (const auto& [id, run] : live.runs) mark_run(run, marks);
  // A cache entry lives as long as the run that made it, or a kept run that was served from it.
  Status scanned =
      store.scan(Family::cache, "", "", [&](std::string_view key, std::string_view value) {
        auto entry = decode_cache_entry(value);
        bool lives = entry.ok() && (kept.contains(entry->run) || marks.has(entry->result));
        if (!lives) {
          batch.erase(Family::cache, std::string(key));
        } else {
          marks.add_value_at(entry->result);
          if (entry->has_fragment) marks.add(entry->fragment);
        }
        return true;
      });
  FLOW_TRY(scanned);
  std::string requests = request_key("");
  scanned =
      store.scan(Family::kv, requests, requests, [&](std::string_view key, std::string_view run) {
        if (!kept.contains(std::string(run))) batch.erase(Family::kv, std::string(key));
        return true;
      });
  FLOW_TRY(scanned);
  // Steps, checkpoints and logs go with their run.
  for (Family family : {Family::kv, Family::logs}) {
    scanned = store.scan(family, "", "", [&](std::string_view key, std::string_view value) {
      std::optional<std::string> run = run_of_key(family, key);
      if (!run) return true;
      if (!kept.contains(*run)) {
        freed += value.size();
        batch.erase(family, std::string(key));
      } else if (family == Family::kv && is_progress_key(key)) {
        marks.add_value(value);
      }
      return true;
    });
    FLOW_TRY(scanned);
  }
  scanned = store.scan(Family::blobs, "", "", [&](std::string_view key, std::string_view value) {
    Digest digest;
    if (Digest::from_bytes(key, digest) && !marks.has(digest)) {
      freed += value.size();
      batch.erase(Family::blobs, std::string(key));
    }
    return true;
  });
  FLOW_TRY(scanned);
  FLOW_TRY(store.commit(batch));
  freed += sweep_objects(driver.options().state_dir, marks,
                         has_attempts(live) ? kYoung : std::chrono::hours{0});
  // Scratch of failed attempts stays until here.
  std::error_code failed;
  for (const std::string& run : dropped)
    fs::remove_all(fs::path(driver.options().state_dir) / "scratch" / run, failed);
  return freed;
}

}  // namespace

Result<uint64_t> collect_garbage(Driver& driver, uint32_t keep) {
  Result<uint64_t> freed = uint64_t{0};
  driver.collect([&](const core::State& live) { freed = collect(driver, live, keep); });
  if (auto error = driver.stopped_by()) return *error;
  return freed;
}

}  // namespace flow
