#include "engine/query/measured_services.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/throwing.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/front_folder.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/run_info.hpp"

namespace flow {

std::vector<ServiceInfo> services_of_state(const OpenedState& opened, const AskFront& ask) {
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
  return active_services(state, records, opened.dir, ask, [&opened](const std::string& run) {
    return why_not_resumed(*opened.store, run);
  });
}

MeasuredService measured_service(ServiceInfo info, const front::Status* front) {
  MeasuredService measured{std::move(info), {}};
  if (front == nullptr) return measured;
  for (const front::VersionStatus& version : front->versions())
    if (version.version() == measured.info.version)
      for (const front::DurationBucket& bucket : version.durations())
        measured.durations.push_back({bucket.up_to_us(), bucket.requests()});
  return measured;
}

std::vector<MeasuredService> measured_services(const EngineOptions& options) {
  OpenedState opened = open_state(options);
  std::map<std::string, front::Status> fronts;  // by folder
  auto ask = [&fronts](const std::string& folder) {
    auto status = front_status(folder);
    if (status.ok()) fronts[folder] = *status;
    return status;
  };
  std::vector<MeasuredService> measured;
  for (ServiceInfo& service : services_of_state(opened, ask)) {
    const std::string& name = service.name.empty() ? service.version : service.name;
    auto front = fronts.find(front_folder(opened.dir, name, service.service));
    const front::Status* status = front == fronts.end() ? nullptr : &front->second;
    measured.push_back(measured_service(std::move(service), status));
  }
  return measured;
}

}  // namespace flow
