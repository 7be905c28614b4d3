#include "tests/sim/engine_agent_monitor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/worker/slot.hpp"
#include "tests/sim/engine_reports.hpp"

namespace flow::sim {

void AgentMonitor::begin_session() {
  from_head_ = {};
  from_agent_ = {};
  staged_.clear();
  ranks_ = {};
}

void AgentMonitor::from_head(std::string_view chunk, uint64_t batches) {
  std::string bytes;
  if (from_head_.add(chunk, bytes) != cluster::MessageAssembler::Outcome::whole) return;
  worker_protocol::ToWorker message;
  if (!message.ParseFromString(bytes)) throw BrokenPromise{"a head sends what is no message"};
  check(message, batches);
}

void AgentMonitor::check(const worker_protocol::ToWorker& message, uint64_t batches) {
  if (message.has_order()) {
    core::AttemptId id = attempt_id(message.order().start().id());
    uint64_t commit = message.order().start().commit();
    ranks_.add(id, message.order().start().ranks());
    world_.note(fmt::format("{} is ordered {} commit {}", worker_, text_of(id), commit));
    if (commit == 0) return durable_.check_start(id, batches);
    staged_.emplace_back(commit, id);
  } else if (message.has_release()) {
    uint64_t commit = message.release().commit();
    world_.note(fmt::format("{} is released up to commit {}", worker_, commit));
    for (const auto& [number, id] : staged_)
      if (number <= commit) durable_.check_start(id, batches);
    std::erase_if(staged_, [&](const auto& each) { return each.first <= commit; });
  } else if (message.has_stop()) {
    core::AttemptId id = attempt_id(message.stop().id());
    world_.note(worker_ + " is to stop " + text_of(id));
    ranks_.stop(id);
  } else if (message.has_saved()) {
    core::AttemptId id = attempt_id(message.saved().id());
    bool is_saved = message.saved().ok();
    world_.note(fmt::format("{} has a save {} of {}", worker_,
                            is_saved ? "acknowledged" : "rejected", text_of(id)));
    if (!is_saved && durable_.runs(id))
      throw BrokenPromise{"a save of an attempt that runs was rejected: " + text_of(id)};
    if (is_saved && !durable_.has_saved(id, message.saved().name(), batches))
      throw BrokenPromise{"a step was acknowledged that is not durable: " + text_of(id)};
  } else if (message.has_join_accepted()) {
    world_.note(
        fmt::format("{} is accepted, {} reports taken", worker_, message.join_accepted().acked()));
    ranks_.accept(durable_, batches);
    check_acknowledged(message.join_accepted().acked(), batches);
  } else if (message.kind_case() == worker_protocol::ToWorker::kReportAck) {
    world_.note(fmt::format("{} has reports acknowledged up to {}", worker_, message.report_ack()));
    check_acknowledged(message.report_ack(), batches);
  }
}

// What is acknowledged is never reported again.
void AgentMonitor::check_acknowledged(uint64_t number, uint64_t batches) {
  while (!ends_.empty() && ends_.begin()->first <= number) {
    const core::AttemptId& id = ends_.begin()->second;
    if (durable_.ran(id, batches))
      throw BrokenPromise{"the end of an attempt was acknowledged and is not durable: " +
                          text_of(id)};
    ends_.erase(ends_.begin());
  }
}

// What runs and is not offered would run a second time, on another worker.
void AgentMonitor::from_agent(std::string_view chunk, const std::vector<RankId>& running) {
  std::string bytes;
  if (from_agent_.add(chunk, bytes) != cluster::MessageAssembler::Outcome::whole) return;
  worker_protocol::FromWorker message;
  if (!message.ParseFromString(bytes)) throw BrokenPromise{"an agent sends what is no message"};
  if (message.has_report()) {
    uint64_t number = message.report().number();
    Report report{};
    if (!cluster::get_report(*message.mutable_report(), report))
      throw BrokenPromise{"a report is damaged"};
    if (ends_attempt(report)) ends_.emplace(number, report.id);
  }
  if (!message.has_join()) return;
  cluster::JoinRequest request;
  if (!get_join_request(message.join(), request)) throw BrokenPromise{"a join is not valid"};
  world_.note(fmt::format("{} joins with {} ranks", worker_, request.ranks.size()));
  for (const RankOffer& each : request.ranks)
    if (!each.has_ended) ranks_.offer(each.rank.attempt);
  for (const RankId& rank : running) {
    bool is_offered =
        std::any_of(request.ranks.begin(), request.ranks.end(),
                    [&](const RankOffer& each) { return each.rank == rank && !each.has_ended; });
    if (!is_offered)
      throw BrokenPromise{"a worker joins and does not offer what it runs: " +
                          text_of(rank.attempt)};
  }
}

}  // namespace flow::sim
