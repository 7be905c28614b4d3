#include "engine/worker/service_fronts.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/protocol/front_client.hpp"

namespace flow {

namespace {

constexpr std::chrono::milliseconds kPause{200};

}  // namespace

Status shift_traffic(const std::string& folder, const core::ShiftTraffic& traffic) {
  front::Traffic weights;
  front::Weight& own = *weights.add_weights();
  own.set_version(traffic.run);
  own.set_percent(traffic.percent);
  if (!traffic.previous.empty()) {
    front::Weight& before = *weights.add_weights();
    before.set_version(traffic.previous);
    before.set_percent(100 - traffic.percent);
  }
  // A version that is gone cannot be measured: the front would refuse the weights too.
  bool is_measured = traffic.percent > 0 && !traffic.previous.empty();
  if (is_measured) weights.set_measured(traffic.run);
  auto client = FrontClient::connect(folder);
  FLOW_TRY(client);
  return client->set_traffic(weights);
}

void forget_version(const std::string& folder, const core::RunId& run) {
  auto client = FrontClient::connect(folder);
  if (client.ok()) (void)client->forget(run);
}

Result<StepCounts> measure_traffic(const std::string& folder, const core::ShiftTraffic& traffic,
                                   uint32_t requests_min) {
  front::StatusRequest request;
  request.set_warm_up(traffic.run);
  request.set_requests(requests_min);
  auto status = front_status(folder, request);
  FLOW_TRY(status);
  const auto& versions = status->versions();
  auto own = std::ranges::find_if(versions, [&](const front::VersionStatus& version) {
    return version.version() == traffic.run && version.percent() == traffic.percent;
  });
  if (own != versions.end())
    return StepCounts{own->step_requests(), own->step_errors(), own->step_refused(),
                      own->step_p50_us(), own->step_p99_us()};
  FLOW_TRY(shift_traffic(folder, traffic));
  return StepCounts();
}

void ServiceFronts::give(FrontOrder order) {
  std::lock_guard lock(mutex_);
  if (has_quit_) return;
  orders_.push_back(std::move(order));
  start_thread();
}

void ServiceFronts::forget(const core::RunId& run, std::vector<std::string> folders) {
  std::lock_guard lock(mutex_);
  if (has_quit_) return;
  ended_.push_back({run, std::move(folders)});
  start_thread();
}

/// With the lock.
void ServiceFronts::start_thread() {
  changed_.notify_one();
  if (!thread_.joinable()) thread_ = engine_thread([this] { carry_out_orders(); });
}

void ServiceFronts::quit() {
  scaler_.quit();
  {
    std::lock_guard lock(mutex_);
    has_quit_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void ServiceFronts::carry_out_orders() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_quit_ || !orders_.empty() || !ended_.empty(); });
    if (!ended_.empty()) {
      EndedRun run = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      for (const std::string& folder : run.folders) forget_version(folder, run.id);
      lock.lock();
      continue;
    }
    if (has_quit_) return;
    FrontOrder order = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    core::Event answer = answer_of(order);
    lock.lock();
    bool is_replaced = std::ranges::any_of(
        orders_, [&](const FrontOrder& later) { return later.traffic.run == order.traffic.run; });
    if (is_replaced || has_quit_) continue;
    lock.unlock();
    post_(std::move(answer));
    lock.lock();
  }
}

core::Event ServiceFronts::answer_of(const FrontOrder& order) {
  const core::ShiftTraffic& traffic = order.traffic;
  Status done;
  if (!order.measures) {
    failpoint("traffic-before-shift");
    for (const std::string& folder : order.folders) {
      Status shifted = try_some_times([&] { return shift_traffic(folder, traffic); });
      if (!shifted.ok()) done = shifted;  // the other fronts still get the weights
    }
    failpoint("traffic-after-shift");
    return core::TrafficShifted{traffic.run, traffic.step, done.ok() ? "" : done.error().message};
  }
  failpoint("traffic-before-measure");
  core::TrafficMeasured sum{traffic.run, traffic.step};
  uint64_t fewest = std::numeric_limits<uint64_t>::max();
  for (const std::string& folder : order.folders) {
    StepCounts counts;
    Status asked = try_some_times([&]() -> Status {
      auto measured = measure_traffic(folder, traffic, order.requests_min);
      FLOW_TRY(measured);
      counts = *measured;
      return {};
    });
    if (!asked.ok()) sum.error = asked.error().message;
    bool refuses_enough = order.limits_errors && counts.refused > order.requests_min;
    if (!refuses_enough) fewest = std::min(fewest, counts.requests);
    sum.requests += counts.requests + counts.refused;
    sum.errors += counts.errors + counts.refused;
    sum.p50_us = std::max(sum.p50_us, counts.p50_us);
    sum.p99_us = std::max(sum.p99_us, counts.p99_us);
  }
  // Each service must have accepted enough: those that it refused say nothing of its answers. One
  // that refuses many may never accept enough: then its errors decide, if they have a limit.
  if (fewest < order.requests_min) sum.requests = fewest;
  failpoint("traffic-after-measure");
  return sum;
}

Status ServiceFronts::try_some_times(const std::function<Status()>& attempt) {
  auto until = std::chrono::steady_clock::now() + retry_time_;
  Status last = attempt();
  while (!last.ok() && std::chrono::steady_clock::now() < until) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kPause, [this] { return has_quit_; })) return last;
    lock.unlock();
    last = attempt();
  }
  return last;
}

}  // namespace flow
