// flow::Reader: reads a state without its lock, also while another process writes it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "engine/base/throwing.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/query/active_services.hpp"
#include "engine/query/export_folders.hpp"
#include "engine/query/export_result.hpp"
#include "engine/query/plan_preview.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/run_logs.hpp"
#include "engine/query/run_metrics.hpp"
#include "engine/query/tensorboard.hpp"
#include "engine/query/upload_result.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/lock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/requirements.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/submission/task_configuration.hpp"

namespace flow {

namespace fs = std::filesystem;

const char* kind_name(TaskKind kind) {
  switch (kind) {
    case TaskKind::lua:
      return "task";
    case TaskKind::shell:
      return "shell";
    case TaskKind::dynamic:
      return "dynamic";
    case TaskKind::service:
      return "service";
    case TaskKind::native:
      return "native";
  }
  return "task";
}

PlanInfo plan_info(const Plan& plan) {
  PlanInfo info;
  info.pipeline = plan.pipeline;
  info.warnings = plan.warnings;
  info.printed = plan.printed;
  for (const TaskNode& node : plan.nodes) {
    PlanNode out;
    out.name = node.name;
    out.tag = node.detail().tag;
    if (node.kind == NodeKind::when) {
      out.kind = "when";
    } else {
      out.task = plan.defs[node.def].name;
      out.kind = node.kind == NodeKind::map ? "map" : kind_name(plan.defs[node.def].kind);
    }
    for (uint32_t need : data_dependencies(node)) out.needs.push_back(plan.nodes[need].name);
    if (node.kind == NodeKind::when) {
      for (const Value* branch : {&node.detail().then_value, &node.detail().else_value}) {
        for (uint32_t need : refs_of(*branch)) out.needs.push_back(plan.nodes[need].name);
      }
    }
    for (uint32_t before : node.detail().after) out.after.push_back(plan.nodes[before].name);
    if (node.guard.when != kNoNode) out.after.push_back(plan.nodes[node.guard.when].name);
    info.nodes.push_back(std::move(out));
  }
  return info;
}

struct ReaderImpl : OpenedState {
  EngineOptions options;

  InputResolver resolver() const {
    return InputResolver([this](const Digest& digest) { return blobs->get(digest); });
  }
};

OpenedState open_state(const EngineOptions& options) {
  OpenedState state;
  state.dir = value_or_throw(find_state(options));
  ok_or_throw(readable_state(state.dir));
  std::error_code failed;
  if (!fs::exists(fs::path(state.dir) / "db", failed)) return state;  // no run yet
  state.had_writer = state_is_locked(state.dir);
  StoreOptions store;
  store.read_only = true;
  state.store = value_or_throw(open_store(state.dir, store));
  state.blobs = std::make_shared<Blobs>(*state.store, state.dir);
  return state;
}

RunRecord current_record(const OpenedState& state, RunRecord record) {
  bool is_live = record.status == "pending" || record.status == "running" ||
                 record.status == "serving" || record.status == "waiting";
  if (is_live && !state.had_writer) record.status = "interrupted";
  return record;
}

namespace {

std::unique_ptr<ReaderImpl> open_reader(const EngineOptions& options) {
  auto impl = std::make_unique<ReaderImpl>();
  static_cast<OpenedState&>(*impl) = open_state(options);
  impl->options = options;
  return impl;
}

}  // namespace

Reader::Reader(const EngineOptions& options) : impl_(open_reader(options)) {}

Reader::~Reader() = default;

const std::string& Reader::state_dir() const { return impl_->dir; }

namespace {

struct Served {
  std::string url;
  std::vector<ServiceInfo> services;
};

/// A run's row is written when its status changes. Its later progress is in the journal, which is
/// replayed once for all runs. Returns what the runs serve, by run.
std::map<std::string, Served> count_unfinished(const OpenedState& opened,
                                               std::vector<RunRecord>& records) {
  std::map<std::string, Served> served;
  auto is_unfinished = [](const RunRecord& record) { return !is_over(record.status); };
  if (std::ranges::none_of(records, is_unfinished)) return served;
  std::shared_ptr<core::State> state = opened.followed;
  if (state == nullptr)
    state = std::make_shared<core::State>(value_or_throw(recover(*opened.store, *opened.blobs)));
  for (RunRecord& record : records) {
    auto run = state->runs.find(record.id);
    if (!is_unfinished(record) || run == state->runs.end()) continue;
    update_record(run->second, record);
    served[record.id] = {url_of(run->second), services_of(run->second, state.get())};
  }
  return served;
}

}  // namespace

std::vector<RunInfo> Reader::list(bool results) const { return list_runs(*impl_, results); }

std::vector<RunInfo> list_runs(const OpenedState& state, bool results) {
  std::vector<RunInfo> out;
  if (!state.store) return out;
  std::vector<RunRecord> records = value_or_throw(all_records(*state.store));
  auto served = count_unfinished(state, records);
  for (RunRecord& record_with_counts : records) {
    RunRecord record = current_record(state, std::move(record_with_counts));
    // One per run, because it holds the values that it read.
    InputResolver resolver([&](const Digest& digest) { return state.blobs->get(digest); });
    out.push_back(results ? summary_of_record(record, resolver) : info_of_record(record));
    if (is_over(record.status) || record.status == "interrupted") continue;
    out.back().url = std::move(served[record.id].url);
    out.back().services = std::move(served[record.id].services);
  }
  return out;
}

std::vector<std::string> Reader::left_runs() const {
  if (!impl_->store || impl_->had_writer) return {};
  core::State state = value_or_throw(recover(*impl_->store, *impl_->blobs));
  return value_or_throw(flow::left_runs(state, *impl_->store, false));
}

std::vector<ServiceInfo> Reader::services() const {
  const OpenedState& opened = *impl_;
  if (!opened.store) return {};
  std::vector<RunRecord> records = value_or_throw(all_records(*opened.store));
  if (std::ranges::all_of(records, [](const auto& each) { return is_over(each.status); }))
    return {};
  core::State state = value_or_throw(recover(*opened.store, *opened.blobs));
  for (RunRecord& record : records) {
    auto run = state.runs.find(record.id);
    if (run != state.runs.end()) update_record(run->second, record);
    record = current_record(opened, std::move(record));
  }
  auto ask = [](const std::string& folder) { return front_status(folder); };
  return active_services(state, records, opened.dir, ask, [&opened](const std::string& run) {
    return why_not_resumed(*opened.store, run);
  });
}

namespace {

/// Whether the unit would make progress without an external event if its run were executed.
bool is_proceeding(core::Phase phase) {
  switch (phase) {
    case core::Phase::resolving:
    case core::Phase::gathering:
    case core::Phase::sizing:
    case core::Phase::coalesced:
    case core::Phase::ready:
    case core::Phase::backoff:
      return true;
    default:
      return false;
  }
}

/// Changes the run to what the next writer will recover: no unit holds resources, and units that
/// would make progress are parked. The statuses of units do not change.
void park(core::Run& run) {
  run.status = core::RunStatus::interrupted;
  for (core::Unit& unit : run.units)
    if (is_proceeding(unit.phase)) unit.phase = core::Phase::parked;
}

LoadedRun load(const OpenedState& state, const RunRecord& record) {
  // An interrupted run is changed afterwards.
  if (state.followed != nullptr && record.status != "interrupted") {
    auto run = state.followed->runs.find(record.id);
    if (run != state.followed->runs.end()) return {record, state.followed, &run->second};
  }
  return value_or_throw(load_run(*state.store, *state.blobs, record));
}

LoadedRun selected(const OpenedState& state, const std::string& selector) {
  if (!state.store) {
    throw Failed(user_error(fmt::format(
        "there is no run in the state `{}` yet: start one with `flow run FILE`", state.dir)));
  }
  RunRecord record = current_record(state, value_or_throw(select_record(*state.store, selector)));
  LoadedRun loaded = load(state, record);
  if (loaded.run != nullptr && record.status == "interrupted")
    park(loaded.state->runs.at(loaded.run->id));
  return loaded;
}

void need_tasks(const LoadedRun& loaded) {
  if (loaded.run == nullptr)
    throw Failed(
        user_error(fmt::format("the tasks of the run {} were collected by gc", loaded.record.id)));
}

}  // namespace

OpenedRun open_run(const EngineOptions& options, const std::string& selector) {
  std::unique_ptr<ReaderImpl> impl = open_reader(options);
  LoadedRun loaded = selected(*impl, selector);
  need_tasks(loaded);
  return {impl->dir, impl->store, impl->blobs, std::move(loaded)};
}

RunInfo Reader::show(const std::string& selector) const { return show_run(*impl_, selector); }

SummarizedRun summarize_run(const OpenedState& state, const std::string& selector) {
  SummarizedRun summarized{{}, selected(state, selector)};
  LoadedRun& loaded = summarized.loaded;
  RunInfo& info = summarized.info;
  if (loaded.run == nullptr) {
    info = info_of_record(loaded.record);
    return summarized;
  }
  InputResolver resolver([&](const Digest& digest) { return state.blobs->get(digest); });
  info = summary_of_run(*loaded.run, loaded.record, resolver, loaded.state.get());
  for (ServiceInfo& service : info.services)
    add_front_facts(
        state.dir, [](const std::string& folder) { return front_status(folder); }, service);
  if (loaded.record.status == "interrupted") {
    info.status = loaded.record.status;
    info.url.clear();  // its services ended with the process
    info.rollover = {};
    info.not_resumed = why_not_resumed(*state.store, info.id);
  }
  return summarized;
}

RunInfo show_run(const OpenedState& state, const std::string& selector) {
  auto [info, loaded] = summarize_run(state, selector);
  if (loaded.run == nullptr) return info;
  info.tasks = tasks_of(*loaded.run, loaded.state.get());
  if (loaded.record.status == "interrupted")
    for (TaskInfo& task : info.tasks) task.url.clear();
  return info;
}

std::vector<LogLine> Reader::logs(const std::string& selector,
                                  const std::string& task_at_attempt) const {
  LoadedRun loaded = selected(*impl_, selector);
  need_tasks(loaded);
  std::vector<LogLine> lines;
  visit_log_lines(*impl_->store, *impl_->blobs, loaded, task_at_attempt,
                  [&](LogLine line) { lines.push_back(std::move(line)); });
  std::stable_sort(lines.begin(), lines.end(),
                   [](const LogLine& a, const LogLine& b) { return a.at_ms < b.at_ms; });
  return lines;
}

std::vector<MetricSeries> Reader::metrics(const std::string& selector, const std::string& task,
                                          const std::string& metric) const {
  return metrics_of_run(*impl_, selector, task, metric);
}

std::vector<MetricSeries> metrics_of_run(const OpenedState& state, const std::string& selector,
                                         const std::string& task, const std::string& metric) {
  LoadedRun loaded = selected(state, selector);
  need_tasks(loaded);
  auto series = value_or_throw(metrics_of(*state.store, *loaded.run, task, metric));
  if (!series.empty() || metric.empty()) return series;
  std::string where = task.empty() ? "" : fmt::format("`{}` of ", task);
  throw Failed(unknown_metric(fmt::format("{}the run {}", where, loaded.run->id), metric,
                              value_or_throw(metrics_of(*state.store, *loaded.run, task, ""))));
}

std::vector<std::string> Reader::write_tensorboard(const std::string& directory,
                                                   const std::string& selector,
                                                   const std::string& task,
                                                   const std::string& metric) const {
  std::vector<MetricSeries> series = metrics(selector, task, metric);
  return write_tensorboard_files(directory, info_of_record(selected(*impl_, selector).record),
                                 series);
}

std::vector<ComparedRun> Reader::compare(const std::vector<std::string>& selectors,
                                         const std::string& metric, const std::string& task) const {
  std::vector<ComparedRun> runs;
  std::vector<MetricSeries> others;
  std::optional<Error> unknown_task;
  bool has_metric = metric.empty(), has_task = task.empty();
  for (const std::string& selector : selectors) {
    LoadedRun loaded = selected(*impl_, selector);
    need_tasks(loaded);
    ComparedRun compared{info_of_record(loaded.record), {}, {}};
    auto unit = task.empty() ? Result<core::UnitId>(kNoNode) : find_unit(*loaded.run, task);
    if (!unit.ok()) unknown_task = unit.error();
    has_task = has_task || unit.ok();
    std::vector<MetricSeries> all;
    if (unit.ok()) all = value_or_throw(metrics_of(*impl_->store, *loaded.run, task, ""));
    for (MetricSeries& series : all) {
      bool is_asked = metric.empty() || series.metric == metric;
      has_metric = has_metric || is_asked;
      (is_asked ? compared.series : others).push_back(std::move(series));
    }
    runs.push_back(std::move(compared));
  }
  if (!has_task && unknown_task) throw Failed(*unknown_task);
  if (!has_metric) throw Failed(unknown_metric("none of these runs", metric, others));
  keep_differing_params(runs);
  return runs;
}

std::string Reader::why(const std::string& selector, const std::string& task,
                        const ExplainOptions& options) const {
  LoadedRun loaded = selected(*impl_, selector);
  need_tasks(loaded);
  InputResolver resolver = impl_->resolver();
  if (task.empty()) return explain_run(*impl_->store, *impl_->blobs, loaded, resolver, options);
  return explain_task(*impl_->store, *impl_->blobs, loaded,
                      value_or_throw(find_unit(*loaded.run, task)), resolver, options);
}

std::string Reader::diff(const std::string& a, const std::string& b,
                         const ExplainOptions& options) const {
  LoadedRun before = selected(*impl_, a), now = selected(*impl_, b);
  need_tasks(before);
  need_tasks(now);
  InputResolver resolver = impl_->resolver();
  return diff_runs(*impl_->blobs, before, now, resolver, options);
}

PlanInfo Reader::graph(const std::string& selector) const { return graph_of_run(*impl_, selector); }

PlanInfo graph_of_run(const OpenedState& state, const std::string& selector) {
  LoadedRun loaded = selected(state, selector);
  need_tasks(loaded);
  return plan_info(*loaded.run->plan);
}

PlanInfo Reader::plan(const std::string& script, const RunOptions& options) const {
  Submission submission = value_or_throw(make_submission(impl_->options, options));
  submission.script = script;
  OfflinePreviewOptions preview;
  preview.state_dir = impl_->dir;
  preview.executor = value_or_throw(find_executor(impl_->options));
  preview.machine.jobs = jobs_of(impl_->options);
  preview.machine.custom_resources = value_or_throw(quantities_of(impl_->options.resources));
  const auto& slurm = impl_->options.slurm;
  if (slurm) preview.requested_nodes = requested_nodes_of(*slurm, preview.machine.custom_resources);
  return value_or_throw(plan_preview_offline(preview, impl_->store.get(), submission));
}

std::vector<ConfigValue> Reader::config(const std::string& selector, std::string& profile) const {
  profile.clear();
  if (!impl_->store) return {};
  RunRecord record = value_or_throw(select_record(*impl_->store, selector));
  return values_of_kept(value_or_throw(inputs_of(*impl_->store, record.id)).config, profile);
}

uint64_t Reader::state_bytes() const { return impl_->store ? impl_->store->bytes() : 0; }

namespace {

/// "model.weights[1]" as steps.
std::vector<PathStep> parse_value_path(const std::string& part) {
  std::vector<PathStep> steps;
  size_t at = 0;
  while (at < part.size()) {
    if (part[at] == '.') at++;
    PathStep step;
    if (at < part.size() && part[at] == '[') {
      size_t close = part.find(']', at);
      if (close == std::string::npos)
        throw Failed(
            user_error(fmt::format("`{}` is not a part of a result: a `[` has no `]`", part)));
      std::string inside = part.substr(at + 1, close - at - 1);
      auto key = from_json(inside);
      step.key = key.ok() ? *key : Value(inside);
      at = close + 1;
    } else {
      size_t end = part.find_first_of(".[", at);
      if (end == std::string::npos) end = part.size();
      std::string name = part.substr(at, end - at);
      bool digits = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos &&
                    name.size() < 18;
      step.key = digits ? Value(int64_t{std::stoll(name)}) : Value(name);
      at = end;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace

Value Reader::value(const std::string& selector, const std::string& part) const {
  LoadedRun loaded = selected(*impl_, selector);
  need_tasks(loaded);
  if (!loaded.run->has_result) {
    throw Failed(user_error(fmt::format("the run {} has no result yet: it is {}", loaded.record.id,
                                        loaded.record.status)));
  }
  InputResolver resolver = impl_->resolver();
  Value result = *value_or_throw(resolver.value(loaded.run->result));
  if (part.empty()) return result;
  auto found = value_at(result, parse_value_path(part));
  if (!found.ok())
    throw Failed(user_error(found.error().message));  // the name is from the command line
  return std::move(*found);
}

std::vector<std::string> Reader::get(const std::string& selector, const std::string& part,
                                     const std::string& directory) const {
  std::vector<std::string> folders;
  if (part.empty()) folders = get_folders(selector);
  return export_to_target(directory, state_dir(), [&](const std::string& folder) {
    return export_result(*impl_->blobs, value(selector, part), part, folder, folders);
  });
}

std::vector<std::string> Reader::get_folders(const std::string& selector) const {
  LoadedRun loaded = selected(*impl_, selector);
  need_tasks(loaded);
  if (!loaded.run->has_result) return {};
  InputResolver resolver = impl_->resolver();
  return export_folders(*loaded.run, *value_or_throw(resolver.value(loaded.run->result)));
}

}  // namespace flow
