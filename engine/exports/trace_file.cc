#include "engine/exports/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/throwing.hpp"
#include "engine/exports/json_fields.hpp"
#include "engine/runs/attempt_history.hpp"

namespace flow {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr size_t kArrowsMax = 100'000;  // viewers become slow with more
constexpr int64_t kRunProcess = 1, kFirstWorker = 2;

/// An attempt with its place in the timeline, in µs since the Unix epoch.
struct TimelineAttempt {
  uint32_t task = 0;  // index in the provenance
  AttemptRow row;
  int64_t queued = 0, begin = 0, staged = 0, computed = 0, end = 0;
  size_t worker = 0, slot = 0;
};

class TraceFile {
 public:
  TraceFile(const Provenance& provenance, int64_t now_ms)
      : provenance_(provenance), run_(*provenance.opened.loaded.run), now_ms_(now_ms) {}

  std::string text() {
    find_attempts();
    assign_slots();
    add_names();
    for (size_t i = 0; i < attempts_.size(); i++) add_attempt(attempts_[i], i);
    add_arrows();
    add_counters();
    const RunInfo& info = provenance_.info;
    JsonFields other = {{Value("run"), Value(info.id)},
                        {Value("pipeline"), text_value(info.pipeline)},
                        {Value("status"), Value(info.status)},
                        {Value("flow"), Value(version())}};
    if (omitted_arrows_ > 0)
      other.emplace_back(Value("omitted_dependencies"),
                         Value(static_cast<int64_t>(omitted_arrows_)));
    return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n{}\n]}}\n",
                       to_json(Value::map(std::move(other))), events_);
  }

 private:
  void find_attempts() {
    const OpenedRun& opened = provenance_.opened;
    auto by_unit = value_or_throw(attempts_of(*opened.store, *opened.loaded.state, run_));
    newest_.assign(provenance_.tasks.size(), -1);
    for (uint32_t task = 0; task < provenance_.tasks.size(); task++) {
      auto found = by_unit.find(provenance_.tasks[task].unit);
      if (found == by_unit.end()) continue;
      for (AttemptRow& row : found->second) {
        TimelineAttempt attempt;
        attempt.task = task;
        attempt.row = std::move(row);
        place(attempt);
        attempts_.push_back(std::move(attempt));
      }
    }
    std::ranges::stable_sort(attempts_, {}, &TimelineAttempt::begin);
    for (size_t i = 0; i < attempts_.size(); i++)
      newest_[attempts_[i].task] = static_cast<int64_t>(i);
  }

  /// Parts that were not measured are empty; no part is longer than the attempt.
  void place(TimelineAttempt& attempt) const {
    const AttemptRow& row = attempt.row;
    int64_t ended_ms = row.outcome == "running" ? now_ms_ : row.ended;
    attempt.begin = row.assigned * kUsPerMs;
    attempt.end = std::max(ended_ms * kUsPerMs, attempt.begin);
    attempt.queued = attempt.begin - std::max<int64_t>(row.queue_us, 0);
    attempt.staged = std::min(attempt.begin + std::max<int64_t>(row.stage_us, 0), attempt.end);
    attempt.computed = std::max(attempt.end - std::max<int64_t>(row.commit_us, 0), attempt.staged);
  }

  /// The lowest slot of its worker that is free. The state knows how many there are, not which.
  void assign_slots() {
    for (TimelineAttempt& attempt : attempts_) {
      auto [worker, is_new] = workers_.try_emplace(attempt.row.worker, slots_.size());
      if (is_new) slots_.emplace_back();
      attempt.worker = worker->second;
      std::vector<int64_t>& slots = slots_[attempt.worker];
      auto free = std::ranges::find_if(slots, [&](int64_t end) { return end <= attempt.begin; });
      attempt.slot = static_cast<size_t>(free - slots.begin());
      if (free == slots.end()) slots.push_back(0);
      slots[attempt.slot] = attempt.end;
    }
  }

  void add(JsonFields fields) {
    if (!events_.empty()) events_ += ",\n";
    events_ += to_json(Value::map(std::move(fields)));
  }

  void add_name(const char* what, int64_t process, int64_t thread, const std::string& name) {
    add({{Value("ph"), Value("M")},
         {Value("name"), Value(what)},
         {Value("pid"), Value(process)},
         {Value("tid"), Value(thread)},
         {Value("args"), Value::map({{Value("name"), text_value(name)}})}});
  }

  void add_names() {
    const std::string& name = run_.name.empty() ? run_.id : run_.name;
    add_name("process_name", kRunProcess, 0, "run " + name);
    for (const auto& [worker, index] : workers_) {
      int64_t process = kFirstWorker + static_cast<int64_t>(index);
      add_name("process_name", process, 0, "worker " + worker);
      for (size_t slot = 0; slot < slots_[index].size(); slot++)
        add_name("thread_name", process, static_cast<int64_t>(slot) + 1,
                 fmt::format("slot {}", slot));
    }
  }

  static int64_t process_of(const TimelineAttempt& attempt) {
    return kFirstWorker + static_cast<int64_t>(attempt.worker);
  }
  static int64_t thread_of(const TimelineAttempt& attempt) {
    return static_cast<int64_t>(attempt.slot) + 1;
  }

  JsonFields event(const TimelineAttempt& attempt, const char* phase, const std::string& name,
                   const char* category, int64_t at) const {
    return event(attempt, phase, name, category, at, process_of(attempt));
  }
  JsonFields event(const TimelineAttempt& attempt, const char* phase, const std::string& name,
                   const char* category, int64_t at, int64_t process) const {
    return {{Value("ph"), Value(phase)},     {Value("name"), text_value(name)},
            {Value("cat"), Value(category)}, {Value("ts"), Value(at)},
            {Value("pid"), Value(process)},  {Value("tid"), Value(thread_of(attempt))}};
  }

  void add_slice(const TimelineAttempt& attempt, const std::string& name, const char* category,
                 int64_t begin, int64_t end, JsonFields details) {
    JsonFields fields = event(attempt, "X", name, category, begin);
    fields.emplace_back(Value("dur"), Value(end - begin));
    if (!details.empty()) fields.emplace_back(Value("args"), Value::map(std::move(details)));
    add(std::move(fields));
  }

  /// The time in the queue is before the slot's: it has a track of its own.
  void add_queue(const TimelineAttempt& attempt, const std::string& name, size_t number) {
    for (const char* phase : {"b", "e"}) {
      JsonFields fields = event(attempt, phase, "queue " + name, "queue",
                                *phase == 'b' ? attempt.queued : attempt.begin, kRunProcess);
      fields.emplace_back(Value("id"), Value(static_cast<int64_t>(number)));
      add(std::move(fields));
    }
  }

  void add_attempt(const TimelineAttempt& attempt, size_t number) {
    const AttemptRow& row = attempt.row;
    std::string name = core::shown_name(run_, provenance_.tasks[attempt.task].unit);
    JsonFields details = {{Value("task"), text_value(name)},
                          {Value("attempt"), Value(int64_t{row.attempt})},
                          {Value("worker"), text_value(row.worker)},
                          {Value("outcome"), Value(row.outcome)},
                          {Value("ranks"), Value(int64_t{row.ranks})}};
    if (!row.cause.empty()) details.emplace_back(Value("cause"), Value(row.cause));
    if (!row.gpus.empty()) {
      std::vector<Value> gpus;
      for (const std::string& gpu : row.gpus) gpus.push_back(text_value(gpu));
      details.emplace_back(Value("gpus"), Value::list(std::move(gpus)));
    }
    if (row.queue_us >= 0) add_queue(attempt, name, number);
    add_slice(attempt, name, "attempt", attempt.begin, attempt.end, std::move(details));
    if (row.stage_us < 0) return;
    add_slice(attempt, "stage", "stage", attempt.begin, attempt.staged, {});
    add_slice(attempt, "run", "run", attempt.staged, attempt.computed, {});
    if (row.commit_us >= 0)
      add_slice(attempt, "commit", "commit", attempt.computed, attempt.end, {});
  }

  /// From the end of an attempt whose result was taken to the begin of the first one that took it.
  void add_arrows() {
    std::vector<int64_t> first(provenance_.tasks.size(), -1);
    for (size_t i = attempts_.size(); i-- > 0;) first[attempts_[i].task] = static_cast<int64_t>(i);
    int64_t number = 0;
    for (uint32_t task = 0; task < provenance_.tasks.size(); task++) {
      if (first[task] < 0) continue;
      for (uint32_t parent : provenance_.tasks[task].parents) {
        if (newest_[parent] < 0) continue;
        if (static_cast<size_t>(number) == kArrowsMax) {
          omitted_arrows_++;
          continue;
        }
        const TimelineAttempt& from = attempts_[static_cast<size_t>(newest_[parent])];
        const TimelineAttempt& to = attempts_[static_cast<size_t>(first[task])];
        JsonFields begin = event(from, "s", "result", "dependency", from.end);
        begin.emplace_back(Value("id"), Value(number));
        add(std::move(begin));
        JsonFields end = event(to, "f", "result", "dependency", to.begin);
        end.emplace_back(Value("id"), Value(number++));
        end.emplace_back(Value("bp"), Value("e"));
        add(std::move(end));
      }
    }
  }

  void add_counters() {
    std::map<int64_t, std::pair<int64_t, int64_t>> changes;  // by time: of running and queued ones
    for (const TimelineAttempt& attempt : attempts_) {
      changes[attempt.queued].second++;
      changes[attempt.begin].second--;
      changes[attempt.begin].first++;
      if (attempt.row.outcome != "running") changes[attempt.end].first--;
    }
    int64_t running = 0, queued = 0;
    for (const auto& [at, change] : changes) {
      running += change.first;
      queued += change.second;
      add({{Value("ph"), Value("C")},
           {Value("name"), Value("tasks")},
           {Value("ts"), Value(at)},
           {Value("pid"), Value(kRunProcess)},
           {Value("tid"), Value(int64_t{0})},
           {Value("args"),
            Value::map({{Value("running"), Value(running)}, {Value("queued"), Value(queued)}})}});
    }
  }

  const Provenance& provenance_;
  const core::Run& run_;
  const int64_t now_ms_;
  std::vector<TimelineAttempt> attempts_;  // by begin
  std::vector<int64_t> newest_;            // by task: the index of its newest attempt, or -1
  std::map<std::string, size_t> workers_;  // by name: index in the following
  std::vector<std::vector<int64_t>> slots_;
  size_t omitted_arrows_ = 0;
  std::string events_;
};

}  // namespace

std::string trace_file_of(const Provenance& provenance, int64_t now_ms) {
  return TraceFile(provenance, now_ms).text();
}

}  // namespace flow
