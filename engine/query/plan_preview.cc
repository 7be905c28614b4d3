#include "engine/query/plan_preview.hpp"

#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/core/graph.hpp"
#include "engine/plan/remote_origin.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/query/earlier_runs.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/query/overlay_store.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runtime/query_handler.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/value/cbor.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Verdict and reason of a unit. The cause is the reason without values.
struct Verdict {
  std::string verdict, reason, cause;
};

Verdict verdict_of(const char* verdict, const std::string& reason) {
  return {verdict, reason, reason};
}

/// `before` has the same key.
std::string why_not_cached(const core::Unit& before, const core::RunId& past, bool resumed) {
  const char* status = core::status_name(before.status);
  if (before.status == core::UnitStatus::succeeded)
    return resumed ? "its result was collected"
                   : "its result is not shared with other runs, or was collected";
  if (!resumed) return fmt::format("it did not succeed in the run {} ({})", past, status);
  return core::is_final(before.status) ? fmt::format("it {}", status) : "it did not end";
}

Verdict why_it_runs(EarlierRuns& history, const core::Run& run, core::UnitId unit,
                    InputResolver& resolver, bool resumed, bool has_tags) {
  const TaskDef& def = *InputResolver::def_of(run, unit);
  if (def.kind == TaskKind::service) return verdict_of("runs", "a service always runs");
  if (!def.cache) return verdict_of("runs", "cache = false");
  auto earlier = history.find(run, unit, resolver, has_tags);
  if (!earlier) return verdict_of("runs", resumed ? "it has not run yet" : "no earlier run has it");
  const core::Run& past = *earlier->loaded->run;
  const core::Unit& before = past.units[earlier->unit];
  const TaskDef* before_def = InputResolver::def_of(past, earlier->unit);
  if (before.key == run.units[unit].key || before_def == nullptr)
    return verdict_of("runs", why_not_cached(before, past.id, resumed));
  auto now_components = resolver.key_components(run, unit);
  auto before_components = resolver.key_components(past, earlier->unit);
  if (!now_components.ok() || !before_components.ok()) return verdict_of("runs", "its key changed");
  std::vector<KeyChange> changes =
      key_changes({*before_components, *before_def}, {*now_components, def});
  return {"runs", joined_texts(changes), joined_causes(changes)};
}

}  // namespace

/// The run on its scratch state.
class PlanPreview::ScratchRun {
 public:
  ScratchRun(PlanPreview& of, const Plan& plan, bool fresh, const RunRecord* resumed,
             PreviewTags* tags)
      : of_(of),
        plan_(plan),
        tags_(tags),
        is_fresh_(fresh && resumed == nullptr),
        is_resumed_(resumed != nullptr),
        id_(resumed != nullptr ? resumed->id : "plan"),
        history_(resumed != nullptr
                     ? EarlierRuns(of.store_, of.blobs_, {*resumed})
                     : EarlierRuns::of_pipeline(of.store_, of.blobs_, plan.pipeline)) {
    core::EngineStarted started;
    started.epoch = 1;
    started.cpus_milli = of.machine_.jobs * 1000;
    started.memory_bytes = INT64_MAX;
    started.custom_resources = of.machine_.custom_resources;
    apply(started);
    core::RunSubmitted submitted;
    submitted.run = id_;
    submitted.plan = std::make_shared<const Plan>(plan);
    submitted.fresh = fresh;
    apply(std::move(submitted));
  }

  /// Resolves queries until the cache has no more entries for them.
  void advance() {
    std::deque<core::Command> queries;
    while (true) {
      for (core::Command& command : commands_) queries.push_back(std::move(command));
      commands_.clear();
      if (queries.empty() || run() == nullptr) return;
      core::Command query = std::move(queries.front());
      queries.pop_front();
      answer(query, *run());
    }
  }

  std::vector<PlanNode> nodes(const std::vector<PlanNode>& of_plan) {
    std::vector<PlanNode> lines;
    if (run() == nullptr) return of_plan;
    for (size_t i = 0; i < of_plan.size(); i++) {
      auto unit = static_cast<core::UnitId>(i);
      std::vector<core::UnitId> units = core::instances_of(*run(), unit);
      if (core::is_replica_set(*run(), unit)) {  // one line, because its replicas are equal
        PlanNode line = line_of(*run(), units.front(), of_plan[i]);
        line.name = of_plan[i].name;
        line.tag = core::tag_of(*run(), unit);
        lines.push_back(std::move(line));
        continue;
      }
      if (plan_.nodes[i].kind != NodeKind::map || units.empty()) units = {unit};
      for (core::UnitId each : units) lines.push_back(line_of(*run(), each, of_plan[i]));
    }
    return lines;
  }

 private:
  core::Run* run() {
    auto found = state_.runs.find(id_);
    return found == state_.runs.end() ? nullptr : &found->second;
  }

  void apply(core::Event event) {
    if (!core::admit(state_, event)) return;
    core::apply(state_, core::Record{state_.sequence + 1, of_.now_, std::move(event)}, commands_);
  }

  void answer(const core::Command& query, core::Run& run) {
    if (const auto* inputs = std::get_if<core::ResolveInputs>(&query)) {
      for (uint32_t i = 0; i < inputs->count; i++) resolve_inputs(run, inputs->unit + i);
    } else if (const auto* map = std::get_if<core::ExpandMap>(&query)) {
      auto count = of_.resolver_.map_count(run, map->unit);
      if (!count.ok()) return;
      core::MapExpanded event{id_, map->unit, *count};
      if (run.node(run.units[map->unit].node).detail().tags_items)
        event.tags = tags_of_items(run, map->unit, *count);
      apply(std::move(event));
    } else if (const auto* when = std::get_if<core::ResolveWhen>(&query)) {
      auto side = of_.resolver_.condition(run, when->unit);
      if (side.ok()) apply(core::WhenResolved{id_, when->unit, *side});
    } else if (const auto* gather = std::get_if<core::GatherValue>(&query)) {
      auto bytes = gather_value(of_.resolver_, of_.turn_blobs_, run, gather->unit);
      if (!bytes.ok()) return;
      Digest digest = sha256(*bytes);
      of_.staged_.open.staged.emplace(digest, std::move(*bytes));
      apply(core::ValueGathered{id_, gather->unit, digest});
    }
  }

  std::vector<std::string> tags_of_items(const core::Run& run, core::UnitId map, uint32_t count) {
    uint32_t node = run.units[map].node;
    auto items = of_.resolver_.map_items(run, map);
    if (tags_ != nullptr && items.ok() && count > 0) {
      const std::vector<std::string>* known = tags_->find(node, *items);
      if (known != nullptr && known->size() == count &&
          core::tag_conflict(run, map, *known).empty())
        return *known;
    }
    maps_without_tags_.insert(node);
    std::vector<std::string> placeholders;  // each instance of such a map has a tag
    for (uint32_t i = 1; i <= count; i++)
      placeholders.push_back(fmt::format("preview-{}-{}", map, i));
    return placeholders;
  }

  void resolve_inputs(core::Run& run, core::UnitId unit) {
    const auto& node = run.node(run.units[unit].node);
    const Value args = node.args.value();
    const File* unfetched = find_unfetched(args);
    if (unfetched == nullptr) unfetched = find_unfetched(node.detail().items);
    if (auto origin = parse_remote_origin(unfetched != nullptr ? unfetched->origin : "");
        origin.ok()) {
      verdicts_[unit] =
          verdict_of("unknown", fmt::format("waits for `{}`, which is fetched when the run starts",
                                            display_url(origin->url)));
      return;
    }
    auto key = of_.resolver_.key(run, unit);
    if (!key.ok()) {
      verdicts_[unit] = verdict_of("runs", key.error().message);
      return;
    }
    run.units[unit].key = *key;
    const TaskDef& def = *core::def_of(run, unit);
    std::optional<CacheEntry> entry;
    if (def.cache && def.kind != TaskKind::service) {
      auto found = of_.cache_.find(*key);
      if (found.ok()) entry = std::move(*found);
    }
    bool is_available = entry && CacheLookup::may_hit(run, unit, *entry) &&
                        of_.blobs_.has(entry->result) && of_.turn_blobs_.holds_result_of(*entry);
    if (!is_available) {
      if (is_fresh_) {
        verdicts_[unit] = verdict_of("runs", "--fresh");
      } else {
        runs_.insert(unit);
      }
      return;
    }
    if (entry->has_fragment) {
      verdicts_[unit] =
          verdict_of("cached", "its list of calls is known; each call has its own key");
      return;
    }
    verdicts_[unit] = verdict_of("cached", "from the run " + entry->run);
    core::InputsResolved event;
    event.run = id_;
    event.unit = unit;
    event.key = *key;
    event.hit = true;
    event.result = entry->result;
    apply(std::move(event));
  }

  PlanNode line_of(const core::Run& run, core::UnitId unit, const PlanNode& node) {
    PlanNode line = node;
    line.name = InputResolver::unit_name(run, unit);
    if (!maps_without_tags_.contains(run.units[unit].node)) line.tag = core::tag_of(run, unit);
    Verdict verdict = final_verdict(run, unit, node);
    line.verdict = verdict.verdict;
    line.reason = verdict.reason;
    line.cause = verdict.cause;
    return line;
  }

  Verdict final_verdict(const core::Run& run, core::UnitId unit, const PlanNode& node) {
    if (runs_.contains(unit))
      return why_it_runs(history_, run, unit, of_.resolver_, is_resumed_,
                         maps_without_tags_.empty());
    auto verdict = verdicts_.find(unit);
    if (verdict != verdicts_.end()) return verdict->second;
    const core::Unit& u = run.units[unit];
    if (u.status == core::UnitStatus::skipped)
      return verdict_of("skipped", "its branch is not taken");
    if (u.status == core::UnitStatus::succeeded)
      return verdict_of("cached",
                        u.cached ? "equal to another task of this run" : "nothing to compute");
    return verdict_of("unknown", awaited_by(run, node));
  }

  /// "waits for `a`, `b` and 3 more": the tasks before this one that are not known to be done.
  std::string awaited_by(const core::Run& run, const PlanNode& node) {
    constexpr size_t kShown = 5;
    if (node_indices_.empty())
      for (size_t i = 0; i < plan_.nodes.size(); i++) node_indices_[plan_.nodes[i].name] = i;
    std::set<size_t> before;  // in the order of the plan
    for (const auto* names : {&node.needs, &node.after})
      for (const std::string& name : *names)
        if (auto found = node_indices_.find(name); found != node_indices_.end())
          before.insert(found->second);
    std::string text;
    size_t count = 0;
    for (size_t index : before) {
      if (run.units[index].status == core::UnitStatus::succeeded) continue;
      if (++count > kShown) continue;
      std::string name = core::shown_name(run, static_cast<core::UnitId>(index));
      text += (text.empty() ? "`" : ", `") + name + "`";
    }
    if (count > kShown) text += fmt::format(" and {} more", count - kShown);
    return "waits for " + (text.empty() ? "its inputs" : text);
  }

  PlanPreview& of_;
  const Plan& plan_;
  PreviewTags* const tags_;  // may be null
  const bool is_fresh_, is_resumed_;
  const RunId id_;
  EarlierRuns history_;
  core::State state_;
  std::vector<core::Command> commands_;
  std::map<core::UnitId, Verdict> verdicts_;
  // Units that the cache does not serve. Why is only asked when all keys that can be known are:
  // instances of maps are paired with those of earlier runs by their keys.
  std::set<core::UnitId> runs_;
  std::set<uint32_t> maps_without_tags_;  // nodes whose instances have placeholders as tags
  std::unordered_map<std::string_view, size_t> node_indices_;  // by name; made when it is needed
};

PlanPreview::PlanPreview(const Store& store, Blobs& blobs, Machine machine, core::Time now)
    : store_(store),
      blobs_(blobs),
      machine_(std::move(machine)),
      now_(now),
      turn_blobs_(blobs, staged_, ignored_),
      cache_(store, staged_),
      resolver_([this](const Digest& digest) { return turn_blobs_.read(digest); }) {
  turn_blobs_.keep_damaged(true);
}

PlanInfo PlanPreview::preview(const Plan& plan, bool fresh, const RunRecord* resumed,
                              PreviewTags* tags) {
  PlanInfo info = plan_info(plan);
  ScratchRun run(*this, plan, fresh, resumed, tags);
  run.advance();
  info.nodes = run.nodes(info.nodes);
  return info;
}

namespace {

/// This machine, for checks that use nothing outside of the process.
Capacity offline_capacity(const OfflinePreviewOptions& options) {
  Capacity capacity;
  capacity.requested = options.requested_nodes;
  capacity.is_closed = true;
  if (capacity.requested) return capacity;
  core::WorkerInfo own;
  own.cpus_milli = options.machine.jobs * 1000;
  own.custom_resources = options.machine.custom_resources;
  own.memory_bytes = usable_memory_bytes();
  capacity.has_searched_gpus = false;
  capacity.workers.push_back(std::move(own));
  return capacity;
}

}  // namespace

Result<PlanInfo> plan_preview_offline(const OfflinePreviewOptions& options, const Store* store,
                                      const Submission& submission) {
  std::unique_ptr<Store> overlay = make_overlay(store);
  Blobs blobs(*overlay, options.state_dir);
  Builder builder(options.executor);
  auto staging = make_temporary_folder();  // for the script's files
  FLOW_TRY(staging);
  Blobs files(*overlay, **staging);
  core::Time now = now_ms();
  SubmissionContext context{
      .purpose = Purpose::preview,
      .builder = builder,
      .store = *overlay,
      .blobs = blobs,
      .staging = files,
      .native_version = [](const std::string&) { return std::optional<std::string>(); },
      .operations_library = [](const std::string&) { return std::string(); },
      .capacity = [&options](const Plan&) -> Result<Capacity> { return offline_capacity(options); },
      .now = now,
      .new_run_id = [now] { return make_run_id(now); },
  };
  auto prepared = prepare(context, submission);
  FLOW_TRY(prepared);
  PreviewTags tags(builder, *prepared);
  PlanInfo info;
  do {
    PlanPreview preview(*overlay, blobs, options.machine, now);
    info = preview.preview(*prepared->plan, submission.options.fresh, nullptr, &tags);
  } while (tags.resolve());
  return info;
}

}  // namespace flow
