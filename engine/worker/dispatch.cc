// Dispatches orders to executors.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/log.hpp"
#include "engine/worker/leftovers.hpp"
#include "engine/worker/local_worker.hpp"

namespace flow {

namespace {

constexpr size_t kPipelineMax = 64;       // maximum number of orders in one executor's queue
constexpr size_t kStartKept = 64 * 1024;  // bytes of a message whose memory is kept for the next
constexpr size_t kRememberedMax =
    64;  // maximum number of runs and bundles per executor; then it is replaced

bool has_many_cached(const Slot& slot) {
  return slot.environments.size() >= kRememberedMax || slot.bundles.size() >= kRememberedMax;
}

}  // namespace

bool LocalWorker::is_exclusive(const AttemptOrder& order) {
  return order.kind == TaskKind::service || order.timeout_ms > 0 ||
         order.resources.memory_bytes > 0 || !order.gpus.empty() || order.ranks > 1;
}

int32_t LocalWorker::cpus_in_use() const {
  int32_t used = 0;
  for (const Slot& slot : slots_) {
    if (!slot.queue.empty() && slot.queue.front().order.kind != TaskKind::service)
      used += slot.queue.front().order.resources.cpus_milli;
  }
  return used;
}

bool LocalWorker::dispatch(bool may_spawn) {
  std::deque<PendingOrder> waiting;
  bool wants_executor = dispatch_pending(may_spawn, waiting);
  pending_.insert(pending_.begin(), std::make_move_iterator(waiting.begin()),
                  std::make_move_iterator(waiting.end()));
  return wants_executor;
}

bool LocalWorker::dispatch_pending(bool may_spawn, std::deque<PendingOrder>& waiting) {
  drain_incoming();
  if (drain_by_us_ > 0) requeue_all();
  if (pending_.empty()) return false;
  int32_t used = cpus_in_use();
  int32_t all = options_.executors_max * 1000;
  // Consecutive orders go to one executor, so that their common dependents become ready early.
  size_t share = pending_.size() / static_cast<size_t>(std::max(1, options_.executors_max));
  Slot* last = nullptr;
  size_t assigned = 0;
  auto assign = [&](Slot& slot) {
    send(slot, std::move(pending_.front()));
    pending_.pop_front();
    assigned++;
  };
  while (!pending_.empty()) {
    AttemptOrder& order = pending_.front().order;
    if (order.kind == TaskKind::service) {
      if (!may_spawn) return true;
      order.front = own_front(order);
      if (Status started = ensure_front(order); !started.ok()) {
        fail_pending(started.error().message);
        continue;
      }
      if (Slot* adopted = adopt(order); adopted != nullptr) {
        assign(*adopted);
        continue;
      }
    }
    if (last != nullptr && assigned < share && last->queue.size() < kPipelineMax &&
        !is_exclusive(order)) {
      assign(*last);
      continue;
    }
    int32_t requested = order.kind == TaskKind::service ? 0 : order.resources.cpus_milli;
    bool fits = used + requested <= all || used == 0;
    Slot* slot = fits ? idle_slot(order.gpus) : nullptr;
    if (fits) kill_replicas_on(order.gpus);
    if (fits && !free_gpus(order.gpus, slot)) {
      waiting.push_back(std::move(pending_.front()));
      pending_.pop_front();
      continue;
    }
    if (slot == nullptr && fits) {
      if (!may_spawn) return true;
      slot = new_slot();
      if (slot == nullptr) continue;  // the order failed with the cause
    }
    if (slot != nullptr) {
      used += requested;
    } else {
      slot = is_exclusive(order) ? nullptr : shortest_slot();
    }
    if (slot == nullptr) return false;
    last = is_exclusive(order) ? nullptr : slot;
    assigned = 0;
    assign(*slot);
  }
  return false;
}

void LocalWorker::requeue_all() {
  for (PendingOrder& pending : pending_) {
    add_report({pending.order.id, pending.order.rank, 0, TaskRequeued{}});
  }
  pending_.clear();
}

bool LocalWorker::free_gpus(const std::vector<std::string>& gpus, const Slot* except) {
  bool all = true;
  for (Slot& slot : slots_) {
    bool has_shared = std::any_of(slot.gpus.begin(), slot.gpus.end(), [&](const auto& uuid) {
      return std::find(gpus.begin(), gpus.end(), uuid) != gpus.end();
    });
    bool is_ending = slot.ending_since_us > 0 || slot.is_gone;
    if (!has_shared || &slot == except || !(slot.queue.empty() || is_ending)) continue;
    kill_slot(slot);
    all = false;
  }
  return all;
}

Slot* LocalWorker::idle_slot(const std::vector<std::string>& gpus) {
  for (Slot& slot : slots_) {
    if (!slot.queue.empty() || slot.ending_since_us > 0 || slot.is_gone) continue;
    if (slot.gpus != gpus) continue;
    if (!has_many_cached(slot)) return &slot;
    kill_slot(slot);
  }
  return nullptr;
}

void LocalWorker::fail_pending(const std::string& why) {
  core::Failure failure;
  failure.cause = core::Cause::staging;
  failure.message = why;
  report_end(pending_.front().order.rank_id(), TaskFinished::Outcome::failed,
             of_rank(pending_.front().order, std::move(failure)));
  pending_.pop_front();
}

Slot* LocalWorker::new_slot() {
  std::string name = random_name(), mark = slot_mark(state_id_, name);
  const std::vector<std::string>& gpus = pending_.front().order.gpus;
  std::vector<std::string> arguments{"--state", options_.state_dir};
  Cgroup cgroup = cgroups_.make(cgroup_name(state_id_, name));
  // A group without a record would never be removed after a crash.
  if (cgroup.exists() && !record_cgroup(options_.state_dir, name, cgroup.folder())) {
    remove_cgroup(cgroup.folder());
    cgroup = {};
  }
  if (cgroup.exists()) arguments.insert(arguments.end(), {"--cgroup", cgroup.folder()});
  auto process = spawn_executor(options_.executor, arguments,
                                {{"FLOW_SLOT", mark},
                                 {kVisibleVariable, fmt::format("{}", fmt::join(gpus, ","))},
                                 {kOrderVariable, kOrder}});
  if (!process.ok()) {
    fail_pending(process.error().message);
    if (cgroup.exists()) forget_slot(options_.state_dir, 0, name, cgroup.folder());
    return nullptr;
  }
  Slot& slot = slots_.emplace_back();
  slot.process = *process;
  slot.name = std::move(name);
  slot.cgroup = std::move(cgroup);
  slot.mark = std::move(mark);
  slot.gpus = gpus;
  watch(slot.process.wire, &slot, slot.wire_events);
  watch(slot.process.errors, &slot, slot.error_events);
  return &slot;
}

Slot* LocalWorker::shortest_slot() {
  int64_t now = monotonic_us();
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.queue.empty() || slot.queue.size() >= kPipelineMax || has_many_cached(slot)) continue;
    if (slot.ending_since_us > 0 || slot.is_gone) continue;
    const AssignedAttempt& front = slot.queue.front();
    bool slow = slot.has_requeued_queue || is_exclusive(front.order) ||
                front.runs_longer_than(kLongAttemptUs, now);
    if (!slow && (best == nullptr || slot.queue.size() < best->queue.size())) best = &slot;
  }
  return best;
}

void LocalWorker::send(Slot& slot, PendingOrder&& pending) {
  bool is_first = slot.queue.empty();
  AssignedAttempt& running = slot.queue.emplace_back(std::move(pending.order));
  const AttemptOrder& order = running.order;
  if (order.bundle_bytes && slot.bundles.insert(order.bundle).second) {
    wire::ToExecutor message;
    message.mutable_load()->set_digest(std::string(order.bundle.view()));
    message.mutable_load()->set_bundle(*order.bundle_bytes);
    append_frame(slot.out, message);
  }
  if (order.environment && slot.environments[order.id.run].lock() != order.environment) {
    slot.environments[order.id.run] = order.environment;
    wire::ToExecutor message;
    message.mutable_environment()->set_run(order.id.run);
    for (const auto& [name, value] : *order.environment) {
      wire::EnvVar& variable = *message.mutable_environment()->add_vars();
      variable.set_name(name);
      variable.set_value(value);
    }
    append_frame(slot.out, message);
  }
  std::string scratch = fmt::format("{}/scratch/{}/{}@{}", options_.state_dir, order.id.run,
                                    safe_name(order), order.id.attempt);
  wire::Start& start = *start_message_.mutable_start();
  start.Clear();
  fill_start(order, scratch, start);
  running.awaits_commit = pending.commit > released_;
  if (running.awaits_commit) start.set_commit(pending.commit);
  start.set_adopts(slot.is_unanswered);
  size_t size_before = slot.out.size();
  append_frame(slot.out, start_message_);
  if (slot.out.size() - size_before > kStartKept) start_message_.Clear();
  if (!order.hide.empty()) {
    log::hide(order.hide);
    running.secrets = Secrets(order.hide, {options_.state_dir, scratch, order.id.run});
  }
  running.commit = pending.commit;
  if (is_first) running.began_us = monotonic_us();
  begin_measuring(order);
  if (!slot.is_unanswered) limit_memory(slot, running);  // it has its limit
}

std::string LocalWorker::safe_name(const AttemptOrder& order) {
  std::string name = fmt::format("{}.{}", order.task, order.id.unit);
  std::replace(name.begin(), name.end(), '/', '_');
  return order.ranks > 1 ? fmt::format("{}.rank{}", name, order.rank) : name;
}

void LocalWorker::write_slot(Slot& slot) {
  if (slot.ending_since_us > 0) slot.out.clear();
  size_t at = 0;
  while (at < slot.out.size()) {
    ssize_t written = ::send(slot.process.wire, slot.out.data() + at, slot.out.size() - at,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // full: continues when there is room; closed: the reader notices
    at += static_cast<size_t>(written);
  }
  slot.out.erase(0, at);
  watch_slot(slot);
}

}  // namespace flow
