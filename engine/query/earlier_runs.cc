#include "engine/query/earlier_runs.hpp"

#include "engine/runs/input_resolver.hpp"

namespace flow {

namespace {

constexpr size_t kRunsMax = 200;

}  // namespace

EarlierRuns EarlierRuns::of_pipeline(const Store& store, const Blobs& blobs,
                                     const std::string& pipeline, const core::RunId& before) {
  std::vector<RunRecord> records;
  auto all = all_records(store);
  if (!all.ok()) return {store, blobs, {}};
  for (auto record = all->rbegin(); record != all->rend() && records.size() < kRunsMax; ++record) {
    bool is_earlier = before.empty() || record->id < before;
    if (is_earlier && record->pipeline == pipeline) records.push_back(std::move(*record));
  }
  return {store, blobs, std::move(records)};
}

std::optional<EarlierRuns::EarlierUnit> EarlierRuns::find(const std::string& name) {
  for (size_t i = 0; i < records_.size(); i++) {
    if (i == indexed_.size()) indexed_.push_back(load(records_[i]));
    auto unit = indexed_[i].units.find(name);
    if (unit != indexed_[i].units.end()) return EarlierUnit{&indexed_[i].loaded, unit->second};
  }
  return std::nullopt;
}

EarlierRuns::IndexedRun EarlierRuns::load(const RunRecord& record) const {
  IndexedRun past;
  auto loaded = load_run(store_, blobs_, record);
  if (!loaded.ok() || loaded->run == nullptr) return past;
  past.loaded = std::move(*loaded);
  const core::Run& run = *past.loaded.run;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    if (!run.units[unit].key.is_zero())
      past.units.emplace(InputResolver::unit_name(run, unit), unit);
  }
  return past;
}

}  // namespace flow
