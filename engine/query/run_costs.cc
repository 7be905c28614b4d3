// What runs cost (<flow/cost.hpp>), from what the core counted.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/clock.hpp"
#include "engine/base/throwing.hpp"
#include "engine/costs/cost_report.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/lock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/submission/task_configuration.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

/// What runs of the state held. Other runs are loaded for what their cached results saved.
class RunCosts {
 public:
  RunCosts(const Store& store, const Blobs& blobs, const Prices& otherwise)
      : store_(store), blobs_(blobs), otherwise_(otherwise) {}

  void add(const LoadedRun& loaded, bool is_executed, CostTable& table) {
    const core::Run& run = *loaded.run;
    Prices prices = prices_with(run.id);
    core::Time until = is_executed ? now_ms() : loaded.state->at;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      auto task = task_of(loaded, unit, until);
      if (task) table.add(*task, prices);
    }
  }

 private:
  /// The prices with which the run was submitted, if there were any.
  Prices prices_with(const core::RunId& id) const {
    std::string profile;
    Value kept = value_or_throw(inputs_of(store_, id)).config;
    Prices prices = value_or_throw(prices_of(values_of_kept(kept, profile)));
    return prices.currency.empty() ? otherwise_ : prices;
  }

  /// Nothing for what never had an attempt and did not come from the cache.
  std::optional<TaskConsumption> task_of(const LoadedRun& loaded, core::UnitId unit,
                                         core::Time until) {
    const core::Run& run = *loaded.run;
    const core::Unit& u = run.units[unit];
    const TaskDef* def = core::def_of(run, unit);
    bool is_cached = u.cached && u.status == core::UnitStatus::succeeded && !u.dropped;
    if (def == nullptr || (u.attempts == 0 && !is_cached)) return std::nullopt;
    TaskConsumption task;
    task.task = without_numbers(run.node(u.node).name);
    task.user = run.user;
    task.queue = def->queue;
    task.is_cached = is_cached;
    const Resources& resources = core::resources_of(run, unit);
    task.cpus_milli = resources.cpus_milli;
    task.memory_bytes = resources.memory_bytes;
    task.used = core::consumption_of(run, unit);
    if (u.phase == core::Phase::running)
      for (const Consumption& part :
           core::consumption_of_attempt(*loaded.state, run, unit, AttemptEnding::succeeded, until))
        merge(task.used, part);
    int64_t peak = core::totals_of(run, unit).peak_memory;
    size_t ranks = u.detail ? u.detail->others.size() + 1 : 1;
    bool has_one = u.attempts == 1 && u.finished > 0 && peak >= 0;
    if (has_one)
      task.peak_memory_byte_ms = static_cast<double>(ranks) * static_cast<double>(peak) *
                                 static_cast<double>(u.finished - u.started);
    if (is_cached) task.saved = saved_by(u);
    return task;
  }

  /// What the cached result had cost the run that computed it; empty if that is not known any more.
  std::vector<Consumption> saved_by(const core::Unit& unit) {
    auto row = store_.get(Family::cache, cache_key(unit.key));
    if (!row.ok() || !row->has_value()) return {};
    auto entry = decode_cache_entry(**row);
    if (!entry.ok() || entry->result != unit.result) return {};
    auto [found, is_new] = computed_.try_emplace(entry->run);
    if (is_new) found->second = computed_in(entry->run);
    auto computed = found->second.find(unit.key);
    return computed == found->second.end() ? std::vector<Consumption>() : computed->second;
  }

  using ByKey = std::map<Digest, std::vector<Consumption>>;

  ByKey computed_in(const core::RunId& id) const {
    ByKey computed;
    auto record = record_of(store_, id);
    if (!record) return computed;
    auto loaded = load_run(store_, blobs_, *record);
    if (!loaded.ok() || loaded->run == nullptr) return computed;
    const core::Run& run = *loaded->run;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      if (u.attempts == 0 || u.key.is_zero()) continue;
      std::vector<Consumption>& to = computed[u.key];
      for (const Consumption& part : core::consumption_of(run, unit)) merge(to, part);
    }
    return computed;
  }

  const Store& store_;
  const Blobs& blobs_;
  const Prices& otherwise_;
  std::map<core::RunId, ByKey> computed_;  // by runs, each loaded once
};

std::vector<ConfigValue> priced_values(const ConfigOptions& config) {
  if (config.files.empty()) return {};
  return run_values(value_or_throw(read_task_configuration(config)));
}

bool is_executed(const OpenedRun& opened, const std::string& status) {
  return !is_over(status) && state_is_locked(opened.state_dir);
}

}  // namespace

CostReport cost_report(const EngineOptions& options, const CostOptions& how) {
  const std::vector<std::string> groups = {"task", "user", "queue", "gpu"};
  if (std::ranges::find(groups, how.by) == groups.end())
    throw Failed(user_error(
        fmt::format("costs are grouped by task, user, queue or gpu, not by `{}`", how.by)));
  Prices otherwise = value_or_throw(prices_of(priced_values(how.config)));
  OpenedRun opened = open_run(options, how.since_ms > 0 ? "" : how.run);
  RunCosts costs(*opened.store, *opened.blobs, otherwise);
  CostTable table(how.by);
  std::vector<std::string> runs;
  if (how.since_ms == 0) {
    costs.add(opened.loaded, is_executed(opened, opened.loaded.record.status), table);
    return std::move(table).report({opened.loaded.run->id});
  }
  for (const RunRecord& record : value_or_throw(all_records(*opened.store))) {
    if (record.submitted < how.since_ms) continue;
    LoadedRun loaded = value_or_throw(load_run(*opened.store, *opened.blobs, record));
    if (loaded.run == nullptr) continue;  // collected
    costs.add(loaded, is_executed(opened, record.status), table);
    runs.push_back(record.id);
  }
  return std::move(table).report(std::move(runs));
}

}  // namespace flow
