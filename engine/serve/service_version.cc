#include "engine/serve/service_version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/value/utf8.hpp"

namespace flow {

namespace {

/// Longer times would overflow the clock.
ServiceOptions bounded(ServiceOptions options) {
  constexpr int64_t kMsMax = int64_t{365} * 24 * 3600 * 1000;
  options.request_timeout_ms = std::min(options.request_timeout_ms, kMsMax);
  options.batch_wait_us = std::min(options.batch_wait_us, kMsMax * 1000);
  options.drain_delay_ms = std::min(options.drain_delay_ms, kMsMax);
  return options;
}

}  // namespace

ServiceVersion::ServiceVersion(std::string id, ServiceOptions options,
                               std::function<void(const std::string&)> log,
                               std::function<void()> changed)
    : id_(std::move(id)),
      options_(bounded(std::move(options))),
      log_(std::move(log)),
      changed_(std::move(changed)),
      counters_(Clock::now()),
      alone_since_(Clock::now()) {}

void ServiceVersion::set_options(ServiceOptions options) { options_ = bounded(std::move(options)); }

// ---- The record of a request

void ServiceVersion::note_version(RequestRecord* record) const {
  if (record == nullptr) return;
  record->version = id_;
  record->fraction = options_.access_log;
}

void ServiceVersion::note_start(RequestRecord* record, const Replica& replica, int64_t rows) const {
  if (record == nullptr) return;
  record->rows = rows;
  if (!record->queue_time) record->queue_time = Clock::now() - record->arrived;
  auto member = std::ranges::find_if(replicas_, [&](const Member& each) {
    return static_cast<const Replica*>(each.replica) == &replica;
  });
  if (member != replicas_.end()) record->replica = member->description.name;
}

// ---- Requests

void ServiceVersion::count(int status, Clock::duration duration) {
  metrics_.count_request(status, duration);
  counters_.count(status, duration, Clock::now());
}

void ServiceVersion::count_refused(int status, Clock::duration duration) {
  metrics_.count_request(status, duration);
  counters_.count_refused(status, Clock::now());
}

std::chrono::microseconds ServiceVersion::queue_time(Clock::time_point now) const {
  RequestWaits all = counters_.figures(now).waits;
  all.add(waits(now));
  return all.mean();
}

// ---- Replicas

void ServiceVersion::add(FrontReplica& replica, FrontReplica::Description description) {
  lost_ -= std::min<size_t>(lost_, 1);
  counters_.restart_load();
  replicas_.push_back({&replica, std::move(description)});
  begin(replica, replicas_.back().description);
  for (const std::string& line : std::exchange(unread_, {})) replica.log(line);
}

void ServiceVersion::remove(FrontReplica& replica) {
  std::erase_if(replicas_, [&](const Member& each) { return each.replica == &replica; });
  if (replicas_.empty()) alone_since_ = Clock::now();
  if (!state(replica).is_leaving) {
    lost_++;
    lost_at_ = Clock::now();
  }
  end(replica);
}

bool ServiceVersion::has(const FrontReplica& replica) const {
  return std::ranges::any_of(replicas_,
                             [&](const Member& each) { return each.replica == &replica; });
}

std::vector<ServiceVersion::ReplicaEntry> ServiceVersion::replicas() const {
  std::vector<ReplicaEntry> entries;
  for (const Member& each : replicas_)
    entries.push_back({each.replica, each.description, state(*each.replica)});
  return entries;
}

std::optional<ServiceVersion::Clock::time_point> ServiceVersion::alone_since() const {
  if (!replicas_.empty()) return std::nullopt;
  return alone_since_;
}

// ---- The log

void ServiceVersion::log(const std::string& line) {
  if (limiter_.admit(Clock::now())) return write_line(to_utf8(line));
  changed_();
}

void ServiceVersion::write_line(const std::string& line) {
  if (log_) log_(line);
  if (!replicas_.empty()) {
    replicas_.front().replica->log(line);
  } else if (unread_.size() < kUnreadMax) {
    unread_.push_back(line);  // such as that of a request that broke with the last replica
  }
}

ServiceVersion::Clock::time_point ServiceVersion::next_event() const {
  return std::min(next_request_event(), limiter_.next_report());
}

void ServiceVersion::run_due(Clock::time_point now) {
  run_requests_due(now);
  if (size_t dropped = limiter_.take_dropped(now); dropped > 0)
    write_line(fmt::format("{} more requests failed", dropped));
}

}  // namespace flow
