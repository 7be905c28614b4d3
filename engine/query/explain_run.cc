// Explains to users why a task waits, ran again or failed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/sched/sched.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kRunsMax = 200;

std::string shown(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

std::string changed(const std::string& what, const std::string& before, const std::string& now) {
  if (before.empty() && now.empty()) return what + " changed";
  return fmt::format("{} changed from {} to {}", what,
                     before.empty() ? "other content" : shown(before),
                     now.empty() ? "other content" : shown(now));
}

/// The JSON of two different values, one line each, cut to start shortly before the first
/// difference.
std::pair<std::string, std::string> around_difference(const Value& before, const Value& now) {
  constexpr size_t kShown = 120, kBefore = 20;
  std::string old_text = to_json(before), new_text = to_json(now);
  if (old_text.size() <= kShown && new_text.size() <= kShown) return {old_text, new_text};
  size_t same = 0;
  while (same < std::min(old_text.size(), new_text.size()) && old_text[same] == new_text[same])
    same++;
  auto cut = [&](const std::string& text) {
    size_t at = same > kBefore ? same - kBefore : 0, end = std::min(text.size(), at + kShown);
    size_t from = character_begin(text, at), to = character_begin(text, end);
    return (from > 0 ? "…" : "") + text.substr(from, to - from) + (to < text.size() ? "…" : "");
  };
  return {cut(old_text), cut(new_text)};
}

/// Lists the differences between two values of the component `what`, item by item.
class ValueDifferences {
 public:
  std::vector<std::string> of(const std::string& what, const Value& before, const Value& now) {
    compare(what, before, now);
    if (count_ > kNamedMax)
      out_.push_back(fmt::format("{}: {} more differences", what, count_ - kNamedMax));
    return std::move(out_);
  }

 private:
  static constexpr size_t kNamedMax = 5, kFieldsMax = 1000;

  void add(std::string text) {
    if (++count_ <= kNamedMax) out_.push_back(std::move(text));
  }

  void compare(const std::string& what, const Value& before, const Value& now) {
    if (before == now) return;
    bool are_tables = before.kind() == Value::Kind::table && now.kind() == Value::Kind::table;
    if (!are_tables || before.as_table().fields.size() > kFieldsMax ||
        now.as_table().fields.size() > kFieldsMax) {
      auto [old_text, new_text] = around_difference(before, now);
      return add(changed(what, old_text, new_text));
    }
    compare_lists(what, before.as_table().list, now.as_table().list);
    for (const auto& [key, field] : now.as_table().fields) {
      const Value* old = field_of(before, key);
      if (old == nullptr) {
        add(fmt::format("{}{} is new: `{}`", what, label(key), short_json(field)));
      } else {
        compare(what + label(key), *old, field);
      }
    }
    for (const auto& [key, field] : before.as_table().fields) {
      if (field_of(now, key) == nullptr)
        add(fmt::format("{}{} is gone (it was `{}`)", what, label(key), short_json(field)));
    }
  }

  void compare_lists(const std::string& what, const std::vector<Value>& before,
                     const std::vector<Value>& now) {
    size_t both = std::min(before.size(), now.size());
    for (size_t i = 0; i < both; i++)
      compare(fmt::format("{}[{}]", what, i + 1), before[i], now[i]);
    if (before.size() == now.size()) return;
    const std::vector<Value>& longer = before.size() > now.size() ? before : now;
    size_t others = longer.size() - both;
    add(fmt::format("{} has {} item{} {}: `{}`{}", what, others, others == 1 ? "" : "s",
                    before.size() > now.size() ? "less" : "more", short_json(longer[both]),
                    others == 1 ? "" : " and others"));
  }

  static std::string label(const Value& key) {
    return key.kind() == Value::Kind::string ? "." + key.as_string() : "[" + to_json(key) + "]";
  }

  static const Value* field_of(const Value& table, const Value& key) {
    for (const auto& [name, field] : table.as_table().fields)
      if (name == key) return &field;
    return nullptr;
  }

  std::vector<std::string> out_;
  size_t count_ = 0;
};

std::vector<std::string> code_differences(const TaskDef& before, const TaskDef& now) {
  std::vector<std::string> out;
  std::map<std::string, const CodeComponent*> old;
  for (const CodeComponent& part : before.code_components) old[part.name] = &part;
  for (const CodeComponent& part : now.code_components) {
    auto found = old.find(part.name);
    if (found == old.end()) {
      out.push_back(fmt::format("{} is new in what its code depends on", part.name));
      continue;
    }
    if (found->second->digest != part.digest)
      out.push_back(changed(part.name, found->second->text, part.text));
    old.erase(found);
  }
  for (const auto& [name, part] : old)
    out.push_back(fmt::format("{} is no longer part of its code", name));
  if (out.empty()) out.push_back("its code changed");
  return out;
}

/// A map has no attempts of its own. Its state is that of its instances.
std::string explain_map(const core::Run& run, core::UnitId map) {
  std::string name = core::shown_name(run, map);
  const std::vector<core::UnitId>& tasks = core::instances_of(run, map);
  if (tasks.empty()) return fmt::format("`{}` is a map of an empty list: it has no tasks.", name);
  std::vector<std::pair<std::string, size_t>> counts;
  const core::UnitId* telling = &tasks.front();
  for (const core::UnitId& task : tasks) {
    const core::Unit& u = run.units[task];
    std::string what = u.cached ? "cached" : core::status_name(u.status);
    auto same = [&](const auto& count) { return count.first == what; };
    auto found = std::ranges::find_if(counts, same);
    if (found == counts.end()) found = counts.insert(found, {what, 0});
    found->second++;
    bool is_first_failed = u.status == core::UnitStatus::failed &&
                           run.units[*telling].status != core::UnitStatus::failed;
    if (is_first_failed) telling = &task;
  }
  std::string text;
  for (const auto& [what, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  return fmt::format("`{}` is a map of {} task{}: {}. Ask for one of them, such as `{}`.", name,
                     tasks.size(), tasks.size() == 1 ? "" : "s", text,
                     core::shown_name(run, *telling));
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
  if (u.attempts < 2 || !u.detail || u.detail->failure.cause == core::Cause::none) return "";
  const core::Failure& failure = u.detail->failure;
  return fmt::format("\n{} failed: {}: {}", u.attempts == 2 ? "Attempt 1" : "An attempt before",
                     core::cause_name(failure.cause),
                     failure.message.substr(0, failure.message.find('\n')));
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
    std::string unheard = disconnected_text(*loaded.state, u);
    if (!unheard.empty())
      text += fmt::format(
          " Now disconnected: {}. The attempt is reported when the worker reconnects; it is lost "
          "if the worker does not.",
          unheard);
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

}  // namespace

std::vector<std::string> differences(const std::vector<KeyComponent>& before,
                                     const TaskDef& before_def,
                                     const std::vector<KeyComponent>& now, const TaskDef& now_def) {
  std::vector<std::string> out;
  std::map<std::string, const KeyComponent*> old;
  for (const KeyComponent& part : before) old[part.name] = &part;
  for (const KeyComponent& part : now) {
    auto found = old.find(part.name);
    if (found == old.end()) {
      out.push_back(
          fmt::format("{} is new{}", part.name, part.text.empty() ? "" : ": " + shown(part.text)));
      continue;
    }
    if (found->second->digest != part.digest) {
      if (part.name == "code") {
        for (std::string& line : code_differences(before_def, now_def))
          out.push_back(std::move(line));
      } else if (part.name == "command") {
        out.push_back(fmt::format("its command changed from\n  {}\nto\n  {}",
                                  before_def.shell.command, now_def.shell.command));
      } else {
        std::vector<std::string> items;
        if (part.value && found->second->value)
          items = ValueDifferences().of(part.name, *found->second->value, *part.value);
        if (items.empty()) items.push_back(changed(part.name, found->second->text, part.text));
        out.insert(out.end(), items.begin(), items.end());
      }
    }
    old.erase(found);
  }
  for (const auto& [name, part] : old)
    out.push_back(fmt::format("{} is gone{}", name,
                              part->text.empty() ? "" : " (it was " + shown(part->text) + ")"));
  return out;
}

std::optional<PreviousUnit> previous_unit(const Store& store, const Blobs& blobs,
                                          const RunRecord& record, const std::string& name) {
  auto records = all_records(store);
  if (!records.ok()) return std::nullopt;
  size_t examined = 0;
  for (auto it = records->rbegin(); it != records->rend() && examined < kRunsMax; ++it) {
    if (it->id >= record.id || it->pipeline != record.pipeline) continue;
    examined++;
    auto loaded = load_run(store, blobs, *it);
    if (!loaded.ok() || loaded->run == nullptr) continue;
    auto unit = find_unit(*loaded->run, name);
    if (!unit.ok() || loaded->run->units[*unit].key.is_zero()) continue;
    return PreviousUnit{std::move(*loaded), *unit};
  }
  return std::nullopt;
}

std::string explain_task(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                         core::UnitId unit, InputResolver& resolver) {
  const core::Run& run = *loaded.run;
  const core::Unit& u = run.units[unit];
  std::string name = core::shown_name(run, unit);
  const TaskDef* def = InputResolver::def_of(run, unit);
  bool is_broken = u.detail && u.detail->failure.cause != core::Cause::none &&
                   u.detail->failure.cause != core::Cause::dependency;
  bool is_map = run.node(u.node).kind == NodeKind::map && u.instance < 0;
  if (is_map && u.expanded && !is_broken) return explain_map(run, unit);
  std::string text;
  switch (u.status) {
    case core::UnitStatus::failed:
    case core::UnitStatus::skipped:
    case core::UnitStatus::cancelled: {
      text = fmt::format("`{}` {}.", name,
                         core::is_ignored(u) ? "failed, and its failure is ignored"
                         : u.status == core::UnitStatus::failed  ? "failed"
                         : u.status == core::UnitStatus::skipped ? "was skipped"
                                                                 : "was cancelled");
      if (u.detail && u.detail->failure.cause != core::Cause::none) {
        const core::Failure& failure = u.detail->failure;
        text += fmt::format("\ncause: {}\n{}", core::cause_name(failure.cause), failure.message);
        if (!failure.evidence.empty()) text += "\n" + failure.evidence;
        text += warnings_of(store, run, unit);
        if (u.status == core::UnitStatus::failed && def != nullptr) {
          text += fmt::format("\nattempts: {} (retries = {})", u.attempts, def->retry.max);
        }
        text += failed_workers_text(loaded, u);
      } else if (u.status == core::UnitStatus::skipped) {
        text += " Its branch was not taken.";
      }
      break;
    }
    case core::UnitStatus::running:
      text = running_text(store, loaded, unit);
      if (def != nullptr && def->resources.is_gang())
        text += " I" + core::explain_wait(*loaded.state, run.id, unit).substr(1) + ".";
      text += failed_before(u) + failed_workers_text(loaded, u);
      break;
    case core::UnitStatus::pending:
    case core::UnitStatus::ready:
    case core::UnitStatus::waiting:
      text = fmt::format("`{}` waits: {}", name, core::explain_wait(*loaded.state, run.id, unit));
      if (u.phase == core::Phase::ready || u.phase == core::Phase::parked)
        text += launcher_text(store);
      text += failed_workers_text(loaded, u);
      break;
    case core::UnitStatus::succeeded:
      if (run.node(u.node).kind == NodeKind::when) return explain_when(run, unit);
      text = u.cached ? fmt::format(
                            "`{}` did not run: an earlier result with the same key was used.", name)
                      : fmt::format("`{}` succeeded in {} attempt{}.", name, u.attempts,
                                    u.attempts == 1 ? "" : "s") +
                            failed_before(u) + failed_workers_text(loaded, u) +
                            warnings_of(store, run, unit);
      break;
  }
  bool runs = u.status == core::UnitStatus::running;
  bool has_run = core::is_final(u.status) && u.attempts > 0 && !u.cached;
  if ((!runs && !has_run) || def == nullptr || u.key.is_zero()) return text;
  text += runs ? "\nIt runs " : "\nIt ran ";
  auto earlier = previous_unit(store, blobs, loaded.record, InputResolver::unit_name(run, unit));
  if (!earlier) return text + "because no earlier run of this pipeline in this state has it.";
  const core::Unit& before = earlier->loaded.run->units[earlier->unit];
  const TaskDef* before_def = InputResolver::def_of(*earlier->loaded.run, earlier->unit);
  if (before.key == u.key) {
    if (!def->cache) return text + "because of its option cache = false.";
    if (run.fresh) return text + "because the run was started with --fresh.";
    if (before.status != core::UnitStatus::succeeded) {
      return text + fmt::format(
                        "because it did not succeed in the run {} (it was {} there); "
                        "errors are never cached.",
                        earlier->loaded.record.id, core::status_name(before.status));
    }
    return text +
           "although its key equals that of the earlier run: its result is not shared with other "
           "runs (it waits for a signal, or runs for its effect), or `retry` requested it.";
  }
  auto now_components = resolver.key_components(run, unit);
  auto before_components = resolver.key_components(*earlier->loaded.run, earlier->unit);
  if (!now_components.ok() || !before_components.ok() || before_def == nullptr)
    return text + "because its key changed; the values that would show how were collected.";
  text += fmt::format("again because, since the run {}:", earlier->loaded.record.id);
  for (const std::string& line :
       differences(*before_components, *before_def, *now_components, *def))
    text += "\n  " + line;
  return text;
}

std::string explain_run(const Store& store, const Blobs& blobs, const LoadedRun& loaded,
                        InputResolver& resolver) {
  constexpr size_t kTasksMax = 50;
  const core::Run& run = *loaded.run;
  std::string text = fmt::format("The run {} of `{}` {}.", run.id, loaded.record.pipeline,
                                 status_clause(loaded.record.status));
  std::map<core::UnitStatus, std::vector<core::UnitId>> by_status;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    if (core::is_counted(run, unit)) by_status[run.units[unit].status].push_back(unit);
  }
  size_t printed = 0;
  for (core::UnitStatus status :
       {core::UnitStatus::failed, core::UnitStatus::waiting, core::UnitStatus::running,
        core::UnitStatus::ready, core::UnitStatus::pending, core::UnitStatus::succeeded,
        core::UnitStatus::skipped, core::UnitStatus::cancelled}) {
    for (core::UnitId unit : by_status[status]) {
      if (status == core::UnitStatus::succeeded && run.units[unit].cached) continue;
      if (printed++ >= kTasksMax) return text + "\n\n… and more: name a task to see it.";
      text += "\n\n" + explain_task(store, blobs, loaded, unit, resolver);
    }
  }
  return text;
}

}  // namespace flow
