// `flow plan`: the same core, on a scratch state that nobody commits, fed only with what the cache
// already holds.
#include <fmt/format.h>

#include <deque>

#include "engine/base/clock.hpp"
#include "engine/driver/driver.hpp"
#include "engine/driver/reader_impl.hpp"
#include "engine/store/keys.hpp"

namespace flow {

namespace {

std::string cause_of_run(const Store& store, const Blobs& blobs, const core::Run& run,
                         core::UnitId unit, Resolver& resolver) {
  const TaskDef& def = *Resolver::def_of(run, unit);
  if (def.kind == TaskKind::service) return "a service always runs";
  if (!def.cache) return "cache = false";
  RunRow newest;
  newest.id = "~";  // after every id
  newest.pipeline = run.plan->pipeline;
  auto earlier = earlier_unit(store, blobs, newest, Resolver::unit_name(run, unit));
  if (!earlier) return "no earlier run has it";
  const core::Unit& before = earlier->loaded.run->units[earlier->unit];
  const TaskDef* before_def = Resolver::def_of(*earlier->loaded.run, earlier->unit);
  if (before.key == run.units[unit].key || before_def == nullptr) {
    if (before.status != core::UnitStatus::succeeded)
      return fmt::format("it did not succeed in the run {} ({})", earlier->loaded.row.id,
                         core::status_name(before.status));
    return "its result is not served to other runs, or was collected";
  }
  auto now_parts = resolver.key_parts(run, unit);
  auto before_parts = resolver.key_parts(*earlier->loaded.run, earlier->unit);
  if (!now_parts.ok() || !before_parts.ok()) return "its key changed";
  std::string text;
  for (const std::string& line : differences(*before_parts, *before_def, *now_parts, def))
    text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace

PlanInfo Driver::foresee(const Plan& plan, bool fresh) {
  PlanInfo info = plan_info(plan);
  inspect([&](const core::State&, Resolver& resolver) {
    core::State scratch;
    std::vector<core::Command> commands;
    core::Time now = now_ms();
    auto feed = [&](core::Event event) {
      if (!core::admit(scratch, event)) return;
      core::apply(scratch, core::Record{scratch.sequence + 1, now, std::move(event)}, commands);
    };
    feed(core::EngineStarted{1, options_.jobs * 1000, INT64_MAX});
    core::RunSubmitted submitted;
    submitted.run = "plan";
    submitted.plan = std::make_shared<const Plan>(plan);
    submitted.fresh = fresh;
    feed(submitted);
    std::deque<core::Command> questions;
    std::map<core::UnitId, std::pair<std::string, std::string>> verdicts;
    while (true) {
      for (core::Command& command : commands) questions.push_back(std::move(command));
      commands.clear();
      if (questions.empty()) break;
      core::Command question = std::move(questions.front());
      questions.pop_front();
      auto found = scratch.runs.find("plan");
      if (found == scratch.runs.end()) break;
      core::Run& run = found->second;
      if (const auto* q = std::get_if<core::ResolveInputs>(&question)) {
        auto inputs = resolver.inputs(run, q->unit);
        if (!inputs.ok()) {
          verdicts[q->unit] = {"runs", inputs.error().message};
          continue;
        }
        run.units[q->unit].key = inputs->key;
        const TaskDef& def = *Resolver::def_of(run, q->unit);
        auto entry =
            def.cache && def.kind != TaskKind::service ? cached(inputs->key) : std::nullopt;
        bool hit = entry && may_hit_cache(run, q->unit, *entry) && !entry->has_fragment &&
                   blobs_.has(entry->result);
        if (!hit) {
          bool listed = entry && entry->has_fragment && may_hit_cache(run, q->unit, *entry);
          verdicts[q->unit] =
              listed
                  ? std::pair<std::string,
                              std::string>{"cached",
                                           "its list of calls is known; each call has its own key"}
                  : std::pair<std::string, std::string>{
                        "runs",
                        fresh ? "--fresh" : cause_of_run(*store_, blobs_, run, q->unit, resolver)};
          continue;
        }
        verdicts[q->unit] = {"cached", "from the run " + entry->run};
        core::InputsResolved event;
        event.run = "plan";
        event.unit = q->unit;
        event.key = inputs->key;
        event.hit = true;
        event.result = entry->result;
        feed(std::move(event));
      } else if (const auto* q = std::get_if<core::ExpandMap>(&question)) {
        auto count = resolver.map_count(run, q->unit);
        if (count.ok()) feed(core::MapExpanded{"plan", q->unit, *count});
      } else if (const auto* q = std::get_if<core::ResolveWhen>(&question)) {
        auto side = resolver.condition(run, q->unit);
        if (side.ok()) feed(core::WhenResolved{"plan", q->unit, *side});
      } else if (const auto* q = std::get_if<core::GatherValue>(&question)) {
        auto bytes = gather(run, q->unit);
        if (!bytes.ok()) continue;
        Digest digest = sha256(*bytes);
        staged_.emplace(digest, *bytes);  // only until this turn ends
        feed(core::ValueGathered{"plan", q->unit, digest});
      }
    }
    auto found = scratch.runs.find("plan");
    if (found == scratch.runs.end()) return;
    const core::Run& run = found->second;
    std::vector<PlanNode> nodes;
    for (size_t i = 0; i < info.nodes.size(); i++) {
      PlanNode node = info.nodes[i];
      core::UnitId unit = static_cast<core::UnitId>(i);
      std::vector<core::UnitId> units = core::instances_of(run, unit);
      if (plan.nodes[i].kind != NodeKind::map || units.empty()) units = {unit};
      for (core::UnitId each : units) {
        PlanNode line = node;
        line.name = Resolver::unit_name(run, each);
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
  });
  return info;
}

}  // namespace flow
