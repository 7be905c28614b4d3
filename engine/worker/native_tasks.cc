#include "engine/worker/native_tasks.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr int64_t kUsPerMs = 1000;

/// Sets this thread's signal mask while it lives.
class SignalMask {
 public:
  explicit SignalMask(const sigset_t& mask) { ::pthread_sigmask(SIG_SETMASK, &mask, &before_); }
  ~SignalMask() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

 private:
  sigset_t before_;
};

/// CPU time of this thread. As of an executor's attempts, it is read at most every 5 ms
/// when tasks begin, and is unknown of shorter tasks that follow each other faster than that.
class ThreadCpu {
 public:
  void begin(int64_t now_us) {
    began_us_ = now_us;
    if (now_us - mark_us_ < kMarkUs) return;
    mark_cpu_us_ = read_us();
    mark_us_ = now_us;
    busy_us_ = 0;
  }
  /// -1: unknown.
  int64_t end(int64_t now_us) {
    int64_t duration_us = now_us - began_us_, earlier_us = busy_us_;
    busy_us_ += duration_us;
    if (mark_us_ != began_us_ && duration_us < kMarkUs) return -1;
    return std::max<int64_t>(0, read_us() - mark_cpu_us_ - earlier_us);
  }

 private:
  static constexpr int64_t kMarkUs = 5'000;
  static int64_t read_us() {
    constexpr int64_t kUsPerSecond = 1'000'000, kNsPerUs = 1'000;
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * kUsPerSecond + time.tv_nsec / kNsPerUs;
  }
  int64_t mark_us_ = -kMarkUs, mark_cpu_us_ = 0, began_us_ = 0, busy_us_ = 0;
};

class NativeContext final : public TaskContext {
 public:
  NativeContext(const AttemptOrder& order, const std::atomic<bool>& stopping,
                const std::function<void(std::vector<Report>)>& on_report)
      : order_(order), secrets_(order.hide), stopping_(stopping), on_report_(on_report) {}
  const std::string& run() const override { return order_.id.run; }
  const std::string& task() const override { return order_.task; }
  uint32_t attempt() const override { return order_.id.attempt; }
  uint64_t seed() const override { return order_.seed; }
  bool stopping() const override { return stopping_.load() || is_late(); }
  const std::vector<std::string>& gpus() const override { return order_.gpus; }
  void log(const std::string& line) override {
    on_report_({{order_.id, 0, now_ms(), LogLines{0, secrets_.hidden(line)}}});
  }
  int64_t began_us() const { return began_us_; }
  int64_t elapsed_us() const { return monotonic_us() - began_us_; }
  bool is_late() const {
    return order_.timeout_ms > 0 && elapsed_us() > order_.timeout_ms * kUsPerMs;
  }
  void progress(double fraction) override {
    on_report_({{order_.id, 0, 0, ProgressReported{fraction, ""}}});
  }

 private:
  const AttemptOrder& order_;
  const Secrets secrets_;
  const std::atomic<bool>& stopping_;
  const std::function<void(std::vector<Report>)>& on_report_;
  const int64_t began_us_ = monotonic_us();
};

core::Failure late(const AttemptOrder& order, int64_t elapsed_us) {
  core::Failure failure;
  failure.cause = core::Cause::timeout;
  failure.message = fmt::format(
      "`{}` ran longer than its timeout of {} and its result is rejected, because it ended after "
      "{}; "
      "`timeout` gives it more time",
      order.shown_task(), format_duration(order.timeout_ms),
      format_duration(elapsed_us / kUsPerMs));
  return failure;
}

}  // namespace

NativeRunner::NativeRunner(int32_t threads_max, std::function<void(std::vector<Report>)> on_report)
    : threads_max_(threads_max > 0 ? static_cast<size_t>(threads_max)
                                   : std::max(std::thread::hardware_concurrency(), 1u)),
      on_report_(std::move(on_report)) {}

// Attempts that have not begun do not begin.
NativeRunner::~NativeRunner() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    for (auto& [id, stopping] : running_) stopping->store(true);
  }
  thread_pool_.reset();
}

void NativeRunner::define(const std::string& name, const std::string& version, NativeTask task) {
  std::lock_guard lock(mutex_);
  tasks_[name] = {version, std::move(task)};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &host_mask_);
}

std::optional<std::string> NativeRunner::version(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = tasks_.find(name);
  if (found == tasks_.end()) return std::nullopt;
  return found->second.first;
}

void NativeRunner::start(AttemptOrder order, const std::string& definition) {
  auto job = std::make_shared<Job>();
  job->order = std::move(order);
  job->definition = definition;
  job->stopping = std::make_shared<std::atomic<bool>>(false);
  Status started = start_threads();
  if (!started.ok()) {
    TaskFinished finished;
    finished.outcome = TaskFinished::Outcome::failed;
    finished.failure.cause = core::Cause::internal;
    finished.failure.message = started.error().message;
    return on_report_({{job->order.id, 0, 0, std::move(finished)}});
  }
  {
    std::lock_guard lock(mutex_);
    running_[job->order.id] = job->stopping;
  }
  thread_pool_->post([this, job] { run_job(*job); });  // as many as the core assigns
}

Status NativeRunner::start_threads() {
  std::lock_guard lock(mutex_);
  if (thread_pool_) return {};
  auto started = ThreadPool::start({.name = "flow-native", .threads_max = threads_max_});
  FLOW_TRY(started);
  thread_pool_ = std::move(*started);
  return {};
}

void NativeRunner::stop(const core::AttemptId& id) {
  std::lock_guard lock(mutex_);
  auto found = running_.find(id);
  if (found != running_.end()) found->second->store(true);
}

// Native tasks and their child processes use the signal mask of the host program's threads.
void NativeRunner::run_job(Job& job) {
  NativeTask task;
  sigset_t mask;
  {
    std::lock_guard lock(mutex_);
    if (quit_) return;
    auto found = tasks_.find(job.definition);
    if (found != tasks_.end()) task = found->second.second;
    mask = host_mask_;
  }
  TaskFinished finished;
  {
    SignalMask of_host(mask);
    finished = run(job, task);
  }
  on_report_({{job.order.id, 0, 0, std::move(finished)}});
  std::lock_guard lock(mutex_);
  running_.erase(job.order.id);
}

TaskFinished NativeRunner::run(Job& job, const NativeTask& task) {
  TaskFinished finished;
  finished.outcome = TaskFinished::Outcome::failed;
  finished.failure.cause = core::Cause::user_error;
  if (!task) {
    finished.failure.message = fmt::format(
        "the native task `{}` is not defined in this program: call engine.define(\"{}\", …) first",
        job.definition, job.definition);
    return finished;
  }
  int64_t ordered_us = monotonic_us();
  auto args = decode_value(job.order.args);
  FLOW_CHECK(args.ok());
  NativeContext context(job.order, *job.stopping, on_report_);
  static thread_local ThreadCpu cpu;
  cpu.begin(context.began_us());
  finished.usage.stage_us = context.began_us() - ordered_us;
  try {
    Value result = task(context, *args);
    if (context.is_late()) {
      finished.failure = late(job.order, context.elapsed_us());
    } else if (job.stopping->load() && result.is_nil()) {
      finished.outcome = TaskFinished::Outcome::stopped;
    } else {
      finished.value = encode_value(result);
      finished.outcome = TaskFinished::Outcome::succeeded;
      finished.failure = {};
    }
  } catch (const std::exception& error) {
    constexpr size_t kMessageMax = 16 << 10;
    finished.failure.message =
        fmt::format("the native task `{}` failed: {}", job.definition,
                    cut_text(Secrets(job.order.hide).hidden(error.what()), kMessageMax));
  } catch (...) {
    finished.failure.message = fmt::format(
        "the native task `{}` threw something that is not a std::exception", job.definition);
  }
  finished.duration_us = context.elapsed_us();
  finished.received_us = context.began_us() + finished.duration_us;
  finished.usage.commit_us = 0;
  finished.usage.cpu_us = cpu.end(finished.received_us);
  return finished;
}

}  // namespace flow
