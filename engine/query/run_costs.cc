// What runs cost (<flow/cost.hpp>), from what the core counted.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/throwing.hpp"
#include "engine/costs/cost_report.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/machine_use.hpp"
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
  /// The prices of the run's submission; if it had none, `otherwise_`.
  Prices prices_with(const core::RunId& id) const {
    std::string profile;
    Value kept = value_or_throw(inputs_of(store_, id)).config;
    Prices prices = value_or_throw(prices_of(values_of_kept(kept, profile)));
    return prices.currency.empty() ? otherwise_ : prices;
  }

  /// Nothing for a unit without attempts that is not cached.
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
    task.knows_traffic = run.knows_traffic;
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

/// The GPUs of all machines while the reported runs were there.
class FreeGpuReport {
 public:
  explicit FreeGpuReport(const OpenedRun& opened) : opened_(opened) {}

  /// Ignores runs without GPU tasks.
  void add_reported(const LoadedRun& loaded) {
    if (!asks_for_gpus(*loaded.run)) return;
    reported_.insert(loaded.record.id);
    first_ = std::min(first_, loaded.record.submitted);
    last_ = std::max(last_, is_over(loaded.record.status) ? loaded.run->finished : INT64_MAX);
    add(loaded, true);
  }

  /// Sets the GPU-hours that were free while tasks of the reported runs ran or waited for a slot.
  /// They stay unknown without such runs or without a GPU; if it is not known which GPUs were there
  /// in all that time; if there were more than kOthersMax other runs in it; and if the tasks of one
  /// were collected.
  void set_free_hours(CostRow& total) {
    constexpr double kMsPerHour = 3'600'000;
    if (reported_.empty()) return;
    core::State state = value_or_throw(recover(*opened_.store, *opened_.blobs));
    bool is_known = first_ >= state.presences_since && !state.presences.empty();
    if (!is_known || !add_other_runs()) return;
    int64_t now = state_is_locked(opened_.state_dir) ? now_ms() : state.at;
    for (const core::GpuPresence& presence : state.presences) {
      uint32_t gpus = 0;
      for (const auto& [model, count] : presence.gpus) gpus += count;
      int64_t until = presence.until == 0 ? now : presence.until;
      use_.there.push_back({{presence.from, until}, static_cast<double>(gpus)});
    }
    FreeGpus free = free_gpus(use_);
    total.gpu_hours_without_queue = free.without_queue_ms / kMsPerHour;
    total.gpu_hours_fragmented = free.fragmented_ms / kMsPerHour;
  }

 private:
  static constexpr size_t kOthersMax = 100;  // each is loaded

  /// Those that were there at the same time. False if one is not known, or if they are too many.
  bool add_other_runs() {
    size_t others = 0;
    for (const RunRecord& record : value_or_throw(all_records(*opened_.store))) {
      bool is_outside =
          record.submitted > last_ || (record.finished > 0 && record.finished < first_);
      if (is_outside || reported_.contains(record.id)) continue;
      if (++others > kOthersMax) return false;
      LoadedRun loaded = value_or_throw(load_run(*opened_.store, *opened_.blobs, record));
      if (loaded.run == nullptr) return false;
      add(loaded, false);
    }
    return true;
  }

  static bool asks_for_gpus(const core::Run& run) {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      bool has_def = core::def_of(run, unit) != nullptr;
      if (has_def && core::resources_of(run, unit).gpus_milli > 0) return true;
    }
    return false;
  }

  void add(const LoadedRun& loaded, bool is_reported) {
    bool is_running = is_executed(opened_, loaded.record.status);
    int64_t until = is_running ? now_ms() : loaded.state->at;
    ok_or_throw(add_use(*opened_.store, loaded, until, is_reported, use_));
  }

  const OpenedRun& opened_;
  MachineUse use_;
  int64_t first_ = INT64_MAX, last_ = 0;
  std::set<core::RunId> reported_;
};

}  // namespace

CostReport cost_report(const EngineOptions& options, const CostOptions& how) {
  const std::vector<std::string> groups = {"task", "user", "queue", "gpu"};
  if (std::ranges::find(groups, how.by) == groups.end())
    throw Failed(user_error(
        fmt::format("costs are grouped by task, user, queue or gpu, not by `{}`", how.by)));
  Prices otherwise = value_or_throw(prices_of(priced_values(how.config)));
  OpenedRun opened = open_run(options, how.since_ms > 0 ? "" : how.run);
  RunCosts costs(*opened.store, *opened.blobs, otherwise);
  FreeGpuReport gpus(opened);
  CostTable table(how.by);
  std::vector<std::string> runs;
  auto report = [&] {
    CostReport report = std::move(table).report(std::move(runs));
    gpus.set_free_hours(report.total);
    return report;
  };
  if (how.since_ms == 0) {
    costs.add(opened.loaded, is_executed(opened, opened.loaded.record.status), table);
    gpus.add_reported(opened.loaded);
    runs.push_back(opened.loaded.run->id);
    return report();
  }
  for (const RunRecord& record : value_or_throw(all_records(*opened.store))) {
    if (record.submitted < how.since_ms) continue;
    LoadedRun loaded = value_or_throw(load_run(*opened.store, *opened.blobs, record));
    if (loaded.run == nullptr) continue;  // collected
    costs.add(loaded, is_executed(opened, record.status), table);
    gpus.add_reported(loaded);
    runs.push_back(record.id);
  }
  return report();
}

}  // namespace flow
