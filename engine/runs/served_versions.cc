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

struct Served {
  std::optional<RunRecord> serving;
  std::optional<RunRecord> newest;
};

/// The runs of this name that have served. An interrupted one serves while its front has its
/// replicas, unless a newer one has served since: that one has replaced it.
Result<Served> find_served(const Store& store, const std::vector<RunRecord>& records,
                           const std::string& name) {
  Served found;
  for (auto record = records.rbegin(); record != records.rend() && !found.serving; ++record) {
    bool is_replaced = found.newest && (is_over(record->status) || record->status == "interrupted");
    if (record->name != name || is_replaced) continue;
    auto served = has_served(store, *record);
    FLOW_TRY(served);
    if (!*served) continue;
    if (!found.newest) found.newest = *record;
    if (!is_over(record->status) && record->status != "interrupted") found.serving = *record;
  }
  if (!found.serving && found.newest && !is_over(found.newest->status))
    found.serving = found.newest;
  return found;
}

Result<RunRecord> select(const Store& store, const std::string& selector, bool may_be_over) {
  auto newest = select_record(store, selector);
  FLOW_TRY(newest);
  bool is_by_name = newest->name == selector && newest->id != selector;
  if (!is_by_name) return newest;
  auto records = all_records(store);
  FLOW_TRY(records);
  auto served = find_served(store, *records, selector);
  FLOW_TRY(served);
  if (served->serving) return std::move(*served->serving);
  if (may_be_over) return served->newest ? std::move(*served->newest) : std::move(*newest);
  for (auto record = records->rbegin(); record != records->rend(); ++record)
    if (record->name == selector && !is_over(record->status)) return *record;
  return newest;
}

}  // namespace

Result<std::optional<RunRecord>> serving_version(const Store& store, const std::string& name) {
  auto records = all_records(store);
  FLOW_TRY(records);
  auto served = find_served(store, *records, name);
  FLOW_TRY(served);
  return std::move(served->serving);
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
    auto served = find_served(store, *records, name);
    FLOW_TRY(served);
    if (!served->serving) continue;
    auto before = version_before(store, blobs, *served->serving);
    if (before.ok() && *before) versions.insert((*before)->id);
  }
  return versions;
}

}  // namespace flow
