#include "engine/runs/run_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/errors.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

Result<std::vector<RunRecord>> all_records(const Store& store) {
  std::vector<RunRecord> records;
  std::optional<Error> bad;
  Status scanned = store.scan(Family::runs, "", "", [&](std::string_view, std::string_view value) {
    auto record = decode_run_record(value);
    if (!record.ok()) {
      bad = record.error();
      return false;
    }
    records.push_back(std::move(*record));
    return true;
  });
  FLOW_TRY(scanned);
  if (bad) return *bad;
  return records;
}

std::optional<RunRecord> record_of(const Store& store, const core::RunId& id) {
  auto bytes = store.get(Family::runs, run_key(id));
  if (!bytes.ok() || !bytes->has_value()) return std::nullopt;
  auto record = decode_run_record(**bytes);
  return record.ok() ? std::optional(std::move(*record)) : std::nullopt;
}

Result<RunRecord> select_record(const Store& store, const std::string& selector) {
  auto records = all_records(store);
  FLOW_TRY(records);
  if (records->empty())
    return user_error("there is no run in this state yet: start one with `flow run FILE`");
  if (selector.empty() || selector == "last") return records->back();
  for (const RunRecord& record : *records) {
    if (record.id == selector) return record;
  }
  for (auto record = records->rbegin(); record != records->rend(); ++record) {
    if (record->name == selector) return *record;
  }
  std::vector<const RunRecord*> matches;
  std::vector<std::string> names;
  for (const RunRecord& record : *records) {
    if (record.id.starts_with(selector)) matches.push_back(&record);
    names.push_back(record.id);
    if (!record.name.empty()) names.push_back(record.name);
  }
  if (matches.size() == 1) return *matches.front();
  if (matches.size() > 1) {
    return user_error(fmt::format("`{}` begins the ids of {} runs ({}, {}, …): write more of it",
                                  selector, matches.size(), matches[0]->id, matches[1]->id));
  }
  std::string near = nearest_name(selector, names);
  return user_error(fmt::format("there is no run `{}`{}: `flow ls` lists the runs", selector,
                                near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near)));
}

Result<LoadedRun> load_run(const Store& store, const Blobs& blobs, const RunRecord& record) {
  LoadedRun loaded;
  loaded.record = record;
  auto archived = store.get(Family::kv, archive_key(record.id));
  FLOW_TRY(archived);
  auto state = archived->has_value() ? load_archived_run(**archived, blobs) : recover(store, blobs);
  FLOW_TRY(state);
  loaded.state = std::make_shared<core::State>(std::move(*state));
  auto found = loaded.state->runs.find(record.id);
  if (found != loaded.state->runs.end()) loaded.run = &found->second;
  return loaded;
}

namespace {

/// As nearest_name(); "check" may also mean "digits/check".
std::string nearest_task(const std::string& name, const std::vector<std::string>& names) {
  std::string near = nearest_name(name, names);
  if (!near.empty()) return near;
  std::vector<std::string> last_parts;
  for (const std::string& each : names) last_parts.push_back(each.substr(each.rfind('/') + 1));
  auto found = std::ranges::find(last_parts, nearest_name(name, last_parts));
  return found == last_parts.end() ? "" : names[static_cast<size_t>(found - last_parts.begin())];
}

}  // namespace

Result<core::UnitId> find_unit(const core::Run& run, const std::string& name) {
  std::vector<std::string> names;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    std::string unit_name = InputResolver::unit_name(run, unit);
    if (unit_name == name) return unit;
    if (core::is_counted(run, unit)) names.push_back(core::shown_name(run, unit));
  }
  if (auto tagged = run.tagged.find(name); tagged != run.tagged.end()) return tagged->second;
  std::string near = nearest_task(name, names);
  return user_error(fmt::format("the run {} has no task `{}`{}", run.id, name,
                                near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near)));
}

}  // namespace flow
