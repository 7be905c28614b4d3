// The worker of this machine: one thread, an epoll over its executors, and a bounded pipeline of
// short attempts in each.
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/worker/slot.hpp"

namespace flow {

namespace {

constexpr size_t kPipelineMax = 16;  // orders in one executor's hands
constexpr int64_t kSlowUs =
    5'000;  // an attempt that takes longer lets go of what is queued behind it
constexpr int64_t kMemoryCheckUs = 100'000;
constexpr int kTickMs = 20;
constexpr size_t kTailLines = 20;
constexpr int kEventsMax = 64;

class LocalWorker final : public Worker {
 public:
  LocalWorker(const WorkerOptions& options, OnReport on_report)
      : options_(options), on_report_(std::move(on_report)) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watch(wake_, &wake_, EPOLLIN);
    thread_ = std::thread([this] { loop(); });
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

  void start(std::vector<AttemptOrder> orders) override {
    std::lock_guard lock(mutex_);
    bool first = inbox_.empty();
    for (AttemptOrder& order : orders)
      inbox_.push_back({Ask::Kind::start, std::move(order), {}, "", false});
    if (first) wake();
  }

  void stop(const core::AttemptId& id, bool kill) override {
    ask({Ask::Kind::stop, {}, id, "", kill});
  }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    ask({Ask::Kind::saved, {}, id, name, ok});
  }

 private:
  struct Ask {
    enum class Kind : uint8_t { start, stop, saved } kind;
    AttemptOrder order;
    core::AttemptId id;
    std::string name;
    bool flag;
  };

  void ask(Ask what) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(what));
    wake();
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

  void loop() {
    epoll_event events[kEventsMax];
    while (true) {
      int count = ::epoll_wait(epoll_, events, kEventsMax, needs_tick() ? kTickMs : -1);
      std::vector<Ask> asked;
      {
        std::lock_guard lock(mutex_);
        if (quit_) break;
        asked.swap(inbox_);
      }
      for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == &wake_) {
          uint64_t drained;
          (void)!::read(wake_, &drained, sizeof drained);
        }
      }
      for (Ask& what : asked) take(what);
      for (auto slot = slots_.begin(); slot != slots_.end();) {
        bool alive = read_slot(*slot);
        if (alive) {
          ++slot;
        } else {
          bury(*slot);
          slot = slots_.erase(slot);
        }
      }
      tick();
      dispatch();
      for (Slot& slot : slots_) write_slot(slot);
      if (!reports_.empty()) on_report_(std::exchange(reports_, {}));
    }
    for (Slot& slot : slots_) end(slot);
    slots_.clear();
  }

  bool needs_tick() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      if (slot.queue.empty()) return !slot.out.empty();
      const Running& front = slot.queue.front();
      return front.order.timeout_ms > 0 || front.kill_at_us > 0 ||
             front.order.resources.memory_bytes > 0 || slot.queue.size() > 1 || !slot.out.empty();
    });
  }

  void take(Ask& what) {
    switch (what.kind) {
      case Ask::Kind::start:
        pending_.push_back(std::move(what.order));
        return;
      case Ask::Kind::saved:
        if (Slot* slot = slot_of(what.id)) {
          wire::ToExecutor message;
          *message.mutable_saved()->mutable_id() = wire_name(what.id);
          message.mutable_saved()->set_name(what.name);
          message.mutable_saved()->set_ok(what.flag);
          append_frame(slot->out, message);
        }
        return;
      case Ask::Kind::stop:
        stop_attempt(what.id, what.flag);
        return;
    }
  }

  Slot* slot_of(const core::AttemptId& id) {
    for (Slot& slot : slots_) {
      for (const Running& running : slot.queue) {
        if (running.order.id == id) return &slot;
      }
    }
    return nullptr;
  }

  void stop_attempt(const core::AttemptId& id, bool kill) {
    for (auto order = pending_.begin(); order != pending_.end(); ++order) {
      if (order->id != id) continue;
      report_end(id, Report::Outcome::stopped, {});
      pending_.erase(order);
      return;
    }
    Slot* slot = slot_of(id);
    if (slot == nullptr) return;
    if (slot->queue.front().order.id != id) return send_stop(*slot, id);
    Running& front = slot->queue.front();
    front.stopped = true;
    if (kill) return kill_slot(*slot);
    send_stop(*slot, id);
    if (front.kill_at_us == 0) front.kill_at_us = monotonic_us() + front.order.grace_ms * 1000;
  }

  void send_stop(Slot& slot, const core::AttemptId& id) {
    wire::ToExecutor message;
    *message.mutable_stop()->mutable_id() = wire_name(id);
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
      if (!slot.queue.empty()) slot.queue.front().program = message.started().pid();
      return;
    }
    if (message.has_returned()) {
      for (const wire::AttemptName& name : message.returned().ids())
        give_back(slot, attempt_id(name));
      return;
    }
    Report report{};
    if (!to_report(message, report)) return;
    auto running = std::find_if(slot.queue.begin(), slot.queue.end(),
                                [&](const Running& r) { return r.order.id == report.id; });
    if (running == slot.queue.end()) return;  // of an attempt that this slot does not have: a stray
    if (report.kind == Report::Kind::finished) {
      adjust(*running, report);
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
  void adjust(const Running& running, Report& report) {
    if (report.outcome == Report::Outcome::succeeded) return;
    if (running.timed_out) {
      report.outcome = Report::Outcome::failed;
      report.failure = timeout_failure(running, report.failure.evidence);
    } else if (running.stopped && report.outcome == Report::Outcome::failed) {
      report.outcome = Report::Outcome::stopped;
    }
  }

  static core::Failure timeout_failure(const Running& running, const std::string& evidence) {
    core::Failure failure;
    failure.cause = core::Cause::timeout;
    failure.message = fmt::format("`{}` ran longer than its timeout of {} s and was ended",
                                  running.order.task, running.order.timeout_ms / 1000.0);
    failure.evidence = evidence;
    return failure;
  }

  void give_back(Slot& slot, const core::AttemptId& id) {
    for (auto running = slot.queue.begin(); running != slot.queue.end(); ++running) {
      if (running->order.id != id) continue;
      pending_.push_front(std::move(running->order));
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
      if (slot.errors_partial.size() > (1 << 20))
        error_line(slot, std::exchange(slot.errors_partial, ""));
    }
  }

  void error_line(Slot& slot, const std::string& line) {
    slot.errors_tail.push_back(line.substr(0, 2000));
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

  void kill_slot(Slot& slot) {
    if (!slot.queue.empty() && slot.queue.front().program > 0)
      ::kill(-slot.queue.front().program, SIGKILL);
    ::kill(-slot.process.pid, SIGKILL);
  }

  void end(Slot& slot) {
    kill_slot(slot);
    ::waitpid(slot.process.pid, nullptr, 0);
    close_slot(slot);
  }

  void close_slot(Slot& slot) {
    ::close(slot.process.wire);
    ::close(slot.process.errors);
    ::close(slot.process.pidfd);
  }

  /// The process is gone: its first attempt ended with it, the others never started.
  void bury(Slot& slot) {
    kill_slot(slot);
    int status = 0;
    ::waitpid(slot.process.pid, &status, 0);
    read_errors(slot);
    if (!slot.errors_partial.empty()) error_line(slot, slot.errors_partial);
    for (size_t i = slot.queue.size(); i > 1; i--)
      pending_.push_front(std::move(slot.queue[i - 1].order));
    if (!slot.queue.empty()) {
      const Running& front = slot.queue.front();
      if (front.stopped) {
        report_end(front.order.id, Report::Outcome::stopped, {});
      } else {
        report_end(front.order.id, Report::Outcome::failed, death_of(slot, front, status));
      }
    }
    close_slot(slot);
  }

  core::Failure death_of(const Slot& slot, const Running& front, int status) {
    std::string tail;
    for (const std::string& line : slot.errors_tail) tail += line + "\n";
    if (front.timed_out) return timeout_failure(front, tail);
    core::Failure failure;
    failure.evidence = tail;
    if (front.over_memory) {
      failure.cause = core::Cause::out_of_memory;
      failure.message = fmt::format("`{}` used {} MiB of memory, its limit is {} MiB: it was ended",
                                    front.order.task, front.memory_peak >> 20,
                                    front.order.resources.memory_bytes >> 20);
    } else if (WIFSIGNALED(status)) {
      failure.cause = core::Cause::signal;
      failure.code = WTERMSIG(status);
      failure.message = fmt::format("`{}` died by signal {} ({})", front.order.task, failure.code,
                                    ::strsignal(failure.code));
    } else {
      failure.cause = core::Cause::exit_code;
      failure.code = WEXITSTATUS(status);
      failure.message = fmt::format("the process of `{}` ended with exit code {}", front.order.task,
                                    failure.code);
    }
    return failure;
  }

  // ---- time and memory
  // --------------------------------------------------------------------------------------

  void tick() {
    int64_t now = monotonic_us();
    bool check_memory = now - memory_checked_us_ >= kMemoryCheckUs;
    if (check_memory) memory_checked_us_ = now;
    for (Slot& slot : slots_) {
      if (slot.queue.empty()) continue;
      Running& front = slot.queue.front();
      int64_t timeout_us = front.order.timeout_ms * 1000;
      if (timeout_us > 0 && !front.timed_out && now - front.since_us >= timeout_us) {
        front.timed_out = true;
        send_stop(slot, front.order.id);
        if (front.kill_at_us == 0) front.kill_at_us = now + front.order.grace_ms * 1000;
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

  void dispatch() {
    if (pending_.empty()) return;
    int32_t used = cpus_in_use();
    int32_t all = options_.executors_max * 1000;
    while (!pending_.empty()) {
      AttemptOrder& order = pending_.front();
      int32_t needs = order.kind == TaskKind::service ? 0 : order.resources.cpus_milli;
      Slot* slot = used + needs <= all || used == 0 ? idle_slot() : nullptr;
      if (slot != nullptr) {
        used += needs;
      } else {
        slot = is_alone(order) ? nullptr : shortest_slot();
      }
      if (slot == nullptr) return;
      send(*slot, std::move(order));
      pending_.pop_front();
    }
  }

  Slot* idle_slot() {
    for (Slot& slot : slots_) {
      if (slot.queue.empty()) return &slot;
    }
    auto process = spawn_executor(options_.executor, {"--state", options_.state_dir},
                                  {{"FLOW_SLOT", options_.state_dir}});
    if (!process.ok()) {
      // Nothing can start: the first order fails with the cause, and the next one tries again.
      core::Failure failure;
      failure.cause = core::Cause::staging;
      failure.message = process.error().message;
      report_end(pending_.front().id, Report::Outcome::failed, std::move(failure));
      pending_.pop_front();
      return nullptr;
    }
    Slot& slot = slots_.emplace_back();
    slot.process = *process;
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
      const Running& front = slot.queue.front();
      bool slow = slot.recalled || is_alone(front.order) || now - front.since_us > kSlowUs;
      if (!slow && (best == nullptr || slot.queue.size() < best->queue.size())) best = &slot;
    }
    return best;
  }

  void send(Slot& slot, AttemptOrder order) {
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
    append_frame(slot.out, message);
    Running running;
    running.order = std::move(order);
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
    size_t at = 0;
    while (at < slot.out.size()) {
      ssize_t written = ::write(slot.process.wire, slot.out.data() + at, slot.out.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;  // full: the next tick goes on; gone: reading tells
      at += static_cast<size_t>(written);
    }
    slot.out.erase(0, at);
  }

  const WorkerOptions options_;
  const OnReport on_report_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;
  std::vector<Ask> inbox_;
  bool quit_ = false;

  // The worker's thread's alone.
  std::deque<AttemptOrder> pending_;
  std::list<Slot> slots_;
  std::vector<Report> reports_;
  int64_t memory_checked_us_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(const WorkerOptions& options,
                                            Worker::OnReport on_report) {
  kill_leftovers(options.state_dir);
  FLOW_TRY(make_dirs(options.state_dir + "/scratch"));
  return std::unique_ptr<Worker>(std::make_unique<LocalWorker>(options, std::move(on_report)));
}

}  // namespace flow
