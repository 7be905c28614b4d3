// Reading a state: rows, frozen runs and live ones. The same code beside a writer and inside it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow {

/// A run brought back from wherever it is: frozen, or in the journal.
struct LoadedRun {
  RunRow row;
  std::shared_ptr<core::State> state;  // holds it
  const core::Run* run = nullptr;      // null where only the row is left
};

/// All rows, oldest first.
Result<std::vector<RunRow>> all_rows(const Store& store);
/// Of the run with exactly this id, where it is there and can be read.
std::optional<RunRow> row_of(const Store& store, const core::RunId& id);
/// An id, a unique prefix, a name (the newest of that name), "last" or "".
Result<RunRow> select_row(const Store& store, const std::string& selector);
Result<LoadedRun> load_run(const Store& store, const Blobs& blobs, const RunRow& row);
Result<core::UnitId> find_unit(const core::Run& run, const std::string& name);

std::string explain_run(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                        Resolver& resolver);
std::string explain_task(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                         core::UnitId unit, Resolver& resolver);
/// How `now`'s key parts differ from `before`'s, as sentences; empty where they are the same.
std::vector<std::string> differences(const std::vector<KeyPart>& before, const TaskDef& before_def,
                                     const std::vector<KeyPart>& now, const TaskDef& now_def);
/// The newest earlier run (before `row`) that has a unit of this name with a key.
struct Earlier {
  LoadedRun loaded;
  core::UnitId unit = kNoNode;
};
std::optional<Earlier> earlier_unit(const Store& store, const Blobs& blobs, const RunRow& row,
                                    const std::string& name);

PlanInfo plan_info(const Plan& plan);
const char* kind_name(TaskKind kind);

}  // namespace flow
