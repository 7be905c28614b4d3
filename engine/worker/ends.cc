// Ends attempts and executors, and handles their ends.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/worker/leftovers.hpp"
#include "engine/worker/local_worker.hpp"

namespace flow {

namespace {

constexpr int64_t kMemoryCheckUs = 100'000;
constexpr int64_t kProgramsExecutorBytes = 4 << 20;  // memory of the executor while a command runs
constexpr int64_t kRuntimeBytes = 256 << 20;         // memory of a container's runtime
constexpr int64_t kLuaExecutorBytes = 16 << 20;      // memory beyond what Lua's own limit counts,
constexpr int64_t kLuaPart = 16;                     // plus this fraction of the limit
// An attempt that runs this long may still be killed, so the executor's CPU time is read for it.
constexpr int64_t kWatchedUs = 50'000;
constexpr int64_t kTerminatedUs = 2'000'000;  // from SIGTERM to SIGKILL of an interrupted attempt

/// A runtime limits the memory of its container, and its own memory is not the task's.
int64_t runtime_bytes(const AttemptOrder& order) {
  bool is_container = order.shell && !order.shell->environment.container.empty();
  return is_container ? kRuntimeBytes : 0;
}

/// Waits for the end of a killed process that is not a child.
void await_end(int pidfd) {
  constexpr int kEndMs = 2'000;
  pollfd ended{pidfd, POLLIN, 0};
  while (::poll(&ended, 1, kEndMs) < 0 && errno == EINTR) {
  }
}

}  // namespace

void LocalWorker::stop_attempt(const core::AttemptId& id, StopMode how) {
  std::erase_if(pending_, [&](const PendingOrder& pending) {
    if (pending.order.id != id) return false;
    report_end(pending.order.rank_id(), TaskFinished::Outcome::stopped, {});
    return true;
  });
  for (Slot& slot : slots_) {
    for (AssignedAttempt& running : slot.queue) {
      if (running.order.id == id) stop_running(slot, running, how);
    }
  }
}

void LocalWorker::stop_running(Slot& slot, AssignedAttempt& running, StopMode how) {
  running.stopped = true;
  bool is_first = &running == &slot.queue.front(), kill = how == StopMode::kill;
  if (kill && is_first) return kill_slot(slot);
  send_stop(slot, running.order.rank_id(), how);
  int64_t now = monotonic_us(), grace_us = kill ? 0 : running.order.grace_ms * 1000;
  if (how == StopMode::interrupt) {
    running.terminate_at_us = now + grace_us;
  } else {
    kill_by(running, now + grace_us);
  }
}

void LocalWorker::drain_slot(Slot& slot) {
  AssignedAttempt& front = slot.queue.front();
  if (!front.stopped) {
    stop_running(slot, front, StopMode::interrupt);
    front.terminate_at_us = drain_by_us_;
  }
  if (slot.queue.size() > 1 && !slot.has_requeued_queue) requeue_queued(slot);
}

void LocalWorker::requeue_queued(Slot& slot) {
  wire::ToExecutor message;
  message.mutable_requeue_queued();
  append_frame(slot.out, message);
  slot.has_requeued_queue = true;
}

void LocalWorker::kill_by(AssignedAttempt& running, int64_t at_us) {
  if (running.kill_at_us == 0 || at_us < running.kill_at_us) running.kill_at_us = at_us;
}

void LocalWorker::send_stop(Slot& slot, const RankId& id, StopMode how) {
  wire::ToExecutor message;
  *message.mutable_stop()->mutable_id() = wire_name(id.attempt, id.rank);
  message.mutable_stop()->set_gentle(how == StopMode::interrupt);
  message.mutable_stop()->set_kill_after_flush(how == StopMode::kill_after_flush);
  if (drain_by_us_ > 0)
    message.mutable_stop()->set_grace_ms(
        std::max<int64_t>(1, (drain_by_us_ - monotonic_us()) / 1000));
  append_frame(slot.out, message);
}

void LocalWorker::kill_slot(Slot& slot) {
  if (slot.ending_since_us > 0) return;
  if (!slot.queue.empty() && slot.queue.front().order.kind == TaskKind::service) {
    // Without a stop it would keep running without this engine.
    send_stop(slot, slot.queue.front().order.rank_id());
    write_slot(slot);
  }
  slot.ending_since_us = monotonic_us();
  if (!slot.queue.empty() && slot.queue.front().program > 0)
    ::kill(-slot.queue.front().program, SIGKILL);
  ::shutdown(slot.process.wire, SHUT_WR);
  slot.out.clear();
}

void LocalWorker::leave_services(std::set<core::RunId> runs) {
  std::lock_guard lock(mutex_);
  left_ = std::move(runs);
}

bool LocalWorker::is_handed_on(const Slot& slot) const {
  if (slot.queue.empty() || slot.ending_since_us > 0 || slot.is_gone) return false;
  const AssignedAttempt& front = slot.queue.front();
  bool is_meant = front.order.kind == TaskKind::service && left_.contains(front.order.id.run) &&
                  !front.stopped && front.kill_at_us == 0;
  // An executor that does not serve yet has no record, and ends with its engine.
  return is_meant &&
         ::access(replica_record_path(options_.state_dir, slot.process.pid).c_str(), F_OK) == 0;
}

void LocalWorker::end_all() {
  std::erase_if(slots_, [this](const Slot& slot) {
    if (!is_handed_on(slot)) return false;
    // To the executor it is as if this engine had died.
    for (int descriptor : {slot.process.wire, slot.process.errors, slot.process.pidfd})
      ::close(descriptor);
    return true;
  });
  for (Slot& slot : slots_) kill_slot(slot);
  int64_t deadline = monotonic_us() + kEndGraceUs;
  for (Slot& slot : slots_) {
    // Its further messages are ignored, but it must not block on writing them.
    ::shutdown(slot.process.wire, SHUT_RDWR);
    pollfd ended{slot.process.pidfd, POLLIN, 0};
    int64_t left_ms = std::max<int64_t>(0, (deadline - monotonic_us()) / 1000);
    while (::poll(&ended, 1, static_cast<int>(left_ms)) < 0 && errno == EINTR) {
    }
    reap(slot);
  }
  slots_.clear();
}

int LocalWorker::reap(Slot& slot, rusage* used) {
  ::kill(-slot.process.pid, SIGKILL);
  int status = 0;
  if (slot.is_adopted) {
    await_end(slot.process.pidfd);
  } else {
    while (::wait4(slot.process.pid, &status, 0, used) < 0 && errno == EINTR) {
    }
  }
  // An executor that exited normally has cleaned up after itself.
  bool in_order = !slot.is_adopted && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!in_order)
    kill_leftovers_of(options_.state_dir, slot.process.pid, slot.mark, slot.cgroup.folder());
  forget_slot(options_.state_dir, slot.process.pid, slot.name, slot.cgroup.folder());
  read_errors(slot, true);
  ::close(slot.process.wire);
  ::close(slot.process.errors);
  ::close(slot.process.pidfd);
  return status;
}

void LocalWorker::retire_slot(Slot& slot) {
  bool had_memory = !has_new_oom_kill(slot);
  if (!slot.queue.empty() && slot.cgroup.has_memory() && !slot.is_outside_cgroup)
    slot.queue.front().group_peak = slot.cgroup.peak_bytes();
  rusage used{};
  int status = reap(slot, &used);
  end_errors(slot);
  if (!slot.queue.empty()) {
    AssignedAttempt& front = slot.queue.front();
    front.ended_us = monotonic_us() - front.began_us;
    bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!had_memory && (is_killed || slot.has_limit)) front.over_memory = true;
  }
  auto was_ended = [&](const AssignedAttempt& running) {
    return running.stopped || running.timed_out || running.over_memory;
  };
  // One that could not be taken over has not begun: its order goes to a new executor.
  bool by_itself = (slot.ending_since_us == 0 && !slot.is_unanswered) || slot.broken;
  if (!slot.queue.empty() && (by_itself || was_ended(slot.queue.front()))) {
    const AssignedAttempt& front = slot.queue.front();
    core::AttemptUsage usage = usage_of_killed(front, used);
    if (front.stopped) {
      report_end(front.order.rank_id(), TaskFinished::Outcome::stopped, {}, usage);
    } else {
      core::Failure failure = death_of(slot, front, status);
      report_end(front.order.rank_id(), TaskFinished::Outcome::failed,
                 front.timed_out ? failure : of_rank(front.order, failure), usage);
    }
    slot.queue.pop_front();
  }
  for (size_t i = slot.queue.size(); i > 0; i--) {
    if (slot.queue[i - 1].stopped) {
      report_end(slot.queue[i - 1].order.rank_id(), TaskFinished::Outcome::stopped, {});
    } else {
      AssignedAttempt& running = slot.queue[i - 1];
      stop_measuring(running.order.rank_id());
      pending_.emplace_front(std::move(running.order), running.commit);
    }
  }
}

void LocalWorker::tick() {
  restart_fronts();
  int64_t now = monotonic_us();
  bool check_memory = now - memory_checked_us_ >= kMemoryCheckUs;
  if (check_memory) memory_checked_us_ = now;
  for (Slot& slot : slots_) {
    if (slot.ending_since_us > 0) {
      if (now - slot.ending_since_us > kEndGraceUs) ::kill(-slot.process.pid, SIGKILL);
      continue;
    }
    if (slot.queue.empty()) continue;
    if (drain_by_us_ > 0) drain_slot(slot);
    AssignedAttempt& front = slot.queue.front();
    if (front.cpu_us_before < 0 && front.runs_longer_than(kWatchedUs, now))
      front.cpu_us_before = cpu_us(slot.process.pid);
    int64_t timeout_us = front.order.timeout_ms * 1000;
    if (timeout_us > 0 && !front.timed_out && front.runs_longer_than(timeout_us, now)) {
      front.timed_out = true;
      send_stop(slot, front.order.rank_id());
      kill_by(front, now + front.order.grace_ms * 1000);
    }
    if (front.terminate_at_us > 0 && now >= front.terminate_at_us) {
      front.terminate_at_us = 0;
      send_stop(slot, front.order.rank_id());
      kill_by(front, now + kTerminatedUs);
    }
    if (front.kill_at_us > 0 && now >= front.kill_at_us) kill_slot(slot);
    if (check_memory && front.order.resources.memory_bytes > 0) watch_memory(slot, front);
    bool blocks = slot.queue.size() > 1 && !slot.has_requeued_queue &&
                  front.runs_longer_than(kLongAttemptUs, now);
    if (blocks) requeue_queued(slot);
  }
}

void LocalWorker::watch_memory(Slot& slot, AssignedAttempt& front) {
  if (slot.has_limit) {
    if (!has_new_oom_kill(slot)) return;
    front.group_peak = slot.cgroup.peak_bytes();
  } else {
    front.memory_peak = std::max(front.memory_peak, resident_bytes(slot.process.pid));
    if (front.memory_peak <= front.order.resources.memory_bytes + runtime_bytes(front.order))
      return;
  }
  front.over_memory = true;
  kill_slot(slot);
}

// Memory that the executor used before does not count for the attempt. If Lua uses all of the
// memory, Lua's own limit is reached first, because its message names the line.
void LocalWorker::limit_memory(Slot& slot, AssignedAttempt& running) {
  int64_t bytes = running.order.resources.memory_bytes;
  if (bytes <= 0) {
    if (slot.has_limit) slot.cgroup.set_memory_limit(0);
    slot.has_limit = false;
    return;
  }
  bool runs_command = running.order.shell != nullptr;
  int64_t own = slot.cgroup.anonymous_bytes() +
                (runs_command ? kProgramsExecutorBytes : kLuaExecutorBytes + bytes / kLuaPart) +
                runtime_bytes(running.order);
  slot.cgroup.reset_peak();
  slot.has_limit = !slot.is_outside_cgroup && slot.cgroup.set_memory_limit(bytes + own);
}

bool LocalWorker::has_new_oom_kill(Slot& slot) {
  if (slot.cgroup.has_memory()) {
    int64_t count = slot.cgroup.oom_kills();
    return count > std::exchange(slot.oom_kills, count);
  }
  int64_t count = cgroup_oom_kills(own_cgroups_);
  return count > std::exchange(oom_kills_, count);
}

void LocalWorker::note_memory(Slot& slot, AssignedAttempt& running, const TaskFinished& finished) {
  constexpr int kKilledExit =
      128 + SIGKILL;  // the exit code that a shell reports for a killed program
  bool has_failed = finished.outcome == TaskFinished::Outcome::failed;
  bool is_killed =
      has_failed &&
      ((finished.failure.cause == core::Cause::signal && finished.failure.code == SIGKILL) ||
       (finished.failure.cause == core::Cause::exit_code && finished.failure.code == kKilledExit));
  if (running.over_memory || !(slot.has_limit || is_killed)) return;
  if (!has_new_oom_kill(slot)) return;
  running.over_memory = true;
  running.group_peak = slot.cgroup.peak_bytes();
}

}  // namespace flow
