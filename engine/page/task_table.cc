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

uint64_t hash_of(const TaskInfo& task) {
  RowHash hash;
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

std::string or_null(const std::string& text) { return text.empty() ? "null" : text_to_json(text); }

std::string failures_json(const std::vector<FailedAttempt>& failures) {
  std::string list;
  for (const FailedAttempt& failure : failures)
    list += fmt::format("{}[{},{},{}]", list.empty() ? "" : ",", failure.attempt,
                        text_to_json(failure.cause), text_to_json(failure.worker));
  return list.empty() ? "null" : "[" + list + "]";
}

std::string row_json(const TaskInfo& task) {
  return fmt::format(
      "{},{},\"{}\",{},{},{},{},{},{},{},{},{}", text_to_json(task.name), or_null(task.tag),
      task.status, task.attempts, (task.cached ? 1 : 0) | (task.ignored ? 2 : 0), task.started_ms,
      task.finished_ms, or_null(task.worker),
      task.usage.queue_s < 0 ? "null" : fmt::format("{:.3f}", task.usage.queue_s),
      or_null(task.waits_for), or_null(task.error.substr(0, TaskTable::kErrorBytesMax)),
      failures_json(task.failed));
}

}  // namespace

void TaskTable::update(RunInfo run) {
  std::vector<TaskInfo> tasks = std::move(run.tasks);
  run.tasks.clear();
  run_ = run.id;
  uint64_t next = sequence_ + 1;
  bool has_changed = total_ != tasks.size();
  std::string head = page_run_with_result(run);
  if (head != head_) {
    head_ = std::move(head);
    head_sequence_ = next;
    has_changed = true;
  }
  user_ = tasks.empty() ? "" : tasks.front().user;
  total_ = tasks.size();
  rows_.resize(std::min(total_, kTasksMax));
  for (size_t i = 0; i < rows_.size(); i++) {
    uint64_t hash = hash_of(tasks[i]);
    if (rows_[i].hash == hash && rows_[i].sequence > 0) continue;
    rows_[i] = {hash, next, row_json(tasks[i])};
    has_changed = true;
  }
  if (has_changed) sequence_ = next;
}

std::string TaskTable::changes(uint64_t table, uint64_t since) const {
  if (table != number_ || since > sequence_) since = 0;
  std::string rows;
  for (size_t i = 0; i < rows_.size(); i++) {
    if (rows_[i].sequence <= since) continue;
    fmt::format_to(std::back_inserter(rows), "{}[{},{}]", rows.empty() ? "" : ",", i,
                   rows_[i].json);
  }
  return fmt::format(R"({{"table":{},"sequence":{},"run":{},"user":{},"total":{},"rows":[{}]}})",
                     number_, sequence_, head_sequence_ > since ? head_ : "null", or_null(user_),
                     total_, rows);
}

TaskTable& TaskTables::read(const Reader& reader, const std::string& selector) {
  RunInfo run = reader.show(selector);
  std::erase_if(entries_, [&](const Entry& each) {
    return each.read_at + kUnusedFor < std::chrono::steady_clock::now();
  });
  auto entry =
      std::ranges::find_if(entries_, [&](const Entry& each) { return each.table.run() == run.id; });
  if (entry == entries_.end()) {
    if (entries_.size() >= kTablesMax) entries_.pop_back();
    entries_.push_front({TaskTable(++next_number_), {}});
  } else {
    entries_.splice(entries_.begin(), entries_, entry);
  }
  entries_.front().table.update(std::move(run));
  entries_.front().read_at = std::chrono::steady_clock::now();
  return entries_.front().table;
}

TaskTable& TaskTables::recent(const Reader& reader, const std::string& run,
                              std::chrono::milliseconds within) {
  auto entry =
      std::ranges::find_if(entries_, [&](const Entry& each) { return each.table.run() == run; });
  bool is_recent =
      entry != entries_.end() && entry->read_at + within > std::chrono::steady_clock::now();
  return is_recent ? entry->table : read(reader, run);
}

}  // namespace flow
