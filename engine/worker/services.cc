// Services: their fronts, and executors that serve without an engine and are taken over.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/descriptor_message.hpp"
#include "engine/base/log.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/worker/leftovers.hpp"
#include "engine/worker/local_worker.hpp"

namespace flow {

namespace {

constexpr int64_t kStartDelayUsMin = 50'000, kStartDelayUsMax = 1'000'000;
constexpr int64_t kKeptUs = 90'000'000;    // longer than the pause before a service starts again
constexpr int64_t kHealthyUs = 5'000'000;  // a front that ran so long is started again at once

/// Sends one byte with the descriptor.
bool send_descriptor(int connection, int descriptor) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  DescriptorMessage control;
  control.attach(message, descriptor);
  return ::sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
}

}  // namespace

// ---- executors that serve

std::optional<ExecutorProcess> LocalWorker::take_over(const ReplicaRecord& replica) const {
  auto connected = connect_unix(replica_socket_path(replica.front, replica.pid));
  if (!connected.ok()) return std::nullopt;
  ExecutorProcess process;
  process.pid = replica.pid;
  process.wire = *connected;
  process.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, replica.pid, 0));
  int errors[2] = {-1, -1};
  bool ok = process.pidfd >= 0 && peer_of(process.wire) == replica.pid &&
            ::pipe2(errors, O_CLOEXEC) == 0 && send_descriptor(process.wire, errors[1]);
  if (errors[1] >= 0) ::close(errors[1]);
  process.errors = errors[0];
  if (ok) {
    int buffer = 1 << 20;
    ::setsockopt(process.wire, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    ::fcntl(process.wire, F_SETFL, O_NONBLOCK);
    ::fcntl(process.errors, F_SETFL, O_NONBLOCK);
    return process;
  }
  for (int descriptor : {process.wire, process.errors, process.pidfd})
    if (descriptor >= 0) ::close(descriptor);
  return std::nullopt;
}

void LocalWorker::kill_replica(const ReplicaRecord& replica) {
  std::string cgroup = recorded_cgroup(options_.state_dir, state_id_, replica.slot);
  kill_leftovers_of(options_.state_dir, replica.pid, slot_mark(state_id_, replica.slot), cgroup);
  forget_slot(options_.state_dir, replica.pid, replica.slot, cgroup);
}

void LocalWorker::kill_replicas_on(const std::vector<std::string>& gpus) {
  std::erase_if(replicas_, [&](const ReplicaRecord& replica) {
    bool is_shared = std::ranges::any_of(replica.gpus, [&](const std::string& uuid) {
      return std::ranges::find(gpus, uuid) != gpus.end();
    });
    if (is_shared) kill_replica(replica);
    return is_shared;
  });
}

/// Nothing adopts the replicas of a run that has ended.
void LocalWorker::forget(const core::RunId& run) {
  std::lock_guard lock(mutex_);
  std::erase_if(replicas_, [&](const ReplicaRecord& replica) {
    if (replica.run == run) kill_replica(replica);
    return replica.run == run;
  });
  end_starting_fronts();
}

void LocalWorker::end_starting_fronts() {
  for (const Front& front : fronts_) {
    bool is_starting = front.process.pidfd >= 0 && front.process.is_new && !front.is_reached;
    if (is_starting && !is_needed(front))
      ::syscall(SYS_pidfd_send_signal, front.process.pidfd, SIGTERM, nullptr, 0);
  }
}

void LocalWorker::move_replicas(const core::RunId& run,
                                const std::map<core::UnitId, core::UnitId>& units) {
  std::lock_guard lock(mutex_);
  std::erase_if(replicas_, [&](ReplicaRecord& replica) {
    if (replica.run != run) return false;
    auto moved = units.find(replica.unit);
    if (moved != units.end()) {
      replica.unit = moved->second;
      return false;
    }
    kill_replica(replica);
    return true;
  });
}

/// A replica of other code or other options must not answer beside those of the order, and keeps
/// the front from taking what is new.
void LocalWorker::kill_replaced(const AttemptOrder& order) {
  if (replicas_.empty()) return;
  wire::Start start;
  fill_start(order, "", start);
  const Digest options = options_of(start);
  std::erase_if(replicas_, [&](const ReplicaRecord& replica) {
    bool is_of_service = replica.run == order.id.run && replica.front == order.front;
    bool is_same = replica.key == order.key && replica.options == options;
    if (is_of_service && !is_same) kill_replica(replica);
    return is_of_service && !is_same;
  });
}

/// The replica of the order's unit. If a record shows that its unit is another service's now, the
/// units of the run's records are those of the plan before (the engine died between a new plan and
/// move_replicas()): then any replica of the service.
std::vector<ReplicaRecord>::iterator LocalWorker::replica_for(const AttemptOrder& order) {
  auto same = replicas_.end(), of_service = replicas_.end();
  for (auto replica = replicas_.begin(); replica != replicas_.end(); ++replica) {
    if (replica->run != order.id.run) continue;
    bool has_unit = replica->unit == order.id.unit, has_front = replica->front == order.front;
    if (has_unit && !has_front) moved_runs_.insert(order.id.run);
    if (has_front && has_unit) same = replica;
    if (has_front && of_service == replicas_.end()) of_service = replica;
  }
  bool is_moved = !order.front.empty() && moved_runs_.contains(order.id.run);
  return same == replicas_.end() && is_moved ? of_service : same;
}

Slot* LocalWorker::adopt(const AttemptOrder& order) {
  kill_replaced(order);
  auto found = replica_for(order);
  if (found == replicas_.end()) return nullptr;
  ReplicaRecord replica = std::move(*found);
  replicas_.erase(found);
  bool fits = replica.gpus == order.gpus && is_alive(replica);
  auto process = fits ? take_over(replica) : std::nullopt;
  if (!process) {
    kill_replica(replica);
    return nullptr;
  }
  log::info(fmt::format("process {} of an earlier engine continues to serve", replica.pid),
            {.run = order.id.run, .task = order.task, .attempt = order.id.attempt});
  Slot& slot = slots_.emplace_back();
  slot.process = *process;
  slot.mark = slot_mark(state_id_, replica.slot);
  slot.name = std::move(replica.slot);
  slot.gpus = std::move(replica.gpus);
  std::string cgroup = recorded_cgroup(options_.state_dir, state_id_, slot.name);
  if (!cgroup.empty()) slot.cgroup = Cgroup(cgroup, cgroups_.is_v2(), cgroups_.has_memory());
  slot.has_limit = order.resources.memory_bytes > 0 && slot.cgroup.has_memory();
  slot.oom_kills = slot.cgroup.has_memory() ? slot.cgroup.oom_kills() : 0;
  slot.is_adopted = slot.is_unanswered = true;
  watch(slot.process.wire, &slot, slot.wire_events);
  watch(slot.process.errors, &slot, slot.error_events);
  return &slot;
}

// ---- fronts

// The engine names the folder in its own state, and a worker on another machine has another one.
std::string LocalWorker::own_front(const AttemptOrder& order) const {
  return fmt::format("{}/fronts/{}", options_.state_dir,
                     std::filesystem::path(order.front).filename().string());
}

Status LocalWorker::start_front(Front& front) {
  auto process =
      find_or_start_front(front_program(options_.executor), front.folder, front.lease_ms);
  FLOW_TRY(process);
  front.process = *process;
  front.started_us = monotonic_us();
  watch(front.process.pidfd, &front, EPOLLIN);
  return {};
}

LocalWorker::Front& LocalWorker::front_in(const std::string& folder) {
  auto found =
      std::ranges::find_if(fronts_, [&](const Front& front) { return front.folder == folder; });
  if (found != fronts_.end()) return *found;
  fronts_.emplace_back().folder = folder;
  return fronts_.back();
}

Status LocalWorker::ensure_front(const AttemptOrder& order) {
  if (options_.open_front) return options_.open_front(order.front);
  Front& front = front_in(order.front);
  front.lease_ms = order.front_lease_ms;
  if (front.process.pidfd >= 0) return {};
  Status started = start_front(front);
  bool is_of_others = front.is_held;  // it is tried again
  if (!started.ok() && !is_of_others)
    std::erase_if(fronts_, [&](const Front& each) { return &each == &front; });
  return started;
}

void LocalWorker::open_fronts(FrontGate gate) {
  std::lock_guard lock(mutex_);
  gate_ = std::move(gate);
  for (Front& front : fronts_) {
    front.has_gate = false;
    front.gate_port = 0;
  }
  wake();
}

void LocalWorker::hold_fronts(std::vector<HeldFront> fronts) {
  std::lock_guard lock(mutex_);
  std::set<std::string> held_before;
  for (Front& front : fronts_)
    if (std::exchange(front.is_held, false)) held_before.insert(front.folder);
  for (const HeldFront& held : fronts) {
    Front& front = front_in(held.folder);
    if (!held_before.contains(held.folder)) front.gate_port = 0;  // it is reported again
    front.is_held = true;
    front.lease_ms = held.lease_ms;
  }
  wake();
}

bool LocalWorker::is_needed(const Front& front) const {
  return front.is_held || std::ranges::any_of(slots_, [&](const Slot& slot) {
           return slot.ending_since_us == 0 && !slot.queue.empty() && !slot.queue.front().stopped &&
                  slot.queue.front().order.front == front.folder;
         });
}

void LocalWorker::note_front_end(Front& front) {
  ::close(front.process.pidfd);  // and so it is not watched any more
  front.process = {};
  front.is_reached = false;
  front.has_gate = false;
  front.gate_port = 0;
  int64_t now = monotonic_us();
  bool was_healthy = now - front.started_us > kHealthyUs;
  front.delay_us =
      was_healthy ? 0 : std::clamp(front.delay_us * 2, kStartDelayUsMin, kStartDelayUsMax);
  front.next_start_us = now + front.delay_us;
}

void LocalWorker::hold_front(Front& front) const {
  if (is_needed(front)) front.needed_us = monotonic_us();
  bool is_kept = monotonic_us() - front.needed_us < kKeptUs;
  if (front.process.pidfd < 0 || !is_kept) return front.control.reset();
  if (front.control) return;
  auto connected = FrontClient::connect(front.folder);
  if (!connected.ok()) return;  // it does not listen yet
  front.control.emplace(std::move(*connected));
  front.is_reached = true;
}

bool LocalWorker::awaits_gate(const Front& front) const {
  return gate_ && front.is_held && front.gate_port == 0;
}

/// Asks the front to let in workers of other machines, and looks for the port at which it does.
void LocalWorker::open_gate(Front& front) {
  if (!awaits_gate(front) || front.process.pidfd < 0 || !front.control) return;
  if (!front.has_gate) {
    front::Gate gate;
    gate.set_host(gate_->host);
    gate.set_secret(gate_->secret);
    gate.set_name(gate_->name);
    gate.set_version(gate_->version);
    gate.set_schema(gate_->schema);
    gate.set_lost_after_ms(gate_->lost_after_ms);
    front.has_gate = front.control->open_gate(gate).ok();
    if (!front.has_gate) return front.control.reset();
  }
  front.gate_port = read_gate_port(front.folder, front.process.pid);
  if (front.gate_port == 0) return;
  std::string name = std::filesystem::path(front.folder).filename().string();
  found_ports_.emplace_back(std::move(name), front.gate_port);
}

void LocalWorker::restart_fronts() {
  std::erase_if(fronts_, [&](Front& front) {
    hold_front(front);
    open_gate(front);
    if (front.process.pidfd >= 0) return false;
    if (!is_needed(front)) return true;
    if (monotonic_us() < front.next_start_us) return false;
    Status started = start_front(front);
    if (started.ok()) return false;
    log::warning("the front of a service cannot start again", {.detail = started.error().message});
    front.delay_us = kStartDelayUsMax;
    front.next_start_us = monotonic_us() + front.delay_us;
    return false;
  });
}

}  // namespace flow
