#include "engine/runs/served_versions.hpp"

#include <algorithm>
#include <utility>

#include "engine/plan/plan.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

Result<bool> has_served(const Store& store, const RunRecord& record) {
  auto row = store.get(Family::kv, served_key(record.id));
  FLOW_TRY(row);
  return row->has_value();
}

/// Names of the nodes that are services.
Result<std::set<std::string>> service_names(const Blobs& blobs, const RunRecord& record) {
  auto bytes = blobs.get(record.plan_digest);
  FLOW_TRY(bytes);
  auto plan = decode_plan(*bytes);
  FLOW_TRY(plan);
  std::set<std::string> names;
  for (const TaskNode& node : plan->nodes) {
    bool is_service = node.kind != NodeKind::when && plan->defs[node.def].kind == TaskKind::service;
    if (is_service) names.insert(node.name);
  }
  return names;
}

Result<std::optional<RunRecord>> newest_served(const Store& store,
                                               const std::vector<RunRecord>& records,
                                               const std::string& name, bool may_be_over) {
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->name != name || (is_over(record->status) && !may_be_over)) continue;
    auto served = has_served(store, *record);
    FLOW_TRY(served);
    if (*served) return std::optional(*record);
  }
  return std::optional<RunRecord>();
}

Result<RunRecord> select(const Store& store, const std::string& selector, bool may_be_over) {
  auto newest = select_record(store, selector);
  FLOW_TRY(newest);
  bool is_by_name = newest->name == selector && newest->id != selector;
  if (!is_by_name) return newest;
  auto records = all_records(store);
  FLOW_TRY(records);
  auto serving = newest_served(store, *records, selector, false);
  FLOW_TRY(serving);
  if (*serving) return std::move(**serving);
  if (!may_be_over) return newest;
  auto served = newest_served(store, *records, selector, true);
  FLOW_TRY(served);
  return *served ? std::move(**served) : std::move(*newest);
}

}  // namespace

Result<std::optional<RunRecord>> serving_version(const Store& store, const std::string& name) {
  auto records = all_records(store);
  FLOW_TRY(records);
  return newest_served(store, *records, name, false);
}

Result<RunRecord> select_serving(const Store& store, const std::string& selector) {
  return select(store, selector, false);
}

Result<RunRecord> select_served(const Store& store, const std::string& selector) {
  return select(store, selector, true);
}

Result<std::optional<RunRecord>> version_before(const Store& store, const Blobs& blobs,
                                                const RunRecord& serving) {
  auto records = all_records(store);
  FLOW_TRY(records);
  auto services = service_names(blobs, serving);
  FLOW_TRY(services);
  for (auto record = records->rbegin(); record != records->rend(); ++record) {
    bool is_earlier = record->name == serving.name && record->id < serving.id;
    if (!is_earlier || record->status != "succeeded") continue;
    auto served = has_served(store, *record);
    FLOW_TRY(served);
    if (!*served) continue;
    auto names = service_names(blobs, *record);
    if (names.ok() && std::ranges::includes(*names, *services)) return std::optional(*record);
  }
  return std::optional<RunRecord>();
}

Result<std::set<std::string>> rollback_versions(const Store& store, const Blobs& blobs) {
  auto records = all_records(store);
  FLOW_TRY(records);
  std::set<std::string> names, versions;
  for (const RunRecord& record : *records)
    if (!record.name.empty() && !is_over(record.status)) names.insert(record.name);
  for (const std::string& name : names) {
    auto serving = newest_served(store, *records, name, false);
    FLOW_TRY(serving);
    if (!*serving) continue;
    auto before = version_before(store, blobs, **serving);
    if (before.ok() && *before) versions.insert((*before)->id);
  }
  return versions;
}

}  // namespace flow
