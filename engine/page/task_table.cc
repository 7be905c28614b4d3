#include "engine/page/task_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/page/page_json.hpp"
#include "engine/runs/run_info.hpp"

namespace flow {

namespace {

constexpr std::chrono::minutes kUnusedFor{1};  // then a table is dropped

/// Of all that a row shows. Two rows with one hash are equal for all that matters here: a row that
/// is wrongly kept would be one of 2^64.
class RowHash {
 public:
  void add(uint64_t number) { hash_ = std::rotl(hash_ ^ number, 27) * 0x9e3779b97f4a7c15U; }
  void add(std::string_view text) { add(std::hash<std::string_view>()(text)); }
  uint64_t get() const { return hash_; }

 private:
  uint64_t hash_ = 0x51ed270b9f7a8fe1U;
};

uint64_t hash_of(const TaskInfo& task, uint32_t reason) {
  RowHash hash;
  hash.add(reason);
  for (const std::string* text :
       {&task.name, &task.tag, &task.status, &task.worker, &task.waits_for, &task.error})
    hash.add(*text);
  hash.add(task.attempts);
  hash.add((task.cached ? 1U : 0U) | (task.ignored ? 2U : 0U));
  hash.add(static_cast<uint64_t>(task.started_ms));
  hash.add(static_cast<uint64_t>(task.finished_ms));
  hash.add(std::bit_cast<uint64_t>(task.usage.queue_s));
  hash.add(task.failed.size());
  if (!task.failed.empty()) hash.add(task.failed.back().attempt);
  return hash.get();
}

/// Hash of all fields of a unit that its row shows, except why it waits.
uint64_t hash_of_unit(core::UnitId id, const core::Unit& unit) {
  RowHash hash;
  for (uint64_t number :
       {uint64_t{id}, static_cast<uint64_t>(unit.status), static_cast<uint64_t>(unit.phase),
        uint64_t{unit.cached}, uint64_t{unit.gives_missing}, uint64_t{unit.requeues},
        uint64_t{unit.worker}, uint64_t{unit.attempts}, uint64_t{unit.timer_serial}, unit.epoch,
        static_cast<uint64_t>(unit.started), static_cast<uint64_t>(unit.finished),
        static_cast<uint64_t>(unit.ready), static_cast<uint64_t>(unit.assigned),
        uint64_t{std::hash<const void*>()(unit.detail.get())}})
    hash.add(number);
  return std::max<uint64_t>(hash.get(), 1);
}

std::string failures_json(const std::vector<FailedAttempt>& failures) {
  std::string list;
  for (const FailedAttempt& failure : failures)
    list += fmt::format("{}[{},{},{}]", list.empty() ? "" : ",", failure.attempt,
                        text_to_json(failure.cause), text_to_json(failure.worker));
  return list.empty() ? "null" : "[" + list + "]";
}

std::string row_json(const TaskInfo& task, const std::string& waits_for) {
  return fmt::format("{},{},\"{}\",{},{},{},{},{},{},{},{},{}", text_to_json(task.name),
                     text_or_null_json(task.tag), task.status, task.attempts,
                     (task.cached ? 1 : 0) | (task.ignored ? 2 : 0), task.started_ms,
                     task.finished_ms, text_or_null_json(task.worker),
                     task.usage.queue_s < 0 ? "null" : fmt::format("{:.3f}", task.usage.queue_s),
                     waits_for, text_or_null_json(task.error.substr(0, TaskTable::kErrorBytesMax)),
                     failures_json(task.failed));
}

}  // namespace

void TaskTable::set_head(const RunInfo& run, size_t total) {
  run_ = run.id;
  has_changed_ = total_ != total;
  std::string head = page_run_with_result(run);
  if (head != head_) {
    head_ = std::move(head);
    head_sequence_ = sequence_ + 1;
    has_changed_ = true;
  }
  total_ = total;
  rows_.resize(std::min(total_, kTasksMax));
}

void TaskTable::set_row(size_t index, const TaskInfo& task, uint32_t reason) {
  Row& row = rows_[index];
  uint64_t hash = hash_of(task, reason);
  row.reason = reason;
  if (row.hash == hash && row.sequence > 0) return;
  row.hash = hash;
  row.sequence = sequence_ + 1;
  row.json = row_json(
      task, reason == kOwnReason ? text_or_null_json(task.waits_for) : std::to_string(reason));
  has_changed_ = true;
}

void TaskTable::update(RunInfo run) {
  std::vector<TaskInfo> tasks = std::move(run.tasks);
  run.tasks.clear();
  set_head(run, tasks.size());
  user_ = tasks.empty() ? "" : tasks.front().user;
  for (size_t i = 0; i < rows_.size(); i++) {
    set_row(i, tasks[i]);
    rows_[i].unit_hash = 0;
  }
  if (has_changed_) sequence_++;
}

void TaskTable::update(const RunInfo& run, const core::Run& units, const core::State& state) {
  std::vector<core::UnitId> shown;
  for (core::UnitId unit = 0; unit < units.units.size(); unit++)
    if (is_shown(units, unit)) shown.push_back(unit);
  set_head(run, shown.size());
  user_ = shown.empty() ? "" : units.user;
  // Marks hold within one state: in another one, numbers of workers may mean others.
  const bool is_other = std::exchange(state_, &state) != &state;
  const bool has_new_tags = std::exchange(tags_, units.tagged.size()) != units.tagged.size();
  core::WaitExplainer waits(state, units.id);
  share_reasons(units, waits);
  size_t asked = 0, next_reason = 0;
  for (size_t i = 0; i < rows_.size(); i++) {
    const core::Unit& unit = units.units[shown[i]];
    const uint64_t unit_hash = hash_of_unit(shown[i], unit);
    const uint32_t reason = shared_reason(waits, shown[i]);
    const bool is_changed =
        rows_[i].unit_hash != unit_hash || rows_[i].reason != reason || is_other || has_new_tags;
    const bool is_asked = !is_changed && reason == kOwnReason && may_wait(unit) &&
                          i >= reasons_from_ && asked < kReasonsMax;
    if (!is_changed && !is_asked) continue;
    if (is_asked) {
      asked++;
      next_reason = i + 1;
    }
    set_row(i, info_of_task(units, shown[i], &state, reason == kOwnReason ? &waits : nullptr),
            reason);
    rows_[i].unit_hash = unit_hash;
  }
  reasons_from_ = asked < kReasonsMax ? 0 : next_reason;
  if (has_changed_) sequence_++;
}

// Its number stays that of a class while it has ready units: a reason that changes changes no row.
void TaskTable::share_reasons(const core::Run& units, core::WaitExplainer& waits) {
  std::erase_if(reasons_, [&](const auto& entry) {
    bool is_gone = !units.ready.contains(entry.first);
    if (is_gone) free_numbers_.push_back(entry.second.number);
    return is_gone;
  });
  for (const auto& each : units.ready) {
    auto found = reasons_.find(each.first);
    if (found == reasons_.end()) {
      if (reasons_.size() == kSharedReasonsMax) continue;
      uint32_t number = static_cast<uint32_t>(reasons_.size());
      if (!free_numbers_.empty()) {
        number = free_numbers_.back();
        free_numbers_.pop_back();
      }
      found = reasons_.emplace(each.first, Reason{number, 0, ""}).first;
    }
    Reason& reason = found->second;
    const std::string& text = waits.explain_class(each.first);
    if (reason.sequence > 0 && reason.text == text) continue;
    reason.text = text;
    reason.sequence = sequence_ + 1;
    has_changed_ = true;
  }
}

uint32_t TaskTable::shared_reason(core::WaitExplainer& waits, core::UnitId unit) const {
  const core::SchedulingClass* own = reasons_.empty() ? nullptr : waits.class_of(unit);
  auto found = own == nullptr ? reasons_.end() : reasons_.find(*own);
  return found == reasons_.end() ? kOwnReason : found->second.number;
}

std::string TaskTable::changes(uint64_t table, uint64_t since) const {
  if (table != number_ || since > sequence_) since = 0;
  std::string rows;
  for (size_t i = 0; i < rows_.size(); i++) {
    if (rows_[i].sequence <= since) continue;
    fmt::format_to(std::back_inserter(rows), "{}[{},{}]", rows.empty() ? "" : ",", i,
                   rows_[i].json);
  }
  std::string reasons;
  for (const auto& [request, reason] : reasons_) {
    if (reason.sequence <= since) continue;
    fmt::format_to(std::back_inserter(reasons), "{}[{},{}]", reasons.empty() ? "" : ",",
                   reason.number, text_to_json(reason.text));
  }
  return fmt::format(
      R"({{"table":{},"sequence":{},"run":{},"user":{},"total":{},"reasons":[{}],"rows":[{}]}})",
      number_, sequence_, head_sequence_ > since ? head_ : "null", text_or_null_json(user_), total_,
      reasons, rows);
}

TaskTable& TaskTables::read(const StateFollower& state, const std::string& selector) {
  auto [run, loaded] = state.summarize(selector);
  const std::string& id = run.id;
  std::erase_if(entries_, [&](const Entry& each) {
    return each.read_at + kUnusedFor < std::chrono::steady_clock::now();
  });
  auto entry =
      std::ranges::find_if(entries_, [&](const Entry& each) { return each.table.run() == id; });
  if (entry == entries_.end()) {
    if (entries_.size() >= kTablesMax) entries_.pop_back();
    entries_.push_front({TaskTable(++next_number_), {}});
  } else {
    entries_.splice(entries_.begin(), entries_, entry);
  }
  if (loaded.run == nullptr) {
    entries_.front().table.update(std::move(run));
  } else {
    entries_.front().table.update(run, *loaded.run, *loaded.state);
  }
  entries_.front().read_at = std::chrono::steady_clock::now();
  return entries_.front().table;
}

TaskTable& TaskTables::recent(const StateFollower& state, const std::string& run,
                              std::chrono::milliseconds within) {
  auto entry =
      std::ranges::find_if(entries_, [&](const Entry& each) { return each.table.run() == run; });
  bool is_recent =
      entry != entries_.end() && entry->read_at + within > std::chrono::steady_clock::now();
  return is_recent ? entry->table : read(state, run);
}

}  // namespace flow
