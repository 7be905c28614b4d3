#include "engine/report/run_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/throwing.hpp"
#include "engine/exports/provenance.hpp"
#include "engine/page/page_json.hpp"
#include "engine/page/page_views.hpp"
#include "engine/query/earlier_attempts.hpp"
#include "engine/query/run_logs.hpp"
#include "engine/query/task_values.hpp"
#include "engine/report/log_excerpt.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/value/utf8.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace {

constexpr size_t kReasonBytes = 4000;             // of one task
constexpr size_t kValueBytes = size_t{32} << 10;  // of one task's arguments, and of its result
constexpr size_t kValueBytesLeast = 400;
constexpr size_t kAllValueBytes = size_t{1} << 20;
constexpr size_t kRunLogBytes = size_t{512} << 10;
constexpr size_t kAllTaskLogBytes = size_t{2} << 20;  // of the tasks' own lines
constexpr size_t kSeriesPoints = 500, kSeriesPointsLeast = 10;
constexpr size_t kReportAttempts = 5'000;  // before the newest one of each task
constexpr size_t kTaskFiles = 100;         // inputs, and outputs, of one task

void append(std::string& list, const std::string& item) {
  if (!list.empty()) list += ',';
  list += item;
}

std::string listed(const std::vector<uint32_t>& numbers) {
  std::string list;
  for (size_t i = 0; i < std::min(numbers.size(), kTaskFiles); i++)
    append(list, std::to_string(numbers[i]));
  return "[" + list + "]";
}

class RunData {
 public:
  RunData(const EngineOptions& options, const std::string& selector)
      : options_(options),
        reader_(options),
        info_(reader_.show(selector)),
        provenance_(provenance_of(open_run(options, info_.id),
                                  [](const TaskDef&, const Value&) { return std::string(); })),
        resolver_([this](const Digest& digest) { return provenance_.opened.blobs->get(digest); }) {
    choose_detailed();
  }

  std::string json() {
    return fmt::format(
        R"({{"row":{},"graph":{},"code":{},"environment":{},"files":{},"details":{},"logs":{},"metrics":{},"attempts":{},"cost":{}}})",
        info_.json(), page_graph(reader_.graph(info_.id)), code(), environment(), files(),
        details(), logs(), metrics(),
        page_attempts(earlier_attempts(provenance_.opened, "", kReportAttempts)), cost());
  }

 private:
  /// Those that failed first: people look for them.
  void choose_detailed() {
    for (bool wants_failed : {true, false})
      for (const ProvenanceTask& task : provenance_.tasks)
        if ((task.info.status == "failed") == wants_failed && !task.info.name.empty() &&
            detailed_.size() < kReportDetailedTasks)
          detailed_.emplace(task.info.name, &task);
  }

  /// The share of each task that is described in detail.
  size_t share_of(size_t all) const { return all / std::max<size_t>(detailed_.size(), 1); }

  std::string code() const {
    const LoadedRun& loaded = provenance_.opened.loaded;
    std::string list;
    for (const auto& [name, content] : provenance_.bundle.files)
      append(list, fmt::format(R"({{"name":{},"sha256":"{}","bytes":{}}})", text_to_json(name),
                               sha256(content).hex(), content.size()));
    return fmt::format(R"({{"bundle":"{}","plan":"{}","main":{},"revision":{},"files":[{}]}})",
                       loaded.record.bundle_digest.hex(), loaded.record.plan_digest.hex(),
                       text_to_json(provenance_.bundle.main), revision(), list);
  }

  /// The git revision at submission.
  std::string revision() const {
    return to_json(
        revision_value(value_or_throw(inputs_of(*provenance_.opened.store, info_.id)).revision));
  }

  /// Where it ran: all workers that ran the newest attempt of a task, with the GPUs that they used.
  std::string environment() const {
    struct Use {
      size_t tasks = 0;
      std::set<std::string> gpus;
    };
    std::map<std::string, Use> workers;
    for (const TaskInfo& task : info_.tasks) {
      if (task.worker.empty() || task.cached) continue;
      Use& use = workers[task.worker];
      use.tasks++;
      use.gpus.insert(task.gpus.begin(), task.gpus.end());
    }
    std::string list;
    for (const auto& [name, use] : workers) {
      std::string gpus;
      for (const std::string& gpu : use.gpus) append(gpus, text_to_json(gpu));
      append(list, fmt::format(R"({{"name":{},"tasks":{},"gpus":[{}]}})", text_to_json(name),
                               use.tasks, gpus));
    }
    return fmt::format(R"({{"script":{},"directory":{},"user":{},"workers":[{}]}})",
                       text_to_json(info_.script), text_to_json(info_.directory),
                       text_to_json(provenance_.opened.loaded.run->user), list);
  }

  std::string files() const {
    std::string list;
    for (size_t i = 0; i < std::min(provenance_.files.size(), kReportFiles); i++) {
      const ProvenanceFile& file = provenance_.files[i];
      std::string maker =
          file.producer < 0
              ? "null"
              : text_to_json(provenance_.tasks[static_cast<size_t>(file.producer)].info.name);
      append(list, fmt::format(R"({{"name":{},"sha256":"{}","bytes":{},"folder":{},"task":{}}})",
                               text_to_json(file.id), file.file.digest.hex(), file.file.size,
                               file.file.is_folder, maker));
    }
    return fmt::format(R"({{"total":{},"list":[{}],"inputs":{},"results":{}}})",
                       provenance_.files.size(), list, all_listed(provenance_.inputs),
                       all_listed(provenance_.results));
  }

  /// The indices of files that are in the list.
  static std::string all_listed(const std::vector<uint32_t>& numbers) {
    std::string list;
    for (uint32_t number : numbers)
      if (number < kReportFiles) append(list, std::to_string(number));
    return "[" + list + "]";
  }

  std::string details() {
    std::vector<core::UnitId> units;
    for (const auto& [name, task] : detailed_) units.push_back(task->unit);
    const OpenedRun& opened = provenance_.opened;
    std::vector<std::string> reasons =
        explain_tasks(*opened.store, *opened.blobs, opened.loaded, units, resolver_);
    size_t value_bytes = std::clamp(share_of(kAllValueBytes), kValueBytesLeast, kValueBytes);
    auto text = [](const std::string& json) { return json.empty() ? "null" : text_to_json(json); };
    std::string list;
    size_t i = 0;
    for (const auto& [name, task] : detailed_) {
      TaskValues values = task_values_of(resolver_, *opened.loaded.run, task->unit, value_bytes);
      append(list,
             fmt::format(R"({}:{{"why":{},"arguments":{},"result":{},"inputs":{},"outputs":{}}})",
                         text_to_json(name), text_to_json(cut_text(reasons[i++], kReasonBytes)),
                         text(values.arguments), text(values.result), listed(task->inputs),
                         listed(task->outputs)));
    }
    return "{" + list + "}";
  }

  std::string logs() const {
    const OpenedRun& opened = provenance_.opened;
    LogExcerpt log({kLogExcerptLines, kRunLogBytes},
                   {kLogExcerptLines, share_of(kAllTaskLogBytes)});
    visit_log_lines(*opened.store, *opened.blobs, opened.loaded, "", [&](LogLine line) {
      bool is_detailed = detailed_.contains(line.task);
      log.add(std::move(line), is_detailed);
    });
    return log.json();
  }

  /// Null if the prices of the working directory cannot be read.
  std::string cost() const {
    try {
      return page_cost(options_, info_.id, "task");
    } catch (const Failed&) {
      return "null";
    }
  }

  std::string metrics() const {
    std::vector<MetricSeries> series = reader_.metrics(info_.id);
    size_t limit = kReportPoints / std::max<size_t>(series.size(), 1);
    return page_metrics(series, std::clamp(limit, kSeriesPointsLeast, kSeriesPoints));
  }

  const EngineOptions& options_;
  Reader reader_;
  RunInfo info_;
  Provenance provenance_;
  InputResolver resolver_;
  std::map<std::string, const ProvenanceTask*> detailed_;  // by the name of the task
};

}  // namespace

std::string report_run_data(const EngineOptions& options, const std::string& selector) {
  return RunData(options, selector).json();
}

}  // namespace flow
