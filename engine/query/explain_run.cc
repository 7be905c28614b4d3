// Explains to users why a task waits, ran again or failed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/scaling.hpp"
#include "engine/query/changed_sources.hpp"
#include "engine/query/earlier_runs.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/task_groups.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/sched/wait_explainer.hpp"
#include "engine/store/row_keys.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

/// "3", or "2 of 1 to 8".
std::string replicas_text(const core::Run& run, core::UnitId set) {
  const ServiceSpec& service = core::def_of(run, set)->service;
  uint32_t in_use = core::replicas_in_use(run, set);
  if (service.scaling.max == 0) return fmt::format("{}", in_use);
  return fmt::format("{} of {} to {}", in_use, service.replicas, service.scaling.max);
}

bool is_parked_spare(const core::Run& run, core::UnitId unit) {
  return core::is_spare(run, unit) && run.units[unit].phase == core::Phase::parked;
}

/// A map and a replicated service have no attempts of their own: how many instances have which
/// status.
std::string count_instances(const core::Run& run, core::UnitId map, bool is_active) {
  std::string name = core::shown_name(run, map);
  const std::vector<core::UnitId>& tasks = core::instances_of(run, map);
  if (tasks.empty()) return fmt::format("`{}` is a map of an empty list: it has no tasks.", name);
  std::vector<std::pair<std::string, size_t>> counts;
  for (const core::UnitId& task : tasks) {
    if (is_parked_spare(run, task)) continue;
    const core::Unit& u = run.units[task];
    std::string what = u.cached ? "cached" : core::status_name(u.status);
    auto same = [&](const auto& count) { return count.first == what; };
    auto found = std::ranges::find_if(counts, same);
    if (found == counts.end()) found = counts.insert(found, {what, 0});
    found->second++;
  }
  std::string text;
  for (const auto& [what, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  if (core::is_replica_set(run, map)) {
    std::string url = is_active ? url_of_replicas(run, map) : "";
    return fmt::format("`{}` is a service of {} replicas{}: {}.", name, replicas_text(run, map),
                       url.empty() ? "" : " at " + url, text);
  }
  return fmt::format("`{}` is a map of {} task{}: {}.", name, tasks.size(),
                     tasks.size() == 1 ? "" : "s", text);
}

/// A flow.when has no attempts either.
std::string explain_when(const core::Run& run, core::UnitId when) {
  const char* taken =
      run.units[when].branch == core::Branch::then_branch ? "its first" : "its second";
  return fmt::format("`{}` is a flow.when: it took {} branch.", InputResolver::unit_name(run, when),
                     taken);
}

/// The last failed attempt before this one, for a task that was retried.
std::string failed_before(const core::Unit& u) {
  if (std::string restarts = core::restarts_text(u); !restarts.empty()) return "\n" + restarts;
  if (u.attempts < 2 || !u.detail || u.detail->failure.cause == core::Cause::none) return "";
  const core::Failure& failure = u.detail->failure;
  return fmt::format("\n{} failed: {}: {}", u.attempts == 2 ? "Attempt 1" : "An attempt before",
                     core::cause_name(failure.cause),
                     failure.message.substr(0, failure.message.find('\n')));
}

/// The failure's message without its first line, and the evidence.
std::string rest_of(const core::Failure& failure) {
  size_t end = std::min(failure.message.find('\n'), failure.message.size());
  return failure.message.substr(end) + (failure.evidence.empty() ? "" : "\n" + failure.evidence);
}

/// Warnings of flow during the newest attempt.
std::string warnings_of(const Store& store, const core::Run& run, core::UnitId unit) {
  std::string text, prefix = warning_prefix(run.id, unit, run.units[unit].attempts);
  (void)store.scan(Family::kv, prefix, prefix, [&](std::string_view, std::string_view line) {
    text += "\n" + std::string(line);
    return true;
  });
  return text;
}

/// "\nfailed: attempt 1 on `a` (exit_code), 2 on `b` (lost)", for a state with workers.
std::string failed_workers_text(const LoadedRun& loaded, const core::Unit& u) {
  if (!u.detail || u.detail->failed.empty()) return "";
  std::string text;
  for (const core::FailedAttempt& failed : u.detail->failed) {
    std::string number = failed.attempt == 0 ? "one" : std::to_string(failed.attempt);
    text += fmt::format("{}{} on {} ({})", text.empty() ? "\nfailed: attempt " : ", ", number,
                        core::worker_text(*loaded.state, failed.worker),
                        core::cause_name(failed.cause));
  }
  return text;
}

/// The message of Slurm, which allocates the nodes that the run waits for.
std::string launcher_text(const Store& store) {
  auto row = store.get(Family::kv, launcher_key());
  return row.ok() && row->has_value() ? "\n" + **row : "";
}

/// "the worker `a`", "the workers `a` and `b`": the disconnected ones; "" if there are none.
std::string disconnected_text(const core::State& state, const core::Unit& u) {
  std::vector<std::string> names;
  for (core::WorkerId worker : core::workers_of(u)) {
    if (worker == 0 || state.workers[worker].is_up) continue;
    std::string name = fmt::format("`{}`", state.workers[worker].info.name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "";
  return fmt::format("the worker{} {}", names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

/// The state is as its last writer left it; that process may have ended.
std::string running_text(const Store& store, const LoadedRun& loaded, core::UnitId unit) {
  const core::Unit& u = loaded.run->units[unit];
  std::string name = core::shown_name(*loaded.run, unit);
  std::string attempt = fmt::format("attempt {} since {}", u.attempts, format_time(u.assigned));
  if (loaded.record.status != "interrupted") {
    std::string url = url_of(u);
    std::string text = url.empty() ? fmt::format("`{}` is running: {}.", name, attempt)
                                   : fmt::format("`{}` serves at {}: {}.", name, url, attempt);
    std::string disconnected = disconnected_text(*loaded.state, u);
    if (!disconnected.empty())
      text += fmt::format(
          " Now disconnected: {}. The attempt is reported when the worker reconnects; it is lost "
          "if the worker does not.",
          disconnected);
    return text;
  }
  auto leader = store.get(Family::kv, leader_key());
  std::string led_by = leader.ok() ? leader->value_or("") : "";
  if (led_by.empty() || core::is_on(u, 0))
    return fmt::format("`{}` was running when its flow ended: {}. `flow resume {}` runs it again.",
                       name, attempt, loaded.run->id);
  return fmt::format(
      "`{}` was running when its head ended: {}. Its worker continues it, and the result is "
      "accepted once {}.",
      name, attempt,
      led_by == "flow head" ? "`flow head` runs over this state again"
                            : fmt::format("`flow resume {} --on slurm` is there", loaded.run->id));
}

/// The explanation of a task.
struct Explanation {
  std::string text;   // begins with the quoted name
  std::string cause;  // equal for tasks to be explained once
};

/// The text after the quoted name.
std::string without_name(const std::string& text, const std::string& name) {
  return text.substr(name.size() + 2);
}

/// " It takes over …." for the clause "it takes over …"; "" for "".
std::string sentence_of(std::string clause) {
  if (clause.empty()) return "";
  clause[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(clause[0])));
  return " " + clause + ".";
}

/// " Cancelled by ann@node1 at ….": the action that led to the run's present status; "" for none.
std::string action_sentence(const core::Run& run) {
  if (run.actions.empty()) return "";
  const core::Action& last = run.actions.back();
  bool is_cause = (last.kind == core::ActionKind::cancel && run.cancelling) ||
                  (last.kind == core::ActionKind::stop &&
                   (run.stopping || run.ending || core::is_final(run.status)));
  if (!is_cause) return "";
  return fmt::format(" {} by {} at {}.",
                     last.kind == core::ActionKind::cancel ? "Cancelled" : "Stopped", last.by,
                     format_time(last.at));
}

/// Explains the tasks of one run.
class RunExplainer {
 public:
  RunExplainer(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
               InputResolver& resolver)
      : store_(store),
        loaded_(loaded),
        run_(*loaded.run),
        resolver_(resolver),
        waits_(*loaded.state, run_.id),
        sources_(blobs),
        earlier_(EarlierRuns::of_pipeline(store, blobs, loaded.record.pipeline, loaded.record.id)) {
  }

  Explanation explain(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    std::string name = core::shown_name(run_, unit);
    Explanation out;
    out.text = status_text(unit);
    out.cause = without_name(out.text, name);
    bool runs = u.status == core::UnitStatus::running;
    bool has_run = core::is_final(u.status) && u.attempts > 0 && !u.cached;
    const TaskDef* def = InputResolver::def_of(run_, unit);
    if ((!runs && !has_run) || def == nullptr || u.key.is_zero()) return out;
    std::string verb = runs ? "\nIt runs " : "\nIt ran ";
    Explanation why = explain_execution(unit, *def);
    out.text += verb + why.text;
    out.cause += verb + why.cause;
    return out;
  }

 private:
  std::string status_text(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    std::string name = core::shown_name(run_, unit);
    switch (u.status) {
      case core::UnitStatus::failed:
      case core::UnitStatus::skipped:
      case core::UnitStatus::cancelled:
        return end_text(unit);
      case core::UnitStatus::running: {
        const TaskDef* def = InputResolver::def_of(run_, unit);
        std::string text = running_text(store_, loaded_, unit);
        bool is_gang = def != nullptr && def->resources.is_gang();
        if (is_gang || core::is_spare(run_, unit)) text += sentence_of(waits_.explain(unit));
        if (core::is_service(run_, unit)) text += sentence_of(rollover_text(rollover_of(run_)));
        return text + failed_before(u) + failed_workers_text(loaded_, u);
      }
      case core::UnitStatus::pending:
      case core::UnitStatus::ready:
      case core::UnitStatus::waiting: {
        if (is_parked_spare(run_, unit))
          return fmt::format("`{}` {}.", name, waits_.explain(unit).substr(std::strlen("it ")));
        std::string text = fmt::format("`{}` waits: {}", name, waits_.explain(unit));
        if (u.phase == core::Phase::ready || u.phase == core::Phase::parked)
          text += launcher_text(store_);
        if (u.phase == core::Phase::backoff) text += rest_of(u.detail->failure);
        return text + failed_workers_text(loaded_, u);
      }
      case core::UnitStatus::succeeded:
        break;
    }
    if (run_.node(u.node).kind == NodeKind::when) return explain_when(run_, unit);
    if (u.cached) return cached_text(unit);
    return fmt::format("`{}` succeeded in {} attempt{}.", name, u.attempts,
                       u.attempts == 1 ? "" : "s") +
           failed_before(u) + failed_workers_text(loaded_, u) + warnings_of(store_, run_, unit);
  }

  /// The text for a task that failed, was skipped or was cancelled.
  std::string end_text(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    std::string text = fmt::format("`{}` {}.", core::shown_name(run_, unit),
                                   core::is_ignored(u) ? "failed, and its failure is ignored"
                                   : u.status == core::UnitStatus::failed  ? "failed"
                                   : u.status == core::UnitStatus::skipped ? "was skipped"
                                                                           : "was cancelled");
    if (!u.detail || u.detail->failure.cause == core::Cause::none)
      return u.status == core::UnitStatus::skipped ? text + " Its branch was not taken." : text;
    const core::Failure& failure = u.detail->failure;
    text += fmt::format("\ncause: {}\n{}", core::cause_name(failure.cause), failure.message);
    if (!failure.evidence.empty()) text += "\n" + failure.evidence;
    text += warnings_of(store_, run_, unit);
    const TaskDef* def = InputResolver::def_of(run_, unit);
    if (u.status == core::UnitStatus::failed && def != nullptr)
      text += fmt::format("\nattempts: {} (retries = {})", u.attempts, def->retry.max);
    return text + failed_workers_text(loaded_, u);
  }

  /// The cache's entry may have been replaced or collected since.
  std::string cached_text(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    std::string text = fmt::format("`{}` did not run: an earlier result with the same key was used",
                                   core::shown_name(run_, unit));
    auto row = store_.get(Family::cache, cache_key(u.key));
    if (!row.ok() || !row->has_value()) return text + ".";
    auto entry = decode_cache_entry(**row);
    if (!entry.ok() || entry->result != u.result) return text + ".";
    if (entry->run == run_.id) return text + ", of an equal task of this run.";
    return text + ", of the run " + entry->run + ".";
  }

  /// Why the task was executed: what follows "It ran ".
  Explanation explain_execution(core::UnitId unit, const TaskDef& def) {
    const core::Unit& u = run_.units[unit];
    auto same = [](std::string text) { return Explanation{text, text}; };
    auto earlier = earlier_.find(run_, unit, resolver_);
    if (!earlier) return same("because no earlier run of this pipeline in this state has it.");
    const core::Run& past = *earlier->loaded->run;
    const core::Unit& before = past.units[earlier->unit];
    if (before.key == u.key) return same(why_not_cached(before, past.id, def));
    const TaskDef* before_def = InputResolver::def_of(past, earlier->unit);
    auto now_components = resolver_.key_components(run_, unit);
    auto before_components = resolver_.key_components(past, earlier->unit);
    if (!now_components.ok() || !before_components.ok() || before_def == nullptr)
      return same("because its key changed; the values that would show how were collected.");
    std::vector<KeyChange> changes =
        key_changes({*before_components, *before_def}, {*now_components, def});
    std::string since = fmt::format("again because, since the run {}:", past.id);
    return {since + sources_.text_of(changes, earlier->loaded->record, loaded_.record, "  "),
            since + joined_causes(changes)};
  }

  std::string why_not_cached(const core::Unit& before, const core::RunId& past,
                             const TaskDef& def) const {
    if (!def.cache) return "because of its option cache = false.";
    if (run_.fresh) return "because the run was started with --fresh.";
    if (before.status != core::UnitStatus::succeeded) {
      return fmt::format(
          "because it did not succeed in the run {} (it was {} there); errors are never cached.",
          past, core::status_name(before.status));
    }
    return "although its key equals that of the earlier run: its result is not shared with other "
           "runs (it waits for a signal, or runs for its effect), or `retry` requested it.";
  }

  const Store& store_;
  const LoadedRun& loaded_;
  const core::Run& run_;
  InputResolver& resolver_;
  core::WaitExplainer waits_;
  ChangedSources sources_;
  EarlierRuns earlier_;
};

/// "`align[1..46]`: 46 tasks, each of which succeeded in 1 attempt. …"
std::string group_text(const TaskGroups::Group& group) {
  if (group.names.size() == 1) return fmt::format("`{}`{}", group.names.front(), group.text);
  std::string text = fmt::format("`{}`: {} tasks, each{}", joined_names(group.names),
                                 group.names.size(), group.text);
  if (group.is_same_text) return text;
  return text + fmt::format("\n  This is `{}`; of the others the same parts changed.",
                            group.names.front());
}

/// The tasks in groups, a paragraph each.
std::string explain_units(RunExplainer& explainer, const core::Run& run,
                          const std::vector<core::UnitId>& units, const ExplainOptions& options) {
  constexpr size_t kTasksMax = 2000, kParagraphsMax = 50;
  TaskGroups groups(options.each_task);
  size_t examined = std::min(units.size(), kTasksMax), printed = 0;
  for (size_t i = 0; i < examined; i++) {
    std::string name = core::shown_name(run, units[i]);
    Explanation why = explainer.explain(units[i]);
    groups.add(name, why.cause, without_name(why.text, name));
  }
  std::string text;
  for (const TaskGroups::Group& group : groups.groups()) {
    bool is_full = printed++ == kParagraphsMax;
    if (is_full) return text + "\n\n… and more: name a task to see it.";
    text += "\n\n" + group_text(group);
  }
  if (examined < units.size())
    text += fmt::format("\n\n… and {} more tasks: name a task to see it.", units.size() - examined);
  return text;
}

/// Whether the unit has instances, which are explained in its place.
bool is_expanded(const core::Run& run, core::UnitId unit) {
  const core::Unit& u = run.units[unit];
  bool is_broken = u.detail && u.detail->failure.cause != core::Cause::none &&
                   u.detail->failure.cause != core::Cause::dependency;
  return core::may_have_instances(run, unit) && u.expanded && !is_broken;
}

/// The units without cached ones and parked spare replicas, which a list does not explain.
std::vector<core::UnitId> executed(const core::Run& run, std::vector<core::UnitId> units) {
  std::erase_if(units, [&](core::UnitId unit) {
    const core::Unit& u = run.units[unit];
    bool is_cached = u.status == core::UnitStatus::succeeded && u.cached;
    return is_cached || is_parked_spare(run, unit);
  });
  return units;
}

}  // namespace

std::string explain_task(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                         core::UnitId unit, InputResolver& resolver,
                         const ExplainOptions& options) {
  const core::Run& run = *loaded.run;
  RunExplainer explainer(store, blobs, loaded, resolver);
  if (!is_expanded(run, unit)) return explainer.explain(unit).text;
  bool is_active = loaded.record.status != "interrupted";
  return count_instances(run, unit, is_active) +
         explain_units(explainer, run, executed(run, core::instances_of(run, unit)), options);
}

std::vector<std::string> explain_tasks(const Store& store, const Blobs& blobs,
                                       const LoadedRun& loaded,
                                       const std::vector<core::UnitId>& units,
                                       InputResolver& resolver) {
  RunExplainer explainer(store, blobs, loaded, resolver);
  std::vector<std::string> texts;
  texts.reserve(units.size());
  for (core::UnitId unit : units) texts.push_back(explainer.explain(unit).text);
  return texts;
}

std::string explain_run(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                        InputResolver& resolver, const ExplainOptions& options) {
  const core::Run& run = *loaded.run;
  std::map<core::UnitStatus, std::vector<core::UnitId>> by_status;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    if (core::is_counted(run, unit)) by_status[run.units[unit].status].push_back(unit);
  }
  std::vector<core::UnitId> units;
  for (core::UnitStatus status :
       {core::UnitStatus::failed, core::UnitStatus::waiting, core::UnitStatus::running,
        core::UnitStatus::ready, core::UnitStatus::pending, core::UnitStatus::succeeded,
        core::UnitStatus::skipped, core::UnitStatus::cancelled}) {
    units.insert(units.end(), by_status[status].begin(), by_status[status].end());
  }
  RunExplainer explainer(store, blobs, loaded, resolver);
  return fmt::format("The run {} of `{}` {}.", run.id, loaded.record.pipeline,
                     status_clause(loaded.record.status)) +
         action_sentence(run) + sentence_of(rollover_text(rollover_of(run))) +
         sentence_of(spent_budget_text(run, loaded.state.get())) +
         explain_units(explainer, run, executed(run, std::move(units)), options);
}

}  // namespace flow
