// Resumes orphaned runs without a request, and reports what has changed since a run was started.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "engine/api/local_engine.hpp"
#include "engine/base/log.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/front_folder.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/run_inputs.hpp"

namespace flow {

namespace {

/// Writes the warnings of a run without a listener to the log.
void log_events(detail::RunHandle& state) {
  std::lock_guard lock(state.mutex);
  for (const Event& event : state.events)
    if (event.type == "warning")
      log::warning("run resumed with a warning", {.run = state.id, .detail = event.text});
}

}  // namespace

// ---- without a request

// The oldest first: a version that serves a name before the one that is to take it over. If the
// caller resumes the older one itself, the newer ones wait for that.
void LocalEngine::resume_left_runs() {
  // A state with workers that wait for their own head: only that head may adopt the attempts.
  if (!options_.resume_detached || !busy_elsewhere_.empty()) return;
  const Store& store = engine_loop_->parts().store;
  Result<std::vector<RunId>> left = std::vector<RunId>();
  engine_loop_->inspect(
      [&](const core::State& state, InputResolver&) { left = left_runs(state, store, is_head()); });
  const RunId& except = options_.resume_except;
  for (const RunId& id : value_or_throw(std::move(left))) {
    if (id == except) continue;
    if (!except.empty() && except < id && have_same_name(except, id))
      postponed_.push_back(id);
    else
      (void)resume_unattended(id);  // the error is kept
  }
}

bool LocalEngine::have_same_name(const RunId& one, const RunId& other) {
  bool have = false;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto a = state.runs.find(one), b = state.runs.find(other);
    have = a != state.runs.end() && b != state.runs.end() && !a->second.name.empty() &&
           a->second.name == b->second.name;
  });
  return have;
}

std::shared_ptr<detail::RunHandle> LocalEngine::resume_first(const std::string& selector,
                                                             const std::string& task,
                                                             Resumption how,
                                                             const Submission& from) {
  auto resume_others = [this] {
    std::vector<RunId> others;
    {
      std::lock_guard lock(postponed_mutex_);
      others.swap(postponed_);
    }
    for (const RunId& id : others) (void)resume_unattended(id);
  };
  std::shared_ptr<detail::RunHandle> run;
  try {
    run = resume_for(selector, task, how, from);
  } catch (const Failed&) {
    resume_others();
    throw;
  }
  resume_others();
  return run;
}

Status LocalEngine::resume_unattended(const RunId& id) {
  RunOptions options;
  options.detached = true;
  try {
    Submission submission = local_submission(options);
    submission.is_unattended = true;
    log_events(*resume_for(id, "", Resumption::resume, submission));
    return {};
  } catch (const Failed& failed) {
    const std::string& why = failed.error.message;
    auto row = find_detached_run(engine_loop_->parts().store, id);
    if (row.ok() && *row && (*row)->is_detached) {
      (*row)->problem = why;
      engine_loop_->put_metadata(detached_key(id), encode_detached_run(**row));
    }
    log::warning("run not resumed", {.run = id, .detail = why});
    std::fprintf(stderr,
                 "flow: the run %s is not resumed: %s\n`flow resume %s --detach` resumes it when "
                 "that is solved, `flow cancel %s` ends it for good\n",
                 id.c_str(), why.c_str(), id.c_str(), id.c_str());
    return failed.error;
  }
}

// Otherwise a new version would find no other one at work, and would have no canary.
Status LocalEngine::adopt_serving_version(const std::string& name, const RunId& other) {
  if (name.empty() || !options_.resume_detached) return {};
  EngineComponents& parts = engine_loop_->parts();
  std::optional<RunId> left;
  std::vector<std::string> folders;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    for (const auto& [id, run] : state.runs) {
      bool serves = run.name == name && id != other && should_continue(run) && run.stopping &&
                    run.rollover.phase == core::RolloverPhase::done;
      if (!serves || parts.active_runs.contains(id) || id == options_.resume_except) continue;
      left = id;
      for (core::UnitId service : run.services)
        folders.push_back(front_folder(parts.options.state_dir, run, service));
    }
  });
  if (!left) return {};
  bool is_served = std::ranges::any_of(folders, [&](const std::string& folder) {
    auto status = front_status(folder);
    return status.ok() && std::ranges::any_of(status->versions(), [&](const auto& version) {
             return version.version() == *left && version.replicas_size() > 0;
           });
  });
  if (!is_served) return {};
  Status resumed = resume_unattended(*left);
  bool goes_on = resumed.ok();
  if (!goes_on)  // the client that it was executed for may have resumed it meanwhile
    engine_loop_->inspect([&](const core::State& state, InputResolver&) {
      auto run = state.runs.find(*left);
      goes_on =
          run != state.runs.end() && !run->second.stopping && parts.active_runs.contains(*left);
    });
  if (goes_on) return {};
  return Error{resumed.error().kind,
               fmt::format("the run {} serves `{}`, but nothing executes it, and it cannot be "
                           "resumed: {}. So there would be no canary beside it: the new version "
                           "would have all traffic at once. Resume it first: `flow resume {} "
                           "--detach`; or end it, and the name is not served until the new version "
                           "is ready: `flow cancel {}`; or give the services of the new version no "
                           "`canary`, or `rollover = \"replace\"`",
                           *left, name, resumed.error().message, *left, *left)};
}

namespace {

/// The fronts of services that the run had, and that are not in its new plan.
std::vector<std::string> fronts_of_removed(const core::Run& run, const Plan& plan,
                                           const std::string& state_dir) {
  auto is_kept = [&](const TaskNode& before) {
    return std::ranges::any_of(plan.nodes, [&](const TaskNode& node) {
      bool is_service =
          node.kind != NodeKind::when && plan.defs[node.def].kind == TaskKind::service;
      return is_service && node.name == before.name && node.kind == before.kind;
    });
  };
  std::vector<std::string> folders;
  for (core::UnitId service : run.services) {
    if (is_kept(run.node(run.units[service].node))) continue;
    std::string folder = front_folder(state_dir, run, service);
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(std::move(folder));
  }
  return folders;
}

bool serves_at(const std::string& folder, const RunId& version) {
  auto status = front_status(folder);
  return status.ok() && std::ranges::any_of(status->versions(), [&](const auto& each) {
           return each.version() == version;
         });
}

}  // namespace

// Services continue without an engine, and one that replaces such a service may need its port.
void LocalEngine::end_removed_services(const RunId& id, const Plan& plan) {
  constexpr int64_t kDrainMs = 10'000;
  constexpr std::chrono::seconds kEndMax{20};
  constexpr std::chrono::milliseconds kPause{20};
  EngineComponents& parts = engine_loop_->parts();
  std::vector<std::string> folders;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    bool is_left = run != state.runs.end() && !parts.active_runs.contains(id);
    if (is_left) folders = fronts_of_removed(run->second, plan, parts.options.state_dir);
  });
  for (const std::string& folder : folders) {
    auto client = FrontClient::connect(folder);
    if (client.ok()) (void)client->forget(id, kDrainMs);
  }
  const auto until = std::chrono::steady_clock::now() + kEndMax;
  auto any_serves = [&] {
    return std::ranges::any_of(folders, [&](const auto& folder) { return serves_at(folder, id); });
  };
  while (any_serves() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kPause);
}

Status LocalEngine::check_canary(const Status& adopted, const Plan& plan) {
  bool has_canary = std::ranges::any_of(plan.defs, [](const TaskDef& def) {
    const CanarySpec& canary = def.service.canary;
    return !canary.percents.empty() && !canary.is_skipped && !def.service.rolls_by_replacing;
  });
  return has_canary ? adopted : Status();
}

std::vector<RunId> LocalEngine::unattended_runs() const {
  std::vector<RunId> runs;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    ActiveRuns& active = engine_loop_->parts().active_runs;
    for (const auto& [id, run] : state.runs) {
      const RunContext* context = active.find(id);
      if (context != nullptr && context->is_unattended && !active.is_at_rest(id))
        runs.push_back(id);
    }
  });
  return runs;
}

uint32_t LocalEngine::client_runs() const {
  return server_->client_runs() + static_cast<uint32_t>(unattended_runs().size());
}

void LocalEngine::wait_for_clients() {
  server_->wait_for_clients();
  for (auto runs = unattended_runs(); !runs.empty(); runs = unattended_runs()) {
    if (!engine_loop_->watch_rest(runs.front())->wait()) return;  // the engine has stopped
    server_->wait_for_clients();
  }
}

// ---- what has changed

namespace {

/// "`a`, `b` and 2 more inputs", with paths relative to `directory`.
std::string names_of(const std::vector<std::string>& paths, const std::string& directory) {
  constexpr size_t kNamedMax = 3;
  std::string names;
  for (size_t i = 0; i < std::min(paths.size(), kNamedMax); i++) {
    auto path = std::filesystem::path(paths[i]).lexically_relative(directory);
    bool is_below = !path.empty() && *path.begin() != "..";
    names += (names.empty() ? "`" : ", `") + (is_below ? path.string() : paths[i]) + "`";
  }
  if (paths.size() > kNamedMax)
    names += fmt::format(" and {} more inputs", paths.size() - kNamedMax);
  return names;
}

}  // namespace

void LocalEngine::report_changed_inputs(detail::RunHandle& state, const RunRecord& record) const {
  Inputs inputs = value_or_throw(inputs_of(engine_loop_->parts().store, record.id));
  const auto [changed, lost, unkept] =
      compare_inputs(inputs, engine_loop_->parts().store, engine_loop_->parts().blobs);
  if (!lost.empty())
    state.report(
        "warning",
        fmt::format(
            "the state lost its copy of {}, and no file has that content any more: tasks that need "
            "it fail. `flow resume {} --code new` uses the current content and the current script.",
            names_of(lost, record.directory), record.id));
  if (!unkept.empty())
    state.report(
        "warning",
        fmt::format("{} {} from what the run was started with, or can't be read any more. "
                    "Inputs over 64 MiB are read in place and not copied into the state: tasks "
                    "that still need the old content fail. `flow resume {} --code new` uses the "
                    "current content and the current script.",
                    names_of(unkept, record.directory), unkept.size() == 1 ? "differs" : "differ",
                    record.id));
  if (changed.empty()) return;
  state.report(
      "warning",
      fmt::format(
          "{} {} from what the run was started with; the run continues with the content that it "
          "read then. `flow resume {} --code new` uses the new content and the current script.",
          names_of(changed, record.directory), changed.size() == 1 ? "differs" : "differ",
          record.id));
}

}  // namespace flow
