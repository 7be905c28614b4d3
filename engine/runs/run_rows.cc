#include "engine/runs/run_rows.hpp"

#include <fmt/format.h>

#include "engine/base/errors.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

Result<std::vector<RunRecord>> all_records(const Store& store) {
  std::vector<RunRecord> rows;
  std::optional<Error> bad;
  Status scanned = store.scan(Family::runs, "", "", [&](std::string_view, std::string_view value) {
    auto row = decode_run_record(value);
    if (!row.ok()) {
      bad = row.error();
      return false;
    }
    rows.push_back(std::move(*row));
    return true;
  });
  FLOW_TRY(scanned);
  if (bad) return *bad;
  return rows;
}

std::optional<RunRecord> row_of(const Store& store, const core::RunId& id) {
  auto bytes = store.get(Family::runs, run_key(id));
  if (!bytes.ok() || !bytes->has_value()) return std::nullopt;
  auto row = decode_run_record(**bytes);
  return row.ok() ? std::optional(std::move(*row)) : std::nullopt;
}

Result<RunRecord> select_record(const Store& store, const std::string& selector) {
  auto rows = all_records(store);
  FLOW_TRY(rows);
  if (rows->empty())
    return user_error("there is no run in this state yet: start one with `flow run FILE`");
  if (selector.empty() || selector == "last") return rows->back();
  for (const RunRecord& row : *rows) {
    if (row.id == selector) return row;
  }
  for (auto row = rows->rbegin(); row != rows->rend(); ++row) {
    if (row->name == selector) return *row;
  }
  std::vector<const RunRecord*> matches;
  std::vector<std::string> names;
  for (const RunRecord& row : *rows) {
    if (row.id.starts_with(selector)) matches.push_back(&row);
    names.push_back(row.id);
    if (!row.name.empty()) names.push_back(row.name);
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

Result<LoadedRun> load_run(const Store& store, const Blobs& blobs, const RunRecord& row) {
  LoadedRun loaded;
  loaded.row = row;
  auto frozen = store.get(Family::kv, archive_key(row.id));
  FLOW_TRY(frozen);
  auto state = frozen->has_value() ? load_archived_run(**frozen, blobs) : recover(store, blobs);
  FLOW_TRY(state);
  loaded.state = std::make_shared<core::State>(std::move(*state));
  auto found = loaded.state->runs.find(row.id);
  if (found != loaded.state->runs.end()) loaded.run = &found->second;
  return loaded;
}

Result<core::UnitId> find_unit(const core::Run& run, const std::string& name) {
  std::vector<std::string> names;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    std::string unit_name = InputResolver::unit_name(run, unit);
    if (unit_name == name) return unit;
    if (core::is_counted(run, unit)) names.push_back(std::move(unit_name));
  }
  std::string near = nearest_name(name, names);
  return user_error(fmt::format("the run {} has no task `{}`{}", run.id, name,
                                near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near)));
}

}  // namespace flow
