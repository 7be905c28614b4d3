#include "tests/sim/engine_attempts.hpp"

#include <algorithm>
#include <iterator>

#include "engine/cluster/transfer/worker_messages.hpp"
#include "tests/sim/engine_plans.hpp"
#include "tests/sim/engine_reports.hpp"

namespace flow::sim {

namespace {

constexpr int64_t kWaitMs = 70;
constexpr uint32_t kSavesToGrow = 10;  // more steps and checkpoints of an elastic gang
constexpr core::Time kGangTimeoutMs = 3'000;

bool has_go_signal(const AttemptOrder& order) {
  return std::any_of(order.signals.begin(), order.signals.end(),
                     [](const auto& signal) { return signal.first == kGoSignal; });
}

bool has_expired(const AttemptOrder& order) {
  return std::any_of(order.waits.begin(), order.waits.end(),
                     [](const AttemptOrder::Wait& wait) { return wait.expired; });
}

}  // namespace

Attempts::Attempts(World& world, const DurableState& durable, TaskMemory& memory, OnReport report)
    : world_(world), durable_(durable), memory_(memory), report_(std::move(report)) {}

void Attempts::stage(AttemptOrder order, uint64_t commit) {
  RankId rank = order.rank_id();
  if (attempts_.contains(rank)) return;  // the order came twice
  Attempt attempt;
  attempt.saves_left = rank.rank == 0 ? task_behaviour(order.key).saves : 0;
  if (rank.rank == 0 && order.resources.ranks_max > 0) attempt.saves_left += kSavesToGrow;
  attempt.order = std::move(order);
  attempt.commit = commit;
  bool waits = commit > released_;
  if (!waits) attempt.commit = 0;
  attempts_.emplace(rank, std::move(attempt));
  if (!waits) start(rank);
}

void Attempts::release(uint64_t commit) {
  released_ = std::max(released_, commit);
  for (const RankId& rank : ranks()) {
    Attempt& attempt = attempts_.at(rank);
    if (attempt.commit == 0 || attempt.commit > commit) continue;
    attempt.commit = 0;
    start(rank);
  }
}

void Attempts::start(const RankId& rank) {
  durable_.check_start(rank.attempt);
  attempts_.at(rank).started = world_.now();
  world_.note("start " + text_of(rank.attempt) + " rank " + std::to_string(rank.rank));
  uint32_t ranks = attempts_.at(rank).order.ranks;
  if (ranks > 1) {
    report_(address_report(rank, "simulated:" + std::to_string(rank.rank)));
    return fail_later(rank);
  }
  continue_later(rank, 1 + world_.random.below(10));
}

// The addresses may have been lost with a connection: as an executor, give up. Its cause would be a
// timeout, which counts as a failure of the task: then the outcome could not be compared.
void Attempts::fail_later(const RankId& rank) {
  world_.after(kGangTimeoutMs, [this, rank, alive = is_alive_] {
    if (*alive && attempts_.contains(rank) && !attempts_.at(rank).has_addresses)
      end(rank, failure_report(rank, core::Cause::preempted, "not all ranks are there"));
  });
}

void Attempts::exchange_addresses(const core::AttemptId& id, size_t addresses) {
  for (const RankId& rank : ranks()) {
    Attempt& attempt = attempts_.at(rank);
    if (rank.attempt != id || std::exchange(attempt.has_addresses, true)) continue;
    if (addresses != attempt.order.ranks)
      throw BrokenPromise{"a gang got the addresses of other ranks than its own"};
    continue_later(rank, 1 + world_.random.below(10));
  }
}

void Attempts::continue_later(const RankId& rank, core::Time delay) {
  world_.after(delay, [this, rank, alive = is_alive_] {
    if (*alive && attempts_.contains(rank)) go_on(rank);
  });
}

void Attempts::go_on(const RankId& rank) {
  Attempt& attempt = attempts_.at(rank);
  const AttemptOrder& order = attempt.order;
  TaskBehaviour behaviour = task_behaviour(order.key);
  if (attempt.is_stopping) return end(rank, stopped_report(rank));
  if (world_.random.one_in(5)) report_(log_report(rank, some_line(), world_.now()));
  if (order.kind == TaskKind::service) return serve(rank);
  if (attempt.saves_left > 0) return save(attempt);
  if (rank.rank == 0 && order.ranks == 1) {
    if (world_.random.one_in(40)) return end(rank, requeued_report(rank));
    if (behaviour.waits_for_signal && !has_go_signal(order))
      return end(rank, waiting_report(rank, kGoSignal, -1));
    if (behaviour.waits_for_timeout && !has_expired(order))
      return end(rank, waiting_report(rank, "never", kWaitMs));
  }
  bool is_other_rank = rank.rank > 0;
  if (world_.strikes(FaultKind::task, is_other_rank ? 8 : 20)) {
    bool is_staging = !is_other_rank && world_.random.one_in(2);
    return end(rank,
               failure_report(rank, is_staging ? core::Cause::staging : core::Cause::preempted,
                              "it breaks"));
  }
  uint32_t& failures = memory_.failures[{rank.attempt.run, order.key}];
  if (rank.rank == 0 && (behaviour.always_fails || failures < behaviour.failures)) {
    failures++;
    const char* why = world_.random.one_in(4) ? "No space left on device" : "it fails";
    return end(rank, failure_report(rank, core::Cause::user_error, why));
  }
  if (order.ranks == 1) return finish(rank);
  memory_.gang_ends.reach(rank.attempt, rank.rank, order.ranks, [this, rank, alive = is_alive_] {
    if (*alive && attempts_.contains(rank)) finish(rank);
  });
}

// It is ready until it is stopped, or dies.
void Attempts::serve(const RankId& rank) {
  constexpr uint32_t kServesMsMax = 80;
  if (world_.strikes(FaultKind::task, 8))
    return end(rank, failure_report(rank, core::Cause::preempted, "it breaks before it is ready"));
  report_(ready_report(rank, "http://simulated"));
  if (!world_.strikes(FaultKind::service, 2)) return;
  world_.after(1 + world_.random.below(kServesMsMax), [this, rank, alive = is_alive_] {
    if (*alive && attempts_.contains(rank)) die(rank);
  });
}

void Attempts::die(const RankId& rank) {
  constexpr core::Cause kCauses[] = {core::Cause::signal, core::Cause::exit_code,
                                     core::Cause::out_of_memory, core::Cause::lost,
                                     core::Cause::user_error};
  if (world_.random.one_in(6)) return finish(rank);
  core::Cause cause = kCauses[world_.random.below(std::size(kCauses))];
  end(rank, failure_report(rank, cause, "the service dies"));
}

// Now and then one that takes several chunks of a session.
std::string Attempts::some_line() {
  constexpr size_t kLong = cluster::kMessageChunkBytes + 1;
  return std::string(world_.random.one_in(1'000) ? kLong : 6, 'x');
}

void Attempts::save(Attempt& attempt) {
  attempt.saves_left--;
  attempt.is_awaiting = true;
  attempt.awaits_save =
      attempt.saves_left % 2 == 0 ? "step " + std::to_string(attempt.saves_left) : "";
  report_(saved_report(attempt.order.rank_id(), attempt.awaits_save, encode_value(Value(7))));
}

void Attempts::ack_saved(const core::AttemptId& id, const std::string& name, bool is_saved) {
  auto found = attempts_.find({id, 0});
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  if (!attempt.is_awaiting || attempt.awaits_save != name) return;
  attempt.is_awaiting = false;
  if (is_saved) continue_later(found->first, 1 + world_.random.below(10));
}

void Attempts::finish(const RankId& rank) {
  const AttemptOrder& order = attempts_.at(rank).order;
  int64_t duration_us = (world_.now() - attempts_.at(rank).started) * 1000;
  bool has_waited = !order.waits.empty();
  std::string value = rank.rank == 0 ? result_of(order.task_name, order.key) : "";
  bool is_dynamic = order.kind == TaskKind::dynamic && rank.rank == 0;
  std::string calls = is_dynamic ? encode_fragment(calls_of(order.key)) : "";
  end(rank, success_report(rank, std::move(value), duration_us, has_waited, std::move(calls)));
}

void Attempts::end(const RankId& rank, Report report) {
  attempts_.erase(rank);
  report_(std::move(report));
}

// An attempt may come to its own end before it notices.
void Attempts::stop(const core::AttemptId& id) {
  for (const RankId& rank : ranks()) {
    if (rank.attempt != id) continue;
    Attempt& attempt = attempts_.at(rank);
    attempt.is_stopping = true;
    if (attempt.commit > 0) {
      end(rank, stopped_report(rank));
    } else {
      continue_later(rank, 1 + world_.random.below(20));
    }
  }
}

void Attempts::drain() {
  for (const RankId& rank : ranks()) {
    if (attempts_.at(rank).commit > 0) {
      end(rank, requeued_report(rank));
    } else {
      stop(rank.attempt);
    }
  }
}

std::vector<RankId> Attempts::ranks() const {
  std::vector<RankId> ranks;
  for (const auto& [rank, attempt] : attempts_) ranks.push_back(rank);
  return ranks;
}

}  // namespace flow::sim
