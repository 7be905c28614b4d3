#include "engine/head/slurm_head.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "engine/base/address.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/log.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/head/membership.hpp"
#include "engine/sched/sched.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/requirements.hpp"

namespace flow {

namespace {

constexpr size_t kAddressMax = 1'024;
constexpr int64_t kFitsWithinMs = 10'000;

std::string folder_of(const std::string& dir) { return dir + "/slurm"; }
std::string address_path(const std::string& dir) { return folder_of(dir) + "/address"; }

Status check_slurm(const SlurmOptions& options) {
  FLOW_TRY(slurm::check(options));
  bool has_nodes = options.nodes > 0 || options.nodes_max > 0;
  if (has_nodes || !slurm_job_inside(options).empty()) return {};
  return user_error(
      "the number of nodes is missing: give `--nodes N`, or `--elastic MIN:MAX` for as many as the "
      "work needs. Neither is needed only inside an allocation");
}

SlurmOptions with_first_nodes(SlurmOptions options) {
  if (options.nodes_max > 0) options.nodes = std::max(options.nodes, options.nodes_min);
  return options;
}

Result<slurm::WorkerLaunch> launch_of(const EngineOptions& options, const std::string& dir,
                                      const std::string& head) {
  auto executor = find_executor(options);
  FLOW_TRY(executor);
  auto program = find_program(options, *executor);
  FLOW_TRY(program);
  slurm::WorkerLaunch launch;
  launch.program = *program;
  launch.head = head;
  std::string secret = options.secret_file.empty() ? secret_path(dir) : options.secret_file;
  launch.secret_file = std::filesystem::absolute(secret).lexically_normal().string();
  launch.folder = std::filesystem::absolute(folder_of(dir)).lexically_normal().string();
  launch.name = slurm::name_of_state(launch.folder);
  auto custom_resources = quantities_of(options.resources);
  FLOW_TRY(custom_resources);
  launch.custom_resources = std::move(*custom_resources);
  return launch;
}

uint64_t job_of(const core::WorkerInfo& info) {
  uint64_t job = 0;
  if (const std::string* label = label_of(info.labels, slurm::kJobLabel))
    std::from_chars(label->data(), label->data() + label->size(), job);
  return job;
}

}  // namespace

Result<SlurmRequest> slurm_request_of(const EngineOptions& options) {
  SlurmOptions requested = with_first_nodes(options.slurm.value_or(SlurmOptions{}));
  FLOW_TRY(check_slurm(requested));
  auto dir = find_state(options);
  FLOW_TRY(dir);
  std::string head = options.listen;
  if (head.empty()) {
    auto own = own_address();
    FLOW_TRY(own);
    head = address_text({*own, 0});
  }
  auto launch = launch_of(options, *dir, head);
  FLOW_TRY(launch);
  std::string inside = slurm_job_inside(requested);
  int32_t nodes = requested.nodes_max > 0 ? 1 : requested.nodes;
  slurm::CommandLine command = inside.empty() ? slurm::sbatch_command(requested, *launch, nodes)
                                              : step_command(*launch, inside);
  return SlurmRequest{slurm::text_of(command), slurm::job_script(requested, *launch)};
}

Result<std::pair<std::string, std::string>> address_to_listen_at(const EngineOptions& options,
                                                                 const std::string& dir) {
  if (!options.slurm) {
    auto listen = numeric_address(options.listen.empty() ? "127.0.0.1:0" : options.listen);
    FLOW_TRY(listen);
    return std::pair(*listen, std::string());
  }
  FLOW_TRY(check_slurm(*options.slurm));
  Address address;
  if (options.listen.empty()) {
    auto own = own_address();
    FLOW_TRY(own);
    address.host = *own;
  } else {
    auto numeric = numeric_address(options.listen);
    FLOW_TRY(numeric);
    auto given = parse_address(*numeric);
    FLOW_TRY(given);
    address = *given;
  }
  std::string text = address_text(address);
  auto earlier = read_file(address_path(dir), kAddressMax);
  if (address.port != 0 || !earlier.ok()) return std::pair(text, std::string());
  auto before = parse_address(*earlier);
  bool may_listen_there = before.ok() && before->host == address.host;
  return may_listen_there ? std::pair(*earlier, text) : std::pair(text, std::string());
}

Result<std::unique_ptr<SlurmHead>> SlurmHead::start(const EngineOptions& options,
                                                    const std::string& dir,
                                                    const std::string& listens_at,
                                                    EngineLoop& engine_loop, RunEngine& engine) {
  auto reached = address_for_others(listens_at);
  FLOW_TRY(reached);
  std::string head = *reached;
  FLOW_TRY(make_dirs(folder_of(dir)));
  FLOW_TRY(write_file_atomic(address_path(dir), head));
  auto launch = launch_of(options, dir, head);
  FLOW_TRY(launch);
  std::unique_ptr<SlurmHead> made(new SlurmHead(*options.slurm, engine_loop, engine));
  AutoscalerCallbacks user;
  user.view = [self = made.get()] { return self->view_of_nodes(); };
  user.drain = [&engine_loop](const std::string& node) {
    engine_loop.parts().membership.drain(node, "it was idle");
  };
  user.note = [&engine](const std::string& text) { engine.warn_all(text); };
  user.status = [&engine_loop](const std::string& text) {
    engine_loop.put_metadata(launcher_key(), text);
  };
  user.on_no_more_nodes = [&engine_loop] { engine_loop.parts().membership.announce(0); };
  user.on_failed = [&engine_loop, &engine](const Error& why) {
    engine_loop.put_metadata(launcher_key(), why.message);
    engine.interrupt_runs(why);
  };
  SlurmOptions requested = with_first_nodes(*options.slurm);
  auto started =
      SlurmAutoscaler::start(requested, *launch, slurm_job_inside(requested), std::move(user));
  FLOW_TRY(started);
  made->autoscaler_ = std::move(*started);
  return made;
}

slurm::ClusterView SlurmHead::view_of_nodes() {
  slurm::ClusterView view;
  bool has_busy_worker = false, has_worker = false, has_all_workers = false;
  engine_loop_.inspect([&](const core::State& state, InputResolver&) {
    view.has_work =
        std::any_of(state.ready.begin(), state.ready.end(),
                    [](const core::ReadyHead& head) { return !head.request.is_head_only; });
    for (size_t i = 1; i < state.workers.size(); i++) {
      const core::WorkerState& worker = state.workers[i];
      bool is_busy = !(worker.free == core::all_free(worker.info));
      has_busy_worker = has_busy_worker || is_busy;
      has_worker = has_worker || (worker.is_up && !worker.is_draining);
      uint64_t job = job_of(worker.info);
      if (job == 0) continue;
      if (worker.is_up) like_ = core::without_faults(worker.info);
      view.nodes.push_back(
          {worker.info.name, job, worker.is_up, worker.is_draining, is_busy, worker.is_lost()});
    }
    has_all_workers = core::missing_workers(state) == 0 || options_.nodes_max > 0;
    auto most = static_cast<uint32_t>(std::max(0, options_.nodes_max));
    view.more = static_cast<int32_t>(core::scale_up_demand(state, like_, most));
  });
  warn_if_nothing_fits(view.has_work && has_worker && has_all_workers && !has_busy_worker &&
                       view.more == 0);
  view.has_work = view.has_work || has_busy_worker;
  return view;
}

// Warns once per cause: ready tasks that fit are placed immediately.
void SlurmHead::warn_if_nothing_fits(bool nothing_runs) {
  int64_t now = since_boot_ms();
  if (!nothing_runs) {
    nothing_fits_ms_ = 0;
  } else if (nothing_fits_ms_ == 0) {
    nothing_fits_ms_ = now;
  } else if (nothing_fits_ms_ > 0 && now - nothing_fits_ms_ >= kFitsWithinMs) {
    nothing_fits_ms_ = -1;
    constexpr const char* kText =
        "the waiting tasks fit on none of Slurm's nodes, and nothing else runs there: the "
        "allocation is not used. `flow why` shows what a task lacks; Ctrl-C releases the nodes";
    log::warning("Slurm nodes not used", {.detail = kText});
    engine_.warn_all(kText);
  }
}

SlurmHead::~SlurmHead() {
  if (!autoscaler_) return;
  autoscaler_.reset();
  for (const slurm::SlurmNode& node : view_of_nodes().nodes) {
    engine_loop_.parts().membership.drain(node.name, "the run has ended");
    engine_loop_.parts().membership.lose(node.name, "its node was released");
  }
  engine_loop_.inspect([](const core::State&, InputResolver&) {});  // until the change is committed
}

}  // namespace flow
