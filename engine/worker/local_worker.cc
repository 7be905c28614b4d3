// The worker of this machine: an epoll over its executors, and a bounded pipeline of short attempts
// in each. One thread of its own reads; who asks writes to idle executors at once, under the lock.
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "engine/base/awake.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/worker/slot.hpp"

namespace flow {

namespace {

constexpr size_t kPipelineMax = 64;  // orders in one executor's hands
constexpr int64_t kSlowUs =
    5'000;  // an attempt that takes longer lets go of what is queued behind it
constexpr int64_t kMemoryCheckUs = 100'000;
constexpr int kTickMs = 20;
constexpr int64_t kDyingUs = 500'000;         // an executor that is told to end has this long
constexpr int64_t kTerminatedUs = 2'000'000;  // from SIGTERM to SIGKILL of what was interrupted
constexpr size_t kRememberedMax = 64;         // runs and bundles of one executor: then a new one
constexpr size_t kTailLines = 20;
constexpr size_t kTailLineMax = 2000;
constexpr size_t kErrorLineMax = 64 * 1024;
constexpr int kEventsMax = 64;
constexpr int64_t kAwakeUs = 100;

class LocalWorker final : public Worker {
 public:
  LocalWorker(const WorkerOptions& options, OnReport on_report)
      : options_(options), on_report_(std::move(on_report)) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watch(wake_, &wake_, EPOLLIN);
    // The host's signals are for the host's threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { loop(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~LocalWorker() override {
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake();
    thread_.join();
    ::close(epoll_);
    ::close(wake_);
  }

  void stage(std::vector<AttemptOrder> orders) override {
    std::lock_guard lock(mutex_);
    for (AttemptOrder& order : orders) pending_.push_back({std::move(order), true});
    any_staged_ = true;
    act();
  }

  void release() override {
    std::lock_guard lock(mutex_);
    if (!std::exchange(any_staged_, false)) return;
    for (Pending& pending : pending_) pending.staged = false;
    for (Slot& slot : slots_) {
      if (!std::exchange(slot.was_staged, false)) continue;
      wire::ToExecutor message;
      message.mutable_release();
      append_frame(slot.out, message);
      write_slot(slot);
    }
  }

  void stop(const core::AttemptId& id, bool kill) override {
    std::lock_guard lock(mutex_);
    stop_attempt(id, kill, false);
    act();
  }
  void interrupt(const core::AttemptId& id) override {
    std::lock_guard lock(mutex_);
    stop_attempt(id, false, true);
    act();
  }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    std::lock_guard lock(mutex_);
    Slot* slot = slot_of(id);
    if (slot == nullptr) return;
    wire::ToExecutor message;
    *message.mutable_saved()->mutable_id() = wire_name(id);
    message.mutable_saved()->set_name(name);
    message.mutable_saved()->set_ok(ok);
    append_frame(slot->out, message);
    write_slot(*slot);
  }

 private:
  struct Pending {
    AttemptOrder order;
    bool staged = false;
  };

  // ---- on whichever thread asks

  /// What can be sent now is sent now; the rest is for the worker's thread.
  void act() {
    bool wants_executor = dispatch(false);
    for (Slot& slot : slots_) write_slot(slot);
    bool wants_thread = wants_executor || !reports_.empty() || (waits_long_ && needs_tick());
    if (wants_thread) wake();
  }

  void wake() {
    uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
  }

  void watch(int descriptor, void* who, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = who;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
  }

  // ---- on the worker's thread

  void loop() {
    epoll_event events[kEventsMax];
    std::unique_lock lock(mutex_);
    while (true) {
      waits_long_ = !needs_tick();
      int64_t awake_us = expects_soon() ? kAwakeUs : 0;
      lock.unlock();
      int count = wait(events, awake_us, waits_long_ ? -1 : kTickMs);
      lock.lock();
      waits_long_ = false;
      if (quit_) break;
      for (int i = 0; i < count; i++) handle_event(events[i].data.ptr);
      bury_dead();
      tick();
      dispatch(true);
      for (Slot& slot : slots_) write_slot(slot);
      if (reports_.empty()) continue;
      std::vector<Report> reports = std::exchange(reports_, {});
      lock.unlock();
      on_report_(std::move(reports));
      lock.lock();
    }
    end_all();
  }

  /// One attempt runs, and such attempts end sooner than a thread is woken: a step of a chain.
  bool expects_soon() const {
    size_t running = 0;
    for (const Slot& slot : slots_) running += slot.queue.size();
    return running == 1 && pending_.empty() && last_took_us_ < kAwakeUs;
  }

  int wait(epoll_event* events, int64_t awake_us, int timeout_ms) {
    int64_t until_us = awake_us > 0 ? monotonic_us() + awake_us : 0;
    while (until_us > 0 && monotonic_us() < until_us) {
      int count = ::epoll_wait(epoll_, events, kEventsMax, 0);
      if (count != 0) return count;
      pause_awake();
    }
    return ::epoll_wait(epoll_, events, kEventsMax, timeout_ms);
  }

  void handle_event(void* who) {
    if (who == &wake_) {
      uint64_t drained;
      (void)!::read(wake_, &drained, sizeof drained);
      return;
    }
    auto& slot = *static_cast<Slot*>(who);
    if (!slot.is_gone) slot.is_gone = !read_slot(slot);
  }

  void bury_dead() {
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      if (!slot->is_gone) {
        ++slot;
        continue;
      }
      bury(*slot);
      slot = slots_.erase(slot);
    }
  }

  bool needs_tick() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      if (slot.dying_since_us > 0) return true;
      if (slot.queue.empty()) return false;
      const Running& front = slot.queue.front();
      return front.order.timeout_ms > 0 || front.kill_at_us > 0 || front.terminate_at_us > 0 ||
             front.order.resources.memory_bytes > 0 || slot.queue.size() > 1;
    });
  }

  Slot* slot_of(const core::AttemptId& id) {
    for (Slot& slot : slots_) {
      for (const Running& running : slot.queue) {
        if (running.order.id == id) return &slot;
      }
    }
    return nullptr;
  }

  void stop_attempt(const core::AttemptId& id, bool kill, bool gentle) {
    for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
      if (pending->order.id != id) continue;
      report_end(id, Report::Outcome::stopped, {});
      pending_.erase(pending);
      return;
    }
    for (Slot& slot : slots_) {
      for (Running& running : slot.queue) {
        if (running.order.id == id) return stop_running(slot, running, kill, gentle);
      }
    }
  }

  void stop_running(Slot& slot, Running& running, bool kill, bool gentle) {
    running.stopped = true;
    bool is_first = &running == &slot.queue.front();
    if (kill && is_first) return kill_slot(slot);
    send_stop(slot, running.order.id, gentle);
    int64_t now = monotonic_us(), grace_us = kill ? 0 : running.order.grace_ms * 1000;
    if (gentle) {
      running.terminate_at_us = now + grace_us;
    } else {
      kill_by(running, now + grace_us);
    }
  }

  static void kill_by(Running& running, int64_t at_us) {
    if (running.kill_at_us == 0 || at_us < running.kill_at_us) running.kill_at_us = at_us;
  }

  void send_stop(Slot& slot, const core::AttemptId& id, bool gentle = false) {
    wire::ToExecutor message;
    *message.mutable_stop()->mutable_id() = wire_name(id);
    message.mutable_stop()->set_gentle(gentle);
    append_frame(slot.out, message);
  }

  // ---- from executors
  // ---------------------------------------------------------------------------------------

  /// Reads what the slot says; false when its process is gone.
  bool read_slot(Slot& slot) {
    static thread_local std::string chunk(256 * 1024, '\0');
    bool open = true;
    while (true) {
      ssize_t got = ::read(slot.process.wire, chunk.data(), chunk.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        open = errno == EAGAIN;
        break;
      }
      if (got == 0) {
        open = false;
        break;
      }
      slot.cutter.add({chunk.data(), static_cast<size_t>(got)});
      if (!cut(slot)) {
        slot.broken = true;
        kill_slot(slot);
        return false;
      }
    }
    read_errors(slot);
    return open;
  }

  bool cut(Slot& slot) {
    std::string_view frame;
    bool broken = false;
    while (slot.cutter.next(frame, broken)) {
      wire::FromExecutor message;
      if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return false;
      handle(slot, message);
    }
    return !broken;
  }

  void handle(Slot& slot, wire::FromExecutor& message) {
    if (message.has_started()) {
      bool is_group = message.started().pid() > 1;  // to kill 1 is to kill everybody
      if (!slot.queue.empty() && is_group) slot.queue.front().program = message.started().pid();
      return;
    }
    if (message.has_returned()) {
      for (int i = message.returned().ids_size(); i > 0; i--)
        give_back(slot, attempt_id(message.returned().ids(i - 1)));
      return;
    }
    Report report{};
    if (!to_report(message, report)) return;
    auto running = std::find_if(slot.queue.begin(), slot.queue.end(),
                                [&](const Running& r) { return r.order.id == report.id; });
    if (running == slot.queue.end()) return;  // of an attempt that this slot does not have: a stray
    if (report.kind == Report::Kind::finished) {
      last_took_us_ = report.duration_us;
      adjust(slot, *running, report);
      bool was_first = running == slot.queue.begin();
      slot.queue.erase(running);
      if (was_first) {
        slot.recalled = false;
        if (!slot.queue.empty()) slot.queue.front().since_us = monotonic_us();
      }
    }
    reports_.push_back(std::move(report));
  }

  /// What the worker did to an attempt explains how it ended better than what the attempt says.
  static void adjust(const Slot& slot, const Running& running, Report& report) {
    if (report.outcome == Report::Outcome::succeeded) return;
    if (running.timed_out) {
      report.outcome = Report::Outcome::failed;
      report.failure = timeout_failure(running, report.failure.evidence);
    } else if (running.over_memory) {
      // Its program was killed first, and the executor may still tell of that.
      report.outcome = Report::Outcome::failed;
      report.failure = memory_failure(slot, running, report.failure.evidence);
    } else if (running.stopped && report.outcome == Report::Outcome::failed) {
      report.outcome = Report::Outcome::stopped;
    }
  }

  void give_back(Slot& slot, const core::AttemptId& id) {
    for (auto running = slot.queue.begin(); running != slot.queue.end(); ++running) {
      if (running->order.id != id) continue;
      pending_.push_front({std::move(running->order), running->staged && slot.was_staged});
      slot.queue.erase(running);
      return;
    }
  }

  void read_errors(Slot& slot) {
    char chunk[16 * 1024];
    while (true) {
      ssize_t got = ::read(slot.process.errors, chunk, sizeof chunk);
      if (got <= 0) break;
      slot.errors_partial.append(chunk, static_cast<size_t>(got));
      size_t at = 0;
      for (size_t end = slot.errors_partial.find('\n'); end != std::string::npos;
           end = slot.errors_partial.find('\n', at)) {
        error_line(slot, slot.errors_partial.substr(at, end - at));
        at = end + 1;
      }
      slot.errors_partial.erase(0, at);
      if (slot.errors_partial.size() > kErrorLineMax)
        error_line(slot, std::exchange(slot.errors_partial, ""));
    }
  }

  void error_line(Slot& slot, const std::string& line) {
    slot.errors_tail.push_back(line.substr(0, kTailLineMax));
    if (slot.errors_tail.size() > kTailLines) slot.errors_tail.pop_front();
    if (slot.queue.empty()) return;
    Report report{};
    report.kind = Report::Kind::log;
    report.id = slot.queue.front().order.id;
    report.stream = 2;
    report.text = line;
    report.at = now_ms();
    reports_.push_back(std::move(report));
  }

  void report_end(const core::AttemptId& id, Report::Outcome outcome, core::Failure failure) {
    Report report{};
    report.kind = Report::Kind::finished;
    report.id = id;
    report.outcome = outcome;
    report.failure = std::move(failure);
    reports_.push_back(std::move(report));
  }

  // ---- the end of an executor
  // -------------------------------------------------------------------------------

  /// Its attempt's program ends now. The executor sees its wire's end, kills what that program
  /// left, by descent, and ends too.
  void kill_slot(Slot& slot) {
    if (slot.dying_since_us > 0) return;
    slot.dying_since_us = monotonic_us();
    if (!slot.queue.empty() && slot.queue.front().program > 0)
      ::kill(-slot.queue.front().program, SIGKILL);
    ::shutdown(slot.process.wire, SHUT_WR);
    slot.out.clear();
  }

  void end_all() {
    for (Slot& slot : slots_) kill_slot(slot);
    int64_t deadline = monotonic_us() + kDyingUs;
    for (Slot& slot : slots_) {
      // What it still says nobody hears; but it must not wait for a reader.
      ::shutdown(slot.process.wire, SHUT_RDWR);
      pollfd ended{slot.process.pidfd, POLLIN, 0};
      int64_t left_ms = std::max<int64_t>(0, (deadline - monotonic_us()) / 1000);
      while (::poll(&ended, 1, static_cast<int>(left_ms)) < 0 && errno == EINTR) {
      }
      reap(slot);
    }
    slots_.clear();
  }

  /// Returns the wait status. Nothing of what it had started is left.
  int reap(Slot& slot) {
    ::kill(-slot.process.pid, SIGKILL);
    int status = 0;
    while (::waitpid(slot.process.pid, &status, 0) < 0 && errno == EINTR) {
    }
    // One that ended in order has cleaned up after itself.
    bool in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!in_order) kill_leftovers_of(options_.state_dir, slot.process.pid, slot.mark);
    forget_slot(options_.state_dir, slot.process.pid);
    read_errors(slot);
    ::close(slot.process.wire);
    ::close(slot.process.errors);
    ::close(slot.process.pidfd);
    return status;
  }

  /// The process is gone: its first attempt ended with it, the others never started.
  void bury(Slot& slot) {
    int status = reap(slot);
    if (!slot.errors_partial.empty()) error_line(slot, slot.errors_partial);
    auto was_ended = [&](const Running& running) {
      return running.stopped || running.timed_out || running.over_memory;
    };
    bool by_itself = slot.dying_since_us == 0 || slot.broken;
    if (!slot.queue.empty() && (by_itself || was_ended(slot.queue.front()))) {
      const Running& front = slot.queue.front();
      if (front.stopped) {
        report_end(front.order.id, Report::Outcome::stopped, {});
      } else {
        report_end(front.order.id, Report::Outcome::failed, death_of(slot, front, status));
      }
      slot.queue.pop_front();
    }
    for (size_t i = slot.queue.size(); i > 0; i--) {
      if (slot.queue[i - 1].stopped) {
        report_end(slot.queue[i - 1].order.id, Report::Outcome::stopped, {});
      } else {
        Running& running = slot.queue[i - 1];
        pending_.push_front({std::move(running.order), running.staged && slot.was_staged});
      }
    }
  }

  // ---- time and memory
  // --------------------------------------------------------------------------------------

  void tick() {
    int64_t now = monotonic_us();
    bool check_memory = now - memory_checked_us_ >= kMemoryCheckUs;
    if (check_memory) memory_checked_us_ = now;
    for (Slot& slot : slots_) {
      if (slot.dying_since_us > 0) {
        if (now - slot.dying_since_us > kDyingUs) ::kill(-slot.process.pid, SIGKILL);
        continue;
      }
      if (slot.queue.empty()) continue;
      Running& front = slot.queue.front();
      int64_t timeout_us = front.order.timeout_ms * 1000;
      if (timeout_us > 0 && !front.timed_out && now - front.since_us >= timeout_us) {
        front.timed_out = true;
        send_stop(slot, front.order.id);
        kill_by(front, now + front.order.grace_ms * 1000);
      }
      if (front.terminate_at_us > 0 && now >= front.terminate_at_us) {
        front.terminate_at_us = 0;
        send_stop(slot, front.order.id);
        kill_by(front, now + kTerminatedUs);
      }
      if (front.kill_at_us > 0 && now >= front.kill_at_us) kill_slot(slot);
      if (check_memory && front.order.resources.memory_bytes > 0) watch_memory(slot, front);
      bool blocks = slot.queue.size() > 1 && !slot.recalled && now - front.since_us > kSlowUs;
      if (blocks) {
        wire::ToExecutor message;
        message.mutable_return_queued();
        append_frame(slot.out, message);
        slot.recalled = true;
      }
    }
  }

  void watch_memory(Slot& slot, Running& front) {
    std::vector<pid_t> groups = {slot.process.pid};
    if (front.program > 0) groups.push_back(front.program);
    front.memory_peak = std::max(front.memory_peak, resident_bytes(groups));
    if (front.memory_peak <= front.order.resources.memory_bytes) return;
    front.over_memory = true;
    kill_slot(slot);
  }

  // ---- to executors
  // -----------------------------------------------------------------------------------------

  static bool is_alone(const AttemptOrder& order) {
    return order.kind == TaskKind::service || order.timeout_ms > 0 ||
           order.resources.memory_bytes > 0;
  }

  int32_t cpus_in_use() const {
    int32_t used = 0;
    for (const Slot& slot : slots_) {
      if (!slot.queue.empty() && slot.queue.front().order.kind != TaskKind::service)
        used += slot.queue.front().order.resources.cpus_milli;
    }
    return used;
  }

  /// True where something waits for an executor that only the worker's thread may start.
  bool dispatch(bool may_spawn) {
    if (pending_.empty()) return false;
    int32_t used = cpus_in_use();
    int32_t all = options_.executors_max * 1000;
    while (!pending_.empty()) {
      AttemptOrder& order = pending_.front().order;
      int32_t needs = order.kind == TaskKind::service ? 0 : order.resources.cpus_milli;
      bool has_room = used + needs <= all || used == 0;
      Slot* slot = has_room ? idle_slot() : nullptr;
      if (slot == nullptr && has_room) {
        if (!may_spawn) return true;
        slot = new_slot();
        if (slot == nullptr) continue;  // the order failed with the cause
      }
      if (slot != nullptr) {
        used += needs;
      } else {
        slot = is_alone(order) ? nullptr : shortest_slot();
      }
      if (slot == nullptr) return false;
      send(*slot, std::move(pending_.front()));
      pending_.pop_front();
    }
    return false;
  }

  Slot* idle_slot() {
    for (Slot& slot : slots_) {
      if (!slot.queue.empty() || slot.dying_since_us > 0 || slot.is_gone) continue;
      if (slot.environments.size() < kRememberedMax && slot.bundles.size() < kRememberedMax)
        return &slot;
      kill_slot(slot);
    }
    return nullptr;
  }

  /// Where none can start, the first order fails with the cause, and the next one tries again.
  Slot* new_slot() {
    std::string mark = slot_mark(options_.state_dir) + random_name();
    auto process =
        spawn_executor(options_.executor, {"--state", options_.state_dir}, {{"FLOW_SLOT", mark}});
    if (!process.ok()) {
      core::Failure failure;
      failure.cause = core::Cause::staging;
      failure.message = process.error().message;
      report_end(pending_.front().order.id, Report::Outcome::failed, std::move(failure));
      pending_.pop_front();
      return nullptr;
    }
    Slot& slot = slots_.emplace_back();
    slot.process = *process;
    slot.mark = std::move(mark);
    watch(slot.process.wire, &slot, EPOLLIN);
    watch(slot.process.errors, &slot, EPOLLIN);
    return &slot;
  }

  /// The slot with the shortest line whose running attempt is not known to be long.
  Slot* shortest_slot() {
    int64_t now = monotonic_us();
    Slot* best = nullptr;
    for (Slot& slot : slots_) {
      if (slot.queue.empty() || slot.queue.size() >= kPipelineMax) continue;
      if (slot.dying_since_us > 0 || slot.is_gone) continue;
      const Running& front = slot.queue.front();
      bool slow = slot.recalled || is_alone(front.order) || now - front.since_us > kSlowUs;
      if (!slow && (best == nullptr || slot.queue.size() < best->queue.size())) best = &slot;
    }
    return best;
  }

  void send(Slot& slot, Pending pending) {
    AttemptOrder& order = pending.order;
    if (order.bundle_bytes && slot.bundles.insert(order.bundle).second) {
      wire::ToExecutor message;
      message.mutable_load()->set_digest(std::string(order.bundle.view()));
      message.mutable_load()->set_bundle(*order.bundle_bytes);
      append_frame(slot.out, message);
    }
    if (order.environment && slot.environments.insert(order.id.run).second) {
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
    wire::ToExecutor message;
    fill_start(order, scratch, *message.mutable_start());
    message.mutable_start()->set_held(pending.staged);
    slot.was_staged = slot.was_staged || pending.staged;
    append_frame(slot.out, message);
    Running running;
    running.order = std::move(order);
    running.staged = pending.staged;
    // What was sent need not be kept, but for being given back: the arguments stay.
    if (slot.queue.empty()) running.since_us = monotonic_us();
    slot.queue.push_back(std::move(running));
  }

  /// A unit's name as one folder name.
  static std::string safe_name(const AttemptOrder& order) {
    std::string name = order.task;
    std::replace(name.begin(), name.end(), '/', '_');
    return fmt::format("{}.{}", name, order.id.unit);
  }

  void write_slot(Slot& slot) {
    if (slot.dying_since_us > 0) slot.out.clear();
    size_t at = 0;
    while (at < slot.out.size()) {
      ssize_t written = ::send(slot.process.wire, slot.out.data() + at, slot.out.size() - at,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // full: it is written on when there is room; gone: reading tells
      at += static_cast<size_t>(written);
    }
    slot.out.erase(0, at);
    if (slot.wants_write == !slot.out.empty()) return;
    slot.wants_write = !slot.out.empty();
    epoll_event event{};
    event.events = EPOLLIN | (slot.wants_write ? uint32_t{EPOLLOUT} : 0u);
    event.data.ptr = &slot;
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, slot.process.wire, &event);
  }

  const WorkerOptions options_;
  const OnReport on_report_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;  // of all that follows
  bool quit_ = false;
  bool waits_long_ = false;  // the thread wakes only when it is woken
  bool any_staged_ = false;
  std::deque<Pending> pending_;
  std::list<Slot> slots_;
  std::vector<Report> reports_;
  int64_t memory_checked_us_ = 0;
  int64_t last_took_us_ = kAwakeUs;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(const WorkerOptions& options,
                                            Worker::OnReport on_report) {
  FLOW_TRY(make_dirs(options.state_dir + "/scratch/slots"));
  kill_leftovers(options.state_dir);
  return std::unique_ptr<Worker>(std::make_unique<LocalWorker>(options, std::move(on_report)));
}

}  // namespace flow
