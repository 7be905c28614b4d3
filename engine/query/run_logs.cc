#include "engine/query/run_logs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/throwing.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

/// Finds the logs of cached tasks, which are in the runs that computed the results.
class CachedLogs {
 public:
  CachedLogs(const Store& store, const Blobs& blobs) : store_(store), blobs_(blobs) {}

  /// The prefix of the log's keys. Nothing if that run or the cache's entry was collected or
  /// replaced.
  std::optional<std::string> prefix_of(const core::Unit& unit) {
    auto row = value_or_throw(store_.get(Family::cache, cache_key(unit.key)));
    if (!row) return std::nullopt;
    auto entry = value_or_throw(decode_cache_entry(*row));
    if (entry.result != unit.result) return std::nullopt;
    const std::map<Digest, core::UnitId>& executed = executed_of(entry.run);
    auto found = executed.find(unit.key);
    if (found == executed.end()) return std::nullopt;
    return log_prefix(entry.run, found->second);
  }

 private:
  /// The units that the run executed, by key.
  const std::map<Digest, core::UnitId>& executed_of(const core::RunId& id) {
    auto [found, is_new] = runs_.try_emplace(id);
    if (!is_new) return found->second;
    auto record = record_of(store_, id);
    if (!record) return found->second;
    LoadedRun loaded = value_or_throw(load_run(store_, blobs_, *record));
    if (loaded.run == nullptr) return found->second;
    for (core::UnitId unit = 0; unit < loaded.run->units.size(); unit++) {
      const core::Unit& u = loaded.run->units[unit];
      if (!u.cached && u.attempts > 0 && !u.key.is_zero()) found->second.emplace(u.key, unit);
    }
    return found->second;
  }

  const Store& store_;
  const Blobs& blobs_;
  std::map<core::RunId, std::map<Digest, core::UnitId>> runs_;
};

/// Parses `name@attempt`; attempt 0 means all.
std::pair<std::string, uint32_t> asked_attempt(const core::Run& run, const std::string& asked) {
  size_t at = asked.rfind('@');
  if (at == std::string::npos || at + 1 >= asked.size() ||
      asked.find_first_not_of("0123456789", at + 1) != std::string::npos)
    return {asked, 0};
  std::string task = asked.substr(0, at);
  auto attempt = static_cast<uint32_t>(std::strtoul(asked.c_str() + at + 1, nullptr, 10));
  uint32_t made = run.units[value_or_throw(find_unit(run, task))].attempts;
  if (attempt == 0 || attempt > made)
    throw Failed(user_error(fmt::format("`{}` of the run {} has no attempt {}: it had {}", task,
                                        run.id, asked.substr(at + 1), made)));
  return {task, attempt};
}

/// The units of the task and its instances; all units if `task` is "".
std::vector<core::UnitId> units_of(const core::Run& run, const std::string& task) {
  std::vector<core::UnitId> units;
  if (!task.empty()) {
    units.push_back(value_or_throw(find_unit(run, task)));
    // A map stands for all its instances.
    for (core::UnitId instance : core::instances_of(run, units.front())) units.push_back(instance);
  } else {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) units.push_back(unit);
  }
  return units;
}

}  // namespace

void visit_log_lines(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                     const std::string& task_at_attempt,
                     const std::function<void(LogLine line)>& visit) {
  const core::Run& run = *loaded.run;
  auto [task, attempt] = asked_attempt(run, task_at_attempt);
  CachedLogs cached_logs(store, blobs);
  for (core::UnitId unit : units_of(run, task)) {
    std::string prefix = log_prefix(run.id, unit);
    // A whole run has only what it executed itself.
    if (run.units[unit].cached && !task.empty())
      prefix = cached_logs.prefix_of(run.units[unit]).value_or(prefix);
    std::string name = InputResolver::unit_name(run, unit), tag = core::tag_of(run, unit);
    ok_or_throw(
        store.scan(Family::logs, prefix, prefix, [&](std::string_view, std::string_view value) {
          auto row = decode_log(value);
          if (row.ok() && (attempt == 0 || row->attempt == attempt))
            visit({name, row->attempt, static_cast<int>(row->stream), row->at, std::move(row->text),
                   row->rank, tag});
          return true;
        }));
  }
}

void LogTail::add(LogLine line, bool matches) {
  total_++;
  if (!matches) return;
  std::pair key(line.at_ms, matching_++);
  if (key < removed_until_) return;  // there would be a gap between it and the others
  bool is_full = lines_.size() >= limit_;
  if (is_full && (lines_.empty() || key < lines_.begin()->first)) return;
  if (is_full) remove_first();
  text_bytes_ += line.text.size();
  lines_.emplace(key, std::move(line));
  while (text_bytes_ > kTextMax && lines_.size() > 1) remove_first();
}

void LogTail::remove_first() {
  removed_until_ = lines_.begin()->first;
  text_bytes_ -= lines_.begin()->second.text.size();
  lines_.erase(lines_.begin());
}

LogTail log_tail(const EngineOptions& options, const std::string& run,
                 const std::string& task_at_attempt,
                 const std::function<bool(std::string_view text)>& matches, size_t limit) {
  OpenedRun opened = open_run(options, run);
  LogTail tail(limit);
  visit_log_lines(*opened.store, *opened.blobs, opened.loaded, task_at_attempt, [&](LogLine line) {
    bool is_wanted = matches(line.text);
    tail.add(std::move(line), is_wanted);
  });
  return tail;
}

}  // namespace flow
