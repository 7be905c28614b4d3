// What differs between two runs.
#include <fmt/format.h>

#include <map>

#include "engine/core/gangs.hpp"
#include "engine/query/changed_sources.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/task_groups.hpp"
#include "engine/query/unit_pairs.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

using UnitsByName = std::map<std::string, core::UnitId>;

UnitsByName counted_units(const core::Run& run) {
  UnitsByName units;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++)
    if (core::is_counted(run, unit)) units.emplace(InputResolver::unit_name(run, unit), unit);
  return units;
}

class RunDiff {
 public:
  RunDiff(const Blobs& blobs, const LoadedRun& before, const LoadedRun& now,
          InputResolver& resolver, bool each_task)
      : before_(before), now_(now), resolver_(resolver), sources_(blobs), groups_(each_task) {}

  /// Compares a task that both runs have.
  void compare(core::UnitId before, core::UnitId now) {
    const core::Unit& o = before_.run->units[before];
    const core::Unit& u = now_.run->units[now];
    if (u.key == o.key && u.result == o.result && u.status == o.status) {
      same_++;
      return;
    }
    std::string text, cause;
    if (u.status != o.status)
      text += fmt::format("\n  its status changed from {} to {}", core::status_name(o.status),
                          core::status_name(u.status));
    cause = text;
    if (u.key != o.key && !u.key.is_zero() && !o.key.is_zero()) {
      std::vector<KeyChange> changes = changes_of(before, now);
      text += sources_.text_of(changes, before_.record, now_.record, "  ");
      cause += joined_causes(changes);
    }
    bool has_other_result = u.result != o.result && u.status == core::UnitStatus::succeeded &&
                            o.status == core::UnitStatus::succeeded;
    if (has_other_result) {
      text += "\n  its result differs";
      cause += "; its result";
    }
    groups_.add(core::shown_name(*now_.run, now), cause, text);
  }

  std::string text() const {
    std::string out;
    for (const TaskGroups::Group& group : groups_.groups()) {
      bool is_one = group.names.size() == 1;
      out += fmt::format("`{}`", joined_names(group.names));
      if (!is_one) out += fmt::format(" ({} tasks)", group.names.size());
      if (!group.is_same_text) out += fmt::format(", such as `{}`", group.names.front());
      out += ":" + group.text + "\n";
    }
    return out;
  }
  size_t same() const { return same_; }

 private:
  std::vector<KeyChange> changes_of(core::UnitId before, core::UnitId now) {
    auto old_components = resolver_.key_components(*before_.run, before);
    auto new_components = resolver_.key_components(*now_.run, now);
    const TaskDef* old_def = InputResolver::def_of(*before_.run, before);
    const TaskDef* new_def = InputResolver::def_of(*now_.run, now);
    bool is_known =
        old_components.ok() && new_components.ok() && old_def != nullptr && new_def != nullptr;
    if (!is_known) return {};
    return key_changes({*old_components, *old_def}, {*new_components, *new_def});
  }

  const LoadedRun& before_;
  const LoadedRun& now_;
  InputResolver& resolver_;
  ChangedSources sources_;
  TaskGroups groups_;
  size_t same_ = 0;
};

/// Lists the tasks of `run` that the other run does not have.
std::string only_in(const core::Run& run, const UnitsByName& units,
                    const std::vector<bool>& has_other, bool each_task) {
  TaskGroups groups(each_task);
  for (const auto& [name, unit] : units)
    if (!has_other[unit]) groups.add(core::shown_name(run, unit), "", "");
  std::string text;
  for (const TaskGroups::Group& group : groups.groups())
    text += fmt::format("`{}` {} only in {}\n", joined_names(group.names),
                        group.names.size() == 1 ? "is" : "are", run.id);
  return text;
}

}  // namespace

std::string diff_runs(const Blobs& blobs, const LoadedRun& before, const LoadedRun& now,
                      InputResolver& resolver, const ExplainOptions& options) {
  UnitsByName old_units = counted_units(*before.run), new_units = counted_units(*now.run);
  RunDiff diff(blobs, before, now, resolver, options.each_task);
  UnitPairs pairs(*before.run, *now.run, resolver);
  std::vector<bool> is_in_now(before.run->units.size()), is_in_before(now.run->units.size());
  for (const auto& [name, unit] : new_units) {
    core::UnitId old_unit = pairs.before(unit);
    if (old_unit == kNoNode || !core::is_counted(*before.run, old_unit)) continue;
    is_in_before[unit] = is_in_now[old_unit] = true;
    diff.compare(old_unit, unit);
  }
  return diff.text() + only_in(*now.run, new_units, is_in_before, options.each_task) +
         only_in(*before.run, old_units, is_in_now, options.each_task) +
         fmt::format("{} task{} the same\n", diff.same(), diff.same() == 1 ? " is" : "s are");
}

}  // namespace flow
