// The tasks of the runs that pages show, as rows that say when they last changed. So a page asks
// only for what it does not have yet.
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "engine/page/state_follower.hpp"
#include "engine/sched/wait_explainer.hpp"
#include "flow/flow.hpp"

namespace flow {

/// The tasks of one run.
class TaskTable {
 public:
  /// Further tasks are counted, but have no row.
  static constexpr size_t kTasksMax = 200'000;
  static constexpr size_t kErrorBytesMax = 300;
  /// Maximum number of unchanged waiting tasks whose own wait reason an update computes again.
  static constexpr size_t kReasonsMax = 10'000;
  /// Further classes of ready tasks share no reason.
  static constexpr size_t kSharedReasonsMax = 1000;

  /// `number` differs from that of all other tables of the process.
  explicit TaskTable(uint64_t number) : number_(number) {}

  /// Takes over what has changed, and drops the run's tasks afterwards.
  void update(RunInfo run);
  /// The same for a run that is followed. Only the rows of tasks that have changed are made again.
  /// Ready tasks of one class share a reason, which is that of the state. For other waiting tasks
  /// the reason is computed when they change, and again for kReasonsMax of them per update, round
  /// robin. `run` has no tasks.
  void update(const RunInfo& run, const core::Run& units, const core::State& state);
  /// Grows with each change.
  uint64_t sequence() const { return sequence_; }
  const std::string& run() const { return run_; }
  /// {"table":N,"sequence":N,"run":{…},"user":…,"total":N,"reasons":[[number,text]…],
  /// "rows":[[index,name,tag,status,attempts,flags,started,finished,worker,queue_s,waits_for,error,
  /// failures]…]}: the reasons and the rows that changed after `since` of the table with the number
  /// `table`; of another table all. `run` is null if it has not changed. `waits_for` is a text or
  /// the number of a reason that rows share. Of `flags` bit 0 is `cached`, bit 1 `ignored`; times
  /// are in ms since the Unix epoch, 0 for none; `failures` is a list of [attempt,cause,worker], as
  /// `failed_attempts`.
  std::string changes(uint64_t table, uint64_t since) const;

 private:
  static constexpr uint32_t kOwnReason = std::numeric_limits<uint32_t>::max();
  /// Why the ready tasks of a class wait.
  struct Reason {
    uint32_t number = 0;
    uint64_t sequence = 0;
    std::string text;
  };
  struct Row {
    uint64_t hash = 0, sequence = 0;
    uint32_t reason = kOwnReason;
    uint64_t unit_hash = 0;  // of the unit's fields when the row was made; 0: unknown
    std::string json;        // without its brackets and its index
  };

  void set_head(const RunInfo& run, size_t total);
  void set_row(size_t index, const TaskInfo& task, uint32_t reason = kOwnReason);
  void share_reasons(const core::Run& units, core::WaitExplainer& waits);
  /// The number of the reason that the unit shares, or kOwnReason.
  uint32_t shared_reason(core::WaitExplainer& waits, core::UnitId unit) const;

  const uint64_t number_;
  uint64_t sequence_ = 0, head_sequence_ = 0;
  std::string run_, head_, user_;       // head_: the run without its tasks
  const core::State* state_ = nullptr;  // of the last update; only compared
  size_t total_ = 0, tags_ = 0;
  size_t reasons_from_ = 0;   // the first row that is asked for its reason in the next update
  bool has_changed_ = false;  // in this update
  std::vector<Row> rows_;     // at most kTasksMax
  std::map<core::SchedulingClass, Reason> reasons_;  // at most kSharedReasonsMax
  std::vector<uint32_t> free_numbers_;               // below those of all reasons that ever were
};

/// The tables of the runs that were asked for last. One thread uses it.
class TaskTables {
 public:
  static constexpr size_t kTablesMax = 32;

  /// The table of the run as `state` has it. Throws Failed if the run is unknown.
  TaskTable& read(const StateFollower& state, const std::string& selector);
  /// The same, but a table that was read within `within` is not read again.
  TaskTable& recent(const StateFollower& state, const std::string& run,
                    std::chrono::milliseconds within);

 private:
  struct Entry {
    TaskTable table;
    std::chrono::steady_clock::time_point read_at;
  };

  std::list<Entry> entries_;  // the one that was used last is first; at most kTablesMax
  uint64_t next_number_ = 0;
};

}  // namespace flow
