#include "engine/page/page_views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/page/page_json.hpp"
#include "engine/store/lock.hpp"
#include "flow/cost.hpp"

namespace flow {

namespace {

/// Prices of runs that were submitted without any, as `flow cost` has them.
CostOptions cost_options(const EngineOptions& options, const std::string& by) {
  CostOptions how;
  if (!by.empty()) how.by = by;
  how.config.files = find_config(options.working_directory);
  const char* profile = std::getenv("FLOW_PROFILE");
  if (profile != nullptr) how.config.profile = profile;
  return how;
}

/// `"rows":…,"cost":…`
std::string cost_fields(const EngineOptions& options, const CostOptions& how) {
  CostReport report = cost_report(options, how);
  size_t total = report.rows.size();
  report.rows.resize(std::min(total, kCostRowsMax));
  return fmt::format(R"("rows":{},"cost":{})", total, report.json());
}

}  // namespace

Result<std::string> page_cluster(const std::string& state_dir, GpuReadings& readings) {
  if (!state_is_locked(state_dir))
    return std::string(R"({"address":null,"nodes":[],"readings":{}})");
  client_protocol::ClientRequest request;
  request.mutable_list_workers();
  auto reply = send_to_writer(state_dir, request);
  FLOW_TRY(reply);
  if (reply->has_error()) return get_error(reply->error());
  const client_protocol::WorkerList& workers = reply->worker_list();
  std::string list;
  std::vector<Gpu> gpus;
  for (const NodeInfo& node : get_nodes(workers)) {
    list += (list.empty() ? "" : ",") + node.json();
    gpus.insert(gpus.end(), node.gpus.begin(), node.gpus.end());
  }
  return fmt::format(R"({{"address":{},"nodes":[{}],"readings":{}}})",
                     text_or_null_json(workers.address()), list,
                     gpus.empty() ? "{}" : readings.json(gpus));
}

std::string page_services(const EngineOptions& options) {
  Reader reader(options);
  std::string services, runs;
  std::set<std::string> versions;
  for (const ServiceInfo& service : reader.services()) {
    services += (services.empty() ? "" : ",") + service.json();
    if (!versions.insert(service.version).second) continue;
    runs += (runs.empty() ? "" : ",") + page_run_row(reader.show(service.version));
  }
  return fmt::format(R"({{"services":[{}],"runs":[{}]}})", services, runs);
}

std::string page_waiting(const StateFollower& state, size_t limit) {
  std::string list;
  size_t total = 0;
  for (const RunInfo& run : state.list()) {
    if (!is_active_status(run.status)) continue;
    for (const TaskInfo& task : state.show(run.id).tasks) {
      if (task.waits_for.empty() || total++ >= limit) continue;
      list += fmt::format(
          R"({}{{"run":{},"name":{},"task":{},"tag":{},"status":{},"waits_for":{}}})",
          list.empty() ? "" : ",", text_to_json(run.id),
          text_to_json(run.name.empty() ? run.pipeline : run.name), text_to_json(task.name),
          text_or_null_json(task.tag), text_to_json(task.status), text_to_json(task.waits_for));
    }
  }
  return fmt::format(R"({{"total":{},"tasks":[{}]}})", total, list);
}

std::string page_earlier_attempts(const EngineOptions& options, const std::string& run,
                                  const std::string& task, size_t limit) {
  return page_attempts(earlier_attempts(open_run(options, run), task, limit));
}

std::string page_cost(const EngineOptions& options, const std::string& run, const std::string& by) {
  RunInfo info = Reader(options).show(run);
  CostOptions how = cost_options(options, by);
  how.run = info.id;
  return fmt::format(R"({{"run":{},{}}})", page_run_row(std::move(info)),
                     cost_fields(options, how));
}

std::string page_costs(const EngineOptions& options, uint64_t since_s, const std::string& by) {
  constexpr int64_t kMsPerSecond = 1000;
  CostOptions how = cost_options(options, by);
  how.since_ms = std::max<int64_t>(now_ms() - static_cast<int64_t>(since_s) * kMsPerSecond, 1);
  return "{" + cost_fields(options, how) + "}";
}

}  // namespace flow
