#include "engine/query/active_services.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/runs/front_folder.hpp"
#include "engine/runs/run_info.hpp"

namespace flow {

namespace {

/// Asks each front once.
class FrontStatuses {
 public:
  explicit FrontStatuses(const AskFront& ask) : ask_(ask) {}
  /// Null if the front does not answer.
  const front::Status* of(const std::string& folder) {
    auto [found, is_new] = statuses_.try_emplace(folder);
    if (is_new) {
      auto status = ask_(folder);
      if (status.ok()) found->second = std::move(*status);
    }
    return found->second ? &*found->second : nullptr;
  }

 private:
  const AskFront& ask_;
  std::map<std::string, std::optional<front::Status>> statuses_;  // by folder
};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// The replica as its front sees it.
void update_replica(const front::ReplicaStatus& from, ReplicaInfo& replica) {
  replica.name = from.replica();
  replica.pid = from.pid();
  replica.status = from.is_leaving() ? "leaving" : from.is_busy() ? "busy" : "ready";
  if (replica.worker.empty()) replica.worker = from.worker();
  if (replica.gpus.empty()) replica.gpus = split_at_commas(from.gpus());
}

std::vector<LatencyBucket> latency_of(const front::VersionStatus& version) {
  std::vector<LatencyBucket> latency;
  for (const front::DurationBucket& bucket : version.durations())
    latency.push_back({bucket.up_to_us(), bucket.requests()});
  return latency;
}

void add_version(const front::Status& front, const front::VersionStatus& version,
                 ServiceInfo& service) {
  service.url = front.url();
  service.access_log = front.access_log();
  service.traffic = {front.is_ready(),   front.is_draining(), version.percent(),
                     version.requests(), version.errors(),    version.requests_per_second(),
                     version.p50_us(),   version.p99_us(),    version.queued(),
                     version.running(),  version.queue_us(),  version.refused(),
                     latency_of(version)};
  for (const front::ReplicaStatus& each : version.replicas()) {
    auto known = std::ranges::find(service.replicas, each.replica(), &ReplicaInfo::name);
    update_replica(each,
                   known == service.replicas.end() ? service.replicas.emplace_back() : *known);
  }
}

const front::VersionStatus* version_of(const front::Status& front, const std::string& run) {
  auto version = std::ranges::find_if(front.versions(),
                                      [&](const auto& each) { return each.version() == run; });
  return version == front.versions().end() ? nullptr : &*version;
}

std::string folder_of(const std::string& state_dir, const std::string& name, const std::string& run,
                      const std::string& service) {
  return front_folder(state_dir, name.empty() ? run : name, service);
}

}  // namespace

void add_front_facts(const std::string& state_dir, const AskFront& ask, ServiceInfo& service) {
  auto front = ask(folder_of(state_dir, service.name, service.version, service.service));
  const front::VersionStatus* version = front.ok() ? version_of(*front, service.version) : nullptr;
  if (version == nullptr) return;
  service.access_log = front->access_log();
  for (const front::ReplicaStatus& each : version->replicas()) {
    auto known = std::ranges::find(service.replicas, each.replica(), &ReplicaInfo::name);
    if (known != service.replicas.end()) known->pid = each.pid();
  }
}

std::vector<ServiceInfo> active_services(const core::State& state,
                                         const std::vector<RunRecord>& records,
                                         const std::string& state_dir, const AskFront& ask,
                                         const WhyNotResumed& why_not) {
  std::vector<ServiceInfo> services;
  FrontStatuses fronts(ask);
  for (const RunRecord& record : records) {
    auto run = state.runs.find(record.id);
    if (run == state.runs.end() || is_over(record.status)) continue;
    bool was_interrupted = record.status == "interrupted";
    std::string not_resumed = was_interrupted ? why_not(record.id) : "";
    for (ServiceInfo& service : services_of(run->second, &state)) {
      const front::Status* front =
          fronts.of(folder_of(state_dir, record.name, record.id, service.service));
      const front::VersionStatus* version =
          front == nullptr ? nullptr : version_of(*front, record.id);
      bool is_served = version != nullptr && version->replicas_size() > 0;
      if (was_interrupted && !is_served && not_resumed.empty()) continue;
      service.status = record.status;
      service.not_resumed = not_resumed;
      if (was_interrupted) service.url.clear();  // its front has it
      if (was_interrupted) service.replicas.clear();
      if (version != nullptr) add_version(*front, *version, service);
      services.push_back(std::move(service));
    }
  }
  return services;
}

}  // namespace flow
