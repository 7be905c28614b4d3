#include "engine/worker/replica_scaler.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"

namespace flow {

namespace {

bool is_same(const ScaledService& a, const ScaledService& b) {
  return a.unit == b.unit && a.folder == b.folder && a.limits == b.limits;
}

}  // namespace

std::optional<LoadSample> load_of(const front::Status& status, const core::RunId& version,
                                  int64_t at_ms) {
  const auto& versions = status.versions();
  auto own = std::ranges::find(versions, version, &front::VersionStatus::version);
  if (own == versions.end() || own->replicas().empty()) return std::nullopt;
  auto ready = std::ranges::count_if(
      own->replicas(), [](const front::ReplicaStatus& replica) { return !replica.is_leaving(); });
  return LoadSample{at_ms, own->queue_us(), own->rejected(), static_cast<uint32_t>(ready)};
}

// A service that is watched already keeps the times that its controller has measured.
void ReplicaScaler::watch(const core::RunId& run, std::vector<ScaledService> services) {
  std::lock_guard lock(mutex_);
  if (has_quit_) return;
  watched_.remove_if([&](const Watched& each) {
    return each.run == run && std::ranges::none_of(services, [&](const ScaledService& service) {
             return is_same(service, each.service);
           });
  });
  for (ScaledService& service : services) {
    auto known = std::ranges::find_if(watched_, [&](const Watched& each) {
      return each.run == run && is_same(service, each.service);
    });
    if (known == watched_.end()) {
      ReplicaController controller(service.limits, service.replicas);
      known = watched_.insert(known, {run, std::move(service), std::move(controller)});
    } else {
      known->controller.set_wanted(service.replicas);
      known->service = std::move(service);
    }
    known->controller.set_may_shrink(known->service.may_shrink);
  }
  changed_.notify_one();
  if (!watched_.empty() && !thread_.joinable()) thread_ = engine_thread([this] { ask_fronts(); });
}

void ReplicaScaler::quit() {
  {
    std::lock_guard lock(mutex_);
    has_quit_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void ReplicaScaler::ask_fronts() {
  std::unique_lock lock(mutex_);
  while (!has_quit_) {
    std::set<std::string> folders;
    for (const Watched& each : watched_) folders.insert(each.service.folder);
    // A front may end only when nothing is connected to it.
    std::erase_if(fronts_, [&](const auto& front) { return !folders.contains(front.first); });
    if (folders.empty()) {
      changed_.wait(lock);
      continue;
    }
    for (const std::string& folder : folders) {
      lock.unlock();
      const auto status = status_of(folder);
      lock.lock();
      if (has_quit_) return;
      if (!status) continue;
      std::vector<core::Event> events = decide(folder, *status);
      lock.unlock();
      for (core::Event& event : events) post_(std::move(event));
      lock.lock();
    }
    changed_.wait_for(lock, interval_, [this] { return has_quit_; });
  }
}

/// Nothing if the front does not answer.
std::optional<front::Status> ReplicaScaler::status_of(const std::string& folder) {
  auto found = fronts_.find(folder);
  if (found == fronts_.end()) {
    auto connected = FrontClient::connect(folder);
    if (!connected.ok()) return std::nullopt;
    found = fronts_.emplace(folder, std::move(*connected)).first;
  }
  auto status = found->second.status();
  if (status.ok()) return std::move(*status);
  fronts_.erase(found);
  return std::nullopt;
}

std::vector<core::Event> ReplicaScaler::decide(const std::string& folder,
                                               const front::Status& status) {
  std::vector<core::Event> events;
  for (Watched& each : watched_) {
    if (each.service.folder != folder) continue;
    auto load = load_of(status, each.run, monotonic_us() / 1000);
    auto replicas = load ? each.controller.decide(*load) : std::nullopt;
    if (replicas) events.push_back(core::ReplicasScaled{each.run, each.service.unit, *replicas});
  }
  return events;
}

}  // namespace flow
