// Recovery: decodes the newest snapshot and applies every later record, with its commands dropped.
#include <fmt/format.h>

#include "engine/store/checksum.hpp"
#include "engine/store/journal.pb.h"
#include "engine/store/journal_schema.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/store.hpp"

namespace flow {

namespace {

template <typename T>
std::shared_ptr<const T> find(const Blobs& blobs, const Digest& digest,
                              Result<T> (*decode)(std::string_view)) {
  auto bytes = blobs.get(digest);
  if (!bytes.ok()) return nullptr;
  auto decoded = decode(*bytes);
  if (!decoded.ok()) return nullptr;
  return std::make_shared<const T>(std::move(*decoded));
}

/// False if it is damaged.
template <typename Message>
bool parse_sealed(std::string_view bytes, Message& message) {
  std::string_view content;
  return unseal(bytes, content) &&
         message.ParseFromArray(content.data(), static_cast<int>(content.size()));
}

}  // namespace

FindPlan find_plan_in(const Blobs& blobs) {
  return [&blobs](const Digest& digest) { return find<Plan>(blobs, digest, &decode_plan); };
}

FindFragment find_fragment_in(const Blobs& blobs) {
  return [&blobs](const Digest& digest) {
    return find<PlanFragment>(blobs, digest, &decode_fragment);
  };
}

Status check_schemas(const Store& store) {
  Status known;
  auto check = [&](const auto& message, std::string_view what) {
    known = check_schema(message.schema(), what);
    return known.ok();
  };
  FLOW_TRY(store.scan(Family::snapshots, "", "", [&](std::string_view, std::string_view value) {
    journal::Snapshot snapshot;
    return !parse_sealed(value, snapshot) || check(snapshot, "snapshot");
  }));
  if (!known.ok()) return known;
  FLOW_TRY(store.scan(Family::journal, "", "", [&](std::string_view, std::string_view value) {
    journal::Batch batch;
    return !parse_sealed(value, batch) || check(batch, "journal");
  }));
  return known;
}

namespace {

/// Applies the records that the journal has from `from` on.
Status apply_journal(const Store& store, const Blobs& blobs, const std::string& from,
                     core::State& state) {
  FindPlan find_plan = find_plan_in(blobs);
  FindFragment find_fragment = find_fragment_in(blobs);
  std::vector<core::Command> dropped;
  Status applied;
  FLOW_TRY(store.scan(Family::journal, "", from, [&](std::string_view, std::string_view value) {
    auto records = decode_records(value, find_plan, find_fragment);
    if (!records.ok()) {
      applied = records.error();
      return false;
    }
    for (const core::Record& record : *records) {
      if (record.sequence <= state.sequence) continue;  // the snapshot has it
      if (record.sequence != state.sequence + 1) {
        applied = environment_error(fmt::format(
            "the state is damaged: the journal has no record {}: after {} comes {}. Restore "
            "the state's folder from a copy, or move it elsewhere and start again.",
            state.sequence + 1, state.sequence, record.sequence));
        return false;
      }
      core::apply(state, record, dropped);
      dropped.clear();
    }
    return true;
  }));
  return applied;
}

}  // namespace

Result<core::State> recover(const Store& store, const Blobs& blobs) {
  core::State state;
  std::string newest;
  FLOW_TRY(store.scan(Family::snapshots, "", "", [&](std::string_view, std::string_view value) {
    newest = std::string(value);
    return true;
  }));
  if (!newest.empty()) {
    auto decoded = decode_snapshot(newest, find_plan_in(blobs), find_fragment_in(blobs));
    FLOW_TRY(decoded);
    state = std::move(*decoded);
  }
  FLOW_TRY(apply_journal(store, blobs, "", state));
  return state;
}

Result<bool> apply_new_records(const Store& store, const Blobs& blobs, core::State& state) {
  std::string next = journal_key(state.sequence + 1);
  bool has_newer = false;
  FLOW_TRY(store.scan(Family::snapshots, "", next, [&](std::string_view, std::string_view) {
    has_newer = true;
    return false;
  }));
  if (has_newer) return false;
  FLOW_TRY(apply_journal(store, blobs, next, state));
  return true;
}

}  // namespace flow
