#include "engine/query/state_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/throwing.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/query/active_services.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/json.hpp"

namespace flow {

namespace {

Result<front::Status> ask_front(const std::string& folder) { return front_status(folder); }

/// Reads one state at one moment.
class StateView {
 public:
  explicit StateView(const EngineOptions& options) : opened_(open_state(options)) {
    view_.state = opened_.dir;
    view_.at_ms = now_ms();
    view_.has_writer = opened_.had_writer;
  }

  ClusterView take(const std::string& run) {
    if (opened_.store == nullptr && run.empty()) return std::move(view_);
    if (opened_.store == nullptr) show_run(opened_, run);  // throws
    records_ = value_or_throw(all_records(*opened_.store));
    bool has_open_run =
        std::ranges::any_of(records_, [](const RunRecord& each) { return !is_over(each.status); });
    if (has_open_run || opened_.had_writer)
      state_ = value_or_throw(recover(*opened_.store, *opened_.blobs));
    add_runs();
    if (state_ && opened_.had_writer) view_.workers = nodes_of(*state_);
    if (has_open_run)
      view_.services = active_services(
          *state_, records_, opened_.dir, ask_front,
          [this](const core::RunId& id) { return why_not_resumed(*opened_.store, id); });
    select(run);
    return std::move(view_);
  }

 private:
  /// A run's row is written when its status changes: its progress is in the state.
  void add_runs() {
    for (RunRecord& record : records_) {
      const core::Run* run = open_run_of(record);
      if (run != nullptr) update_record(*run, record);
      record = current_record(opened_, std::move(record));
      RunInfo info = info_of_record(record);
      if (run != nullptr && record.status != "interrupted") {
        info.url = url_of(*run);
        info.services = services_of(*run, &*state_);
      }
      view_.runs.push_back(std::move(info));
    }
  }

  const core::Run* open_run_of(const RunRecord& record) const {
    if (!state_ || is_over(record.status)) return nullptr;
    auto found = state_->runs.find(record.id);
    return found == state_->runs.end() ? nullptr : &found->second;
  }

  void select(const std::string& selector) {
    if (records_.empty() && selector.empty()) return;
    const RunRecord* record = newest_open();
    std::optional<RunRecord> selected;
    if (!selector.empty() || record == nullptr)
      selected = value_or_throw(select_record(*opened_.store, selector));
    const std::string id = selected ? selected->id : record->id;
    auto known = std::ranges::find(records_, id, &RunRecord::id);
    const core::Run* run = known == records_.end() ? nullptr : open_run_of(*known);
    if (run != nullptr && known->status != "interrupted") {
      InputResolver resolver([this](const Digest& digest) { return opened_.blobs->get(digest); });
      view_.run = info_of_run(*run, *known, resolver, &*state_);
    } else {
      view_.run = show_run(opened_, id);
    }
    view_.waiting = waiting_tasks(*view_.run);
  }

  const RunRecord* newest_open() const {
    for (auto record = records_.rbegin(); record != records_.rend(); record++)
      if (!is_over(record->status) && record->status != "interrupted") return &*record;
    return nullptr;
  }

  const OpenedState opened_;
  std::vector<RunRecord> records_;
  std::optional<core::State> state_;  // if a run has not ended
  ClusterView view_;
};

template <class Items, class Json>
std::string list_json(const Items& items, Json json) {
  std::string list;
  for (const auto& item : items) list += (list.empty() ? "" : ",") + json(item);
  return "[" + list + "]";
}

}  // namespace

ClusterView view_state(const EngineOptions& options, const std::string& run) {
  return StateView(options).take(run);
}

std::vector<WaitingTasks> waiting_tasks(const RunInfo& run) {
  std::vector<WaitingTasks> waiting;
  std::unordered_map<std::string, size_t> index;  // by reason
  for (const TaskInfo& task : run.tasks) {
    if (task.waits_for.empty()) continue;
    bool is_full = waiting.size() + 1 >= kWaitReasonsMax && !index.contains(task.waits_for);
    std::string reason = is_full ? "" : task.waits_for;
    auto [found, is_new] = index.try_emplace(reason, waiting.size());
    if (is_new) waiting.push_back({reason, 0, tagged_name(task.name, task.tag)});
    waiting[found->second].tasks++;
  }
  std::ranges::stable_sort(waiting, [](const WaitingTasks& a, const WaitingTasks& b) {
    return a.reason.empty() == b.reason.empty() ? a.tasks > b.tasks : b.reason.empty();
  });
  return waiting;
}

std::string ClusterView::json() const {
  auto json_of = [](const auto& each) { return each.json(); };
  auto waiting_json = [](const WaitingTasks& each) {
    return fmt::format(R"({{"reason":{},"tasks":{},"first":{}}})",
                       each.reason.empty() ? "null" : text_to_json(each.reason), each.tasks,
                       text_to_json(each.first));
  };
  return fmt::format(
      R"({{"state":{},"at":{},"writer":{},"runs":{},"run":{},"waiting":{},"workers":{},"services":{}}})",
      text_to_json(state), text_to_json(format_time(at_ms)), has_writer, list_json(runs, json_of),
      run ? run->json() : "null", list_json(waiting, waiting_json), list_json(workers, json_of),
      list_json(services, json_of));
}

}  // namespace flow
