#include "engine/query/task_values.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "engine/runs/run_rows.hpp"
#include "engine/store/store.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

std::string preview_json(const Value& value, size_t bytes_max) {
  return cut_text(to_json(value, 2), bytes_max);
}

/// "" if a task that it needs has no result, or `gc` has removed one.
std::string arguments_preview(InputResolver& resolver, const core::Run& run, core::UnitId unit,
                              size_t bytes_max) {
  if (!run.units[unit].resolved) return "";
  auto encoded = resolver.arguments(run, unit);
  if (!encoded.ok()) return "";
  auto value = decode_value(*encoded);
  return value.ok() ? preview_json(*value, bytes_max) : "";
}

std::string result_preview(InputResolver& resolver, const core::Run& run, core::UnitId unit,
                           size_t bytes_max) {
  if (run.units[unit].status != core::UnitStatus::succeeded) return "";
  auto value = resolver.result_of(run, unit);
  return value.ok() ? preview_json(**value, bytes_max) : "";
}

}  // namespace

TaskValues task_values_of(InputResolver& resolver, const core::Run& run, core::UnitId unit,
                          size_t bytes_max) {
  return {arguments_preview(resolver, run, unit, bytes_max),
          result_preview(resolver, run, unit, bytes_max)};
}

Result<TaskValues> task_values(const std::string& state_dir, const std::string& run,
                               const std::string& task, size_t bytes_max) {
  StoreOptions options;
  options.read_only = true;
  auto store = open_store(state_dir, options);
  if (!store.ok()) return store.error();
  Blobs blobs(**store, state_dir);
  auto record = select_record(**store, run);
  if (!record.ok()) return record.error();
  auto loaded = load_run(**store, blobs, *record);
  if (!loaded.ok()) return loaded.error();
  if (loaded->run == nullptr)
    return user_error(fmt::format("the tasks of the run {} were collected by gc", record->id));
  auto unit = find_unit(*loaded->run, task);
  if (!unit.ok()) return unit.error();
  InputResolver resolver([&](const Digest& digest) { return blobs.get(digest); });
  return task_values_of(resolver, *loaded->run, *unit, bytes_max);
}

}  // namespace flow
