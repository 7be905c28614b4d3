#include "engine/runtime/stored_runs.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/runs/notifications.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

void StoredRuns::put_record(const core::RunId& run, Batch& batch) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  RunRecord record;
  RunContext* context = active_runs_.find(run);
  if (context != nullptr) {
    record = context->record;
  } else {
    auto old = record_of(store_, run);
    if (!old) return;
    record = std::move(*old);
  }
  update_record(found->second, record);
  if (context != nullptr) context->record = record;
  batch.put(Family::runs, run_key(run), encode_run_record(record));
  if (found->second.status == core::RunStatus::serving)
    batch.put(Family::kv, served_key(run), "served");
}

void StoredRuns::archive(const core::RunId& run, Batch& batch) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  put_record(run, batch);
  auto archived = archive_run(state_, found->second, blobs_);
  if (!archived.ok()) return stop_.set(archived.error());
  batch.put(Family::kv, archive_key(run), std::move(*archived));
  batch.erase(Family::kv, detached_key(run));
  put_notification(found->second, batch);
}

// An engine that died may have committed this end before: it has one notification.
void StoredRuns::put_notification(const core::Run& run, Batch& batch) {
  std::string settings;
  if (const RunContext* context = active_runs_.find(run.id)) {
    settings = context->notify;
  } else {
    auto row = store_.get(Family::kv, notify_key(run.id));
    if (row.ok()) settings = row->value_or("");
  }
  if (settings.empty()) return;
  Notification end = notification_of_end(run.id, core::status_name(run.status), run.finished,
                                         decode_notify_settings(settings));
  std::string key = notification_key(run.id, run.finished);
  auto before = store_.get(Family::kv, key);
  bool is_known = before.ok() && before->has_value();
  if (!end.is_done() && !is_known) batch.put(Family::kv, std::move(key), encode_notification(end));
}

Result<std::optional<core::State>> StoredRuns::find_archived(const core::RunId& run) const {
  auto row = store_.get(Family::kv, archive_key(run));
  FLOW_TRY(row);
  if (!row->has_value()) return std::optional<core::State>();
  auto state = load_archived_run(**row, blobs_);
  FLOW_TRY(state);
  return std::optional(std::move(*state));
}

core::RunId StoredRuns::new_id() const {
  core::Time at = now_ms();
  std::string newest;  // a clock that was ahead may have given ids of later times
  Status scanned = store_.scan(Family::runs, "", run_key(run_id_start(at)),
                               [&](std::string_view key, std::string_view) {
                                 newest = std::string(key);
                                 return true;
                               });
  if (scanned.ok() && is_run_id(newest)) at = std::max(at, run_id_ms(newest) + 1);
  return make_run_id(at);
}

void StoredRuns::erase(const core::RunId& run, Batch& batch) {
  batch.erase(Family::kv, archive_key(run));
  batch.erase(Family::kv, inputs_key(run));
  std::string prefix = log_prefix(run);
  Status scanned =
      store_.scan(Family::logs, prefix, prefix, [&](std::string_view key, std::string_view) {
        batch.erase(Family::logs, std::string(key));
        return true;
      });
  if (!scanned.ok()) stop_.set(scanned.error());
  prefix = attempt_prefix(run);  // the attempts of new code are counted from 1 again
  scanned = store_.scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view) {
    batch.erase(Family::kv, std::string(key));
    return true;
  });
  if (!scanned.ok()) stop_.set(scanned.error());
}

}  // namespace flow
