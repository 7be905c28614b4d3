// `flow plan`: the same core, on a scratch state that nobody commits, fed only with what the cache
// already holds.
#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>

#include "engine/query/overlay_store.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kRunsMax = 200;

/// Earlier runs of a pipeline, newest first; each is loaded once, when it is first asked for.
class History {
 public:
  History(const Store& store, const Blobs& blobs, std::vector<RunRecord> records)
      : store_(store), blobs_(blobs), records_(std::move(records)) {}

  static History of_pipeline(const Store& store, const Blobs& blobs, const std::string& pipeline) {
    std::vector<RunRecord> records;
    auto all = all_records(store);
    if (!all.ok()) return {store, blobs, {}};
    for (auto record = all->rbegin(); record != all->rend() && records.size() < kRunsMax;
         ++record) {
      if (record->pipeline == pipeline) records.push_back(std::move(*record));
    }
    return {store, blobs, std::move(records)};
  }

  struct EarlierUnit {
    const LoadedRun* loaded = nullptr;
    core::UnitId unit = kNoNode;
  };
  /// The newest run that came as far as the key of the unit `name`.
  std::optional<EarlierUnit> find(const std::string& name) {
    for (size_t i = 0; i < records_.size(); i++) {
      if (i == indexed_.size()) indexed_.push_back(load(records_[i]));
      auto unit = indexed_[i].units.find(name);
      if (unit != indexed_[i].units.end()) return EarlierUnit{&indexed_[i].loaded, unit->second};
    }
    return std::nullopt;
  }

 private:
  struct IndexedRun {
    LoadedRun loaded;
    std::map<std::string, core::UnitId> units;  // those with a key
  };
  IndexedRun load(const RunRecord& record) const {
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

  const Store& store_;
  const Blobs& blobs_;
  std::vector<RunRecord> records_;
  std::deque<IndexedRun> indexed_;  // of the first rows
};

std::string cause_of_run(History& history, const core::Run& run, core::UnitId unit,
                         InputResolver& resolver, bool resumed) {
  const TaskDef& def = *InputResolver::def_of(run, unit);
  if (def.kind == TaskKind::service) return "a service always runs";
  if (!def.cache) return "cache = false";
  auto earlier = history.find(InputResolver::unit_name(run, unit));
  if (!earlier) return resumed ? "it has not run yet" : "no earlier run has it";
  const core::Run& past = *earlier->loaded->run;
  const core::Unit& before = past.units[earlier->unit];
  const TaskDef* before_def = InputResolver::def_of(past, earlier->unit);
  if (before.key == run.units[unit].key || before_def == nullptr) {
    const char* status = core::status_name(before.status);
    if (before.status == core::UnitStatus::succeeded)
      return resumed ? "its result was collected"
                     : "its result is not served to other runs, or was collected";
    if (!resumed) return fmt::format("it did not succeed in the run {} ({})", past.id, status);
    return core::is_final(before.status) ? fmt::format("it {}", status) : "it did not end";
  }
  auto now_components = resolver.key_components(run, unit);
  auto before_components = resolver.key_components(past, earlier->unit);
  if (!now_components.ok() || !before_components.ok()) return "its key changed";
  std::string text;
  for (const std::string& line : differences(*before_components, *before_def, *now_components, def))
    text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace

PlanInfo EngineLoop::plan_preview(const Plan& plan, bool fresh, const RunRecord* resumed) {
  PlanInfo info;
  inspect([&](const core::State&, InputResolver&) {
    info = plan_preview_in_turn(plan, fresh, resumed);
  });
  return info;
}

Result<PlanInfo> EngineLoop::plan_preview_offline(const EngineLoopOptions& options,
                                                  const Store* store,
                                                  const Submission& submission) {
  EngineLoop engine_loop(options,
                         make_overlay(store));  // never started: no worker, no thread, no recovery
  std::error_code ignored;
  fs::path temporary = fs::temp_directory_path(ignored);
  std::string staging = ((temporary.empty() ? "/tmp" : temporary) / "flow-plan-XXXXXX").string();
  if (mkdtemp(staging.data()) == nullptr) {
    return environment_error(fmt::format("cannot make a folder for the script's files, `{}`: {}",
                                         staging, std::strerror(errno)));
  }
  Blobs files(*engine_loop.store_, staging);
  auto prepared = prepare(submission_context(engine_loop, Purpose::preview, files), submission);
  fs::remove_all(staging, ignored);
  FLOW_TRY(prepared);
  return engine_loop.plan_preview_in_turn(*prepared->plan, submission.options.fresh, nullptr);
}

PlanInfo EngineLoop::plan_preview_in_turn(const Plan& plan, bool fresh, const RunRecord* resumed) {
  is_read_only_ = true;
  PlanInfo info = build_plan_preview(plan, fresh, resumed);
  is_read_only_ = false;
  return info;
}

PlanInfo EngineLoop::build_plan_preview(const Plan& plan, bool fresh, const RunRecord* resumed) {
  PlanInfo info = plan_info(plan);
  const RunId id = resumed != nullptr ? resumed->id : "plan";
  History history = resumed != nullptr ? History(*store_, blobs_, {*resumed})
                                       : History::of_pipeline(*store_, blobs_, plan.pipeline);
  core::State scratch;
  std::vector<core::Command> commands;
  core::Time now = clock_.now();
  auto feed = [&](core::Event event) {
    if (!core::admit(scratch, event)) return;
    core::apply(scratch, core::Record{scratch.sequence + 1, now, std::move(event)}, commands);
  };
  feed(core::EngineStarted{1, options_.jobs * 1000, INT64_MAX, options_.custom_resources});
  core::RunSubmitted submitted;
  submitted.run = id;
  submitted.plan = std::make_shared<const Plan>(plan);
  submitted.fresh = fresh;
  feed(submitted);
  std::deque<core::Command> queries;
  std::map<core::UnitId, std::pair<std::string, std::string>> verdicts;
  std::vector<Digest> staged_here;
  while (true) {
    for (core::Command& command : commands) queries.push_back(std::move(command));
    commands.clear();
    if (queries.empty()) break;
    core::Command query = std::move(queries.front());
    queries.pop_front();
    auto found = scratch.runs.find(id);
    if (found == scratch.runs.end()) break;
    core::Run& run = found->second;
    if (const auto* q = std::get_if<core::ResolveInputs>(&query)) {
      auto key = resolver_.key(run, q->unit);
      if (!key.ok()) {
        verdicts[q->unit] = {"runs", key.error().message};
        continue;
      }
      run.units[q->unit].key = *key;
      const TaskDef& def = *InputResolver::def_of(run, q->unit);
      auto entry = def.cache && def.kind != TaskKind::service ? cached(*key) : std::nullopt;
      bool is_available = entry && may_hit_cache(run, q->unit, *entry) &&
                          blobs_.has(entry->result) && holds_result_of(*entry);
      bool hit = is_available && !entry->has_fragment;
      if (!hit) {
        bool listed = is_available && entry->has_fragment;
        verdicts[q->unit] =
            listed ? std::pair<std::string,
                               std::string>{"cached",
                                            "its list of calls is known; each call has its own key"}
                   : std::pair<std::string, std::string>{
                         "runs",
                         fresh && resumed == nullptr
                             ? "--fresh"
                             : cause_of_run(history, run, q->unit, resolver_, resumed != nullptr)};
        continue;
      }
      verdicts[q->unit] = {"cached", "from the run " + entry->run};
      core::InputsResolved event;
      event.run = id;
      event.unit = q->unit;
      event.key = *key;
      event.hit = true;
      event.result = entry->result;
      feed(std::move(event));
    } else if (const auto* q = std::get_if<core::ExpandMap>(&query)) {
      auto count = resolver_.map_count(run, q->unit);
      if (count.ok()) feed(core::MapExpanded{id, q->unit, *count});
    } else if (const auto* q = std::get_if<core::ResolveWhen>(&query)) {
      auto side = resolver_.condition(run, q->unit);
      if (side.ok()) feed(core::WhenResolved{id, q->unit, *side});
    } else if (const auto* q = std::get_if<core::GatherValue>(&query)) {
      auto bytes = gather(run, q->unit);
      if (!bytes.ok()) continue;
      Digest digest = sha256(*bytes);
      // Seen here only: what a later event of this turn stages has to reach the batch.
      if (open_batch_.staged.emplace(digest, *bytes).second) staged_here.push_back(digest);
      feed(core::ValueGathered{id, q->unit, digest});
    }
  }
  for (const Digest& digest : staged_here) open_batch_.staged.erase(digest);
  auto found = scratch.runs.find(id);
  if (found == scratch.runs.end()) return info;
  const core::Run& run = found->second;
  std::vector<PlanNode> nodes;
  for (size_t i = 0; i < info.nodes.size(); i++) {
    PlanNode node = info.nodes[i];
    core::UnitId unit = static_cast<core::UnitId>(i);
    std::vector<core::UnitId> units = core::instances_of(run, unit);
    if (plan.nodes[i].kind != NodeKind::map || units.empty()) units = {unit};
    for (core::UnitId each : units) {
      PlanNode line = node;
      line.name = InputResolver::unit_name(run, each);
      auto verdict = verdicts.find(each);
      if (verdict != verdicts.end()) {
        std::tie(line.verdict, line.reason) = verdict->second;
      } else if (run.units[each].status == core::UnitStatus::skipped) {
        line.verdict = "skipped";
        line.reason = "its branch is not taken";
      } else if (run.units[each].status == core::UnitStatus::succeeded) {
        line.verdict = "cached";
        line.reason =
            run.units[each].cached ? "equal to another task of this run" : "nothing to compute";
      } else {
        line.verdict = "unknown";
        line.reason = "waits for its inputs";
        std::vector<std::string> before = node.needs;
        before.insert(before.end(), node.after.begin(), node.after.end());
        for (const std::string& need : before) {
          for (size_t j = 0; j < plan.nodes.size(); j++) {
            if (plan.nodes[j].name == need && run.units[j].status != core::UnitStatus::succeeded)
              line.reason = "waits for `" + need + "`";
          }
        }
      }
      nodes.push_back(std::move(line));
    }
  }
  info.nodes = std::move(nodes);
  return info;
}

}  // namespace flow
