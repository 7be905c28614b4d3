#include "engine/query/earlier_runs.hpp"

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

std::optional<EarlierRuns::EarlierUnit> EarlierRuns::find(const core::Run& run, core::UnitId unit,
                                                          InputResolver& resolver, bool has_tags) {
  for (size_t i = 0; i < records_.size(); i++) {
    if (i == paired_.size()) {
      PairedRun& added = paired_.emplace_back();
      auto loaded = load_run(store_, blobs_, records_[i]);
      if (loaded.ok() && loaded->run != nullptr) {
        added.loaded = std::move(*loaded);
        added.pairs.emplace(*added.loaded.run, run, resolver, has_tags);
      }
    }
    const PairedRun& past = paired_[i];
    core::UnitId found = past.pairs ? past.pairs->before(unit) : kNoNode;
    if (found == kNoNode) continue;
    const core::Unit& before = past.loaded.run->units[found];
    if (!before.key.is_zero() || before.expanded) return EarlierUnit{&past.loaded, found};
  }
  return std::nullopt;
}

}  // namespace flow
