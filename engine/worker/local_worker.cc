// The worker's thread and its public functions.
#include "engine/worker/local_worker.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/files.hpp"
#include "engine/worker/leftovers.hpp"

namespace flow {

namespace {

constexpr int kTickMs = 20;
constexpr int kSampleMs = 1'000;
constexpr int kEventsMax = 64;
constexpr size_t kOwnOrdersMax = 4;  // orders that the submitting thread may send itself

}  // namespace

LocalWorker::LocalWorker(const WorkerOptions& options, std::string state_id,
                         std::vector<ReplicaRecord> replicas, OnReport on_report)
    : options_(options),
      state_id_(std::move(state_id)),
      own_cgroups_(own_cgroups()),
      cgroups_(CgroupParent::find(own_cgroups_)),
      on_report_(std::move(on_report)),
      replicas_(std::move(replicas)),
      oom_kills_(cgroup_oom_kills(own_cgroups_)) {
  remove_old_cgroups(cgroups_.folder());
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watch(wake_, &wake_, EPOLLIN);
  meter_ = std::make_unique<GpuMeter>(options_.executor, [this] { wake(); });
  thread_ = engine_thread([this] { loop(); });
}

LocalWorker::~LocalWorker() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake();
  thread_.join();
  meter_.reset();  // before what it wakes
  for (const Front& front : fronts_)
    if (front.process.pidfd >= 0) ::close(front.process.pidfd);
  ::close(epoll_);
  ::close(wake_);
}

void LocalWorker::stage(std::vector<AttemptOrder> orders, uint64_t commit) {
  bool is_large_batch = orders.size() > kOwnOrdersMax;
  {
    std::lock_guard lock(incoming_mutex_);
    incoming_.emplace_back(std::move(orders), commit);
  }
  if (is_large_batch) return wake();
  std::lock_guard lock(mutex_);
  dispatch_now();
}

void LocalWorker::drain_incoming() {
  std::lock_guard lock(incoming_mutex_);
  for (auto& [orders, commit] : incoming_)
    for (AttemptOrder& order : orders) pending_.emplace_back(std::move(order), commit);
  incoming_.clear();
}

void LocalWorker::release(uint64_t commit) {
  std::lock_guard lock(mutex_);
  released_ = std::max(released_, commit);
  for (Slot& slot : slots_) {
    bool has_released = false;
    for (AssignedAttempt& running : slot.queue) {
      if (!running.awaits_commit || running.commit > released_) continue;
      running.awaits_commit = false;
      has_released = true;
      if (&running == &slot.queue.front()) running.began_us = monotonic_us();
    }
    if (!has_released) continue;
    wire::ToExecutor message;
    message.mutable_release()->set_commit(released_);
    append_frame(slot.out, message);
    write_slot(slot);
  }
}

void LocalWorker::exchange_addresses(const core::AttemptId& id,
                                     const std::vector<std::string>& rank_addresses) {
  wire::ToExecutor message;
  for (const std::string& each : rank_addresses) message.mutable_peers()->add_rank_addresses(each);
  std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) {
    if (slot.queue.empty() || slot.queue.front().order.id != id) continue;
    *message.mutable_peers()->mutable_id() = wire_name(id, slot.queue.front().order.rank);
    append_frame(slot.out, message);
    write_slot(slot);
  }
}

void LocalWorker::stop(const core::AttemptId& id, bool kill) {
  std::lock_guard lock(mutex_);
  drain_incoming();
  stop_attempt(id, kill ? StopMode::kill : StopMode::terminate);
  dispatch_now();
}

void LocalWorker::interrupt(const core::AttemptId& id) {
  std::lock_guard lock(mutex_);
  drain_incoming();
  stop_attempt(id, StopMode::interrupt);
  dispatch_now();
}

void LocalWorker::kill_after_flush(const core::AttemptId& id) {
  std::lock_guard lock(mutex_);
  drain_incoming();
  stop_attempt(id, StopMode::kill_after_flush);
  dispatch_now();
}

void LocalWorker::drain(int64_t grace_ms) {
  std::lock_guard lock(mutex_);
  drain_by_us_ = monotonic_us() + grace_ms * 1000;
  dispatch_now();
  wake();
}

void LocalWorker::ack_saved(const core::AttemptId& id, const std::string& name, bool ok) {
  std::lock_guard lock(mutex_);
  Slot* slot = slot_of({id, 0});
  if (slot == nullptr) return;
  wire::ToExecutor message;
  *message.mutable_saved()->mutable_id() = wire_name(id);
  message.mutable_saved()->set_name(name);
  message.mutable_saved()->set_ok(ok);
  append_frame(slot->out, message);
  write_slot(*slot);
}

void LocalWorker::ack_logs(size_t cost) {
  std::lock_guard lock(mutex_);
  unacked_ -= std::min(cost, unacked_);
  if (!is_log_full_ || unacked_ > kUnackedLogsMax / 2) return;
  is_log_full_ = false;
  for (Slot& slot : slots_) watch_slot(slot);
}

void LocalWorker::dispatch_now() {
  bool wants_executor = dispatch(false);
  for (Slot& slot : slots_) write_slot(slot);
  bool wants_thread = wants_executor || !reports_.empty() || (is_blocked_ && needs_tick());
  if (wants_thread) wake();
}

void LocalWorker::wake() {
  uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void LocalWorker::watch(int descriptor, void* target, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = target;
  ::epoll_ctl(epoll_, operation, descriptor, &event);
}

bool LocalWorker::may_read(const Slot& slot) const {
  if (!is_log_full_ || slot.ending_since_us > 0) return true;
  return std::any_of(slot.queue.begin(), slot.queue.end(), [](const AssignedAttempt& running) {
    return running.stopped || running.timed_out;
  });
}

void LocalWorker::watch_slot(Slot& slot) {
  uint32_t wire =
      (may_read(slot) ? uint32_t{EPOLLIN} : 0u) | (slot.out.empty() ? 0u : uint32_t{EPOLLOUT});
  uint32_t errors = is_log_full_ ? 0u : uint32_t{EPOLLIN};
  if (wire != std::exchange(slot.wire_events, wire))
    watch(slot.process.wire, &slot, wire, EPOLL_CTL_MOD);
  if (errors != std::exchange(slot.error_events, errors))
    watch(slot.process.errors, &slot, errors, EPOLL_CTL_MOD);
}

void LocalWorker::loop() {
  epoll_event events[kEventsMax];
  std::unique_lock lock(mutex_);
  while (true) {
    is_blocked_ = !needs_tick();
    int64_t spin_us = is_spinning() ? kSpinUs : 0;
    int idle_ms = slots_.empty() ? -1 : kSampleMs;  // long attempts are looked at
    lock.unlock();
    int count = wait(events, spin_us, is_blocked_ ? idle_ms : kTickMs);
    lock.lock();
    is_blocked_ = false;
    if (quit_) break;
    for (int i = 0; i < count; i++) handle_event(events[i].data.ptr, events[i].events);
    reap_exited();
    tick();
    dispatch(true);
    for (Slot& slot : slots_) write_slot(slot);
    report_measured();
    report_gangs();
    std::vector<MemorySample> samples = due_samples();
    if (reports_.empty() && found_ports_.empty() && samples.empty()) continue;
    std::vector<Report> reports = std::exchange(reports_, {});
    auto ports = std::exchange(found_ports_, {});
    auto on_port = gate_ ? gate_->on_port : nullptr;
    lock.unlock();
    if (!reports.empty()) on_report_(std::move(reports));
    for (const auto& [front, port] : ports) on_port(front, port);
    int64_t sampled_us = samples.empty() ? 0 : monotonic_us();
    if (!samples.empty()) take_samples(samples);
    lock.lock();
    if (!samples.empty()) note_samples(samples, sampled_us);
  }
  end_all();
}

bool LocalWorker::is_spinning() const {
  size_t running = 0;
  for (const Slot& slot : slots_) running += slot.queue.size();
  return running == 1 && pending_.empty() && last_duration_us_ < kSpinUs;
}

int LocalWorker::wait(epoll_event* events, int64_t spin_us, int timeout_ms) {
  int64_t until_us = spin_us > 0 ? monotonic_us() + spin_us : 0;
  while (until_us > 0 && monotonic_us() < until_us) {
    int count = ::epoll_wait(epoll_, events, kEventsMax, 0);
    if (count != 0) return count;
    spin_pause();
  }
  return ::epoll_wait(epoll_, events, kEventsMax, timeout_ms);
}

void LocalWorker::handle_event(void* target, uint32_t events) {
  if (target == &wake_) {
    uint64_t drained;
    (void)!::read(wake_, &drained, sizeof drained);
    return;
  }
  auto front = std::ranges::find_if(fronts_, [&](Front& each) { return &each == target; });
  if (front != fronts_.end()) return note_front_end(*front);
  auto& slot = *static_cast<Slot*>(target);
  bool may_be_closed = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (slot.is_gone || !(may_read(slot) || may_be_closed)) return;
  slot.is_gone = !read_slot(slot);
}

void LocalWorker::reap_exited() {
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    if (!slot->is_gone) {
      ++slot;
      continue;
    }
    retire_slot(*slot);
    slot = slots_.erase(slot);
  }
}

bool LocalWorker::needs_tick() const {
  if (drain_by_us_ > 0 || !gang_results_.empty()) return true;
  if (std::ranges::any_of(fronts_, [&](const Front& front) {
        return front.process.pidfd < 0 || (!front.control && is_needed(front)) ||
               awaits_gate(front);
      }))
    return true;
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    if (slot.ending_since_us > 0) return true;
    if (slot.queue.empty()) return false;
    const AssignedAttempt& front = slot.queue.front();
    return front.order.timeout_ms > 0 || front.kill_at_us > 0 || front.terminate_at_us > 0 ||
           front.order.resources.memory_bytes > 0 || slot.queue.size() > 1;
  });
}

Slot* LocalWorker::slot_of(const RankId& id) {
  for (Slot& slot : slots_) {
    for (const AssignedAttempt& running : slot.queue) {
      if (running.order.rank_id() == id) return &slot;
    }
  }
  return nullptr;
}

Result<std::unique_ptr<Worker>> make_worker(const WorkerOptions& options,
                                            Worker::OnReport on_report) {
  auto id = state_id(options.state_dir);
  FLOW_TRY(id);
  FLOW_TRY(make_dirs(options.state_dir + "/scratch/slots"));
  std::vector<ReplicaRecord> replicas = kill_leftovers(options.state_dir, *id);
  return std::unique_ptr<Worker>(std::make_unique<LocalWorker>(
      options, std::move(*id), std::move(replicas), std::move(on_report)));
}

}  // namespace flow
