#include "engine/worker/gpu_meter.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/worker/gpu_watch.hpp"

namespace flow {

namespace {

constexpr int64_t kGiveUpUs = 30'000'000;  // a driver that initializes its GPUs takes seconds
constexpr int64_t kRestartUs = 10'000'000;
constexpr double kMilli = 1000;
constexpr int32_t kWhole = 1000;

void discard(int descriptor) {
  char chunk[4096];
  while (::read(descriptor, chunk, sizeof chunk) > 0) {
  }
}

}  // namespace

GpuMeter::GpuMeter(std::string executor, std::function<void()> on_ready)
    : executor_(std::move(executor)),
      on_ready_(std::move(on_ready)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

GpuMeter::~GpuMeter() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  if (child_) end_executor(*child_);
  ::close(wake_);
}

void GpuMeter::wake() const {
  uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void GpuMeter::begin(const RankId& id, const std::vector<std::string>& uuids, int32_t milli) {
  std::lock_guard lock(mutex_);
  bool is_known = milli > 0 && milli < kWhole;
  accounts_.begin(id, uuids, is_known ? milli / kMilli : 1, monotonic_us());
  is_wanted_ = true;
  if (!thread_.joinable()) thread_ = engine_thread([this] { loop(); });
  wake();
}

bool GpuMeter::end(const RankId& id) {
  std::lock_guard lock(mutex_);
  if (!accounts_.has(id)) return false;
  int64_t now_us = monotonic_us();
  accounts_.end(id, now_us);
  ended_.push_back({id, now_us});
  is_wanted_ = true;
  wake();
  return true;
}

void GpuMeter::drop(const RankId& id) {
  std::lock_guard lock(mutex_);
  bool has_ended = std::ranges::find(ended_, id, &EndedRank::id) != ended_.end();
  if (has_ended) return;
  accounts_.end(id, monotonic_us());
  accounts_.take(id);
}

std::vector<std::pair<RankId, core::AttemptUsage>> GpuMeter::take_ready() {
  std::lock_guard lock(mutex_);
  return std::exchange(ready_, {});
}

bool GpuMeter::is_unusable(int64_t now_us) const {
  return lost_us_ && now_us < *lost_us_ + kRestartUs;
}

bool GpuMeter::may_settle(const EndedRank& ended, int64_t now_us) const {
  bool is_late = is_asked_ && now_us >= asked_us_ + kAnswerUs;
  return is_late || is_unusable(now_us) || now_us >= ended.at_us + kAnswerUs ||
         !accounts_.lacks_sample_since(ended.id, ended.at_us - kAgainUs);
}

bool GpuMeter::settle(int64_t now_us) {
  bool has_some = false;
  while (!ended_.empty() && may_settle(ended_.front(), now_us)) {
    ready_.emplace_back(ended_.front().id, accounts_.take(ended_.front().id));
    ended_.pop_front();
    has_some = true;
  }
  return has_some;
}

int64_t GpuMeter::due_us() const {
  if (accounts_.gpus().empty()) return INT64_MAX;
  if (is_asked_) return asked_us_ + kGiveUpUs;
  int64_t due = asked_us_ + (is_wanted_ ? kAgainUs : kEveryUs);
  return lost_us_ ? std::max(due, *lost_us_ + kRestartUs) : due;
}

int GpuMeter::timeout_ms(int64_t now_us) const {
  int64_t until = due_us();
  if (!ended_.empty()) until = std::min(until, ended_.front().at_us + kAnswerUs);
  if (until == INT64_MAX) return -1;
  constexpr int64_t kUsPerMs = 1000;
  return static_cast<int>(std::max<int64_t>(0, (until - now_us + kUsPerMs - 1) / kUsPerMs));
}

void GpuMeter::loop() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    int64_t now_us = monotonic_us();
    bool has_ready = settle(now_us);
    bool is_due = now_us >= due_us();
    int wait_ms = has_ready || is_due ? 0 : timeout_ms(now_us);
    lock.unlock();
    if (has_ready) on_ready_();
    if (is_due) ask(now_us);
    listen(wait_ms);
    lock.lock();
  }
}

// A child that has not answered the last question is given up.
void GpuMeter::ask(int64_t now_us) {
  wire::ToExecutor message;
  bool has_timed_out = false;
  {
    std::lock_guard lock(mutex_);
    has_timed_out = is_asked_;
    asked_ = accounts_.gpus();
    for (const std::string& uuid : asked_) message.mutable_measure_gpus()->add_uuids(uuid);
    asked_us_ = now_us;
    is_wanted_ = false;
    is_asked_ = !has_timed_out;
  }
  if (has_timed_out) return lose_child();
  if (!child_) {
    auto started = spawn_executor(executor_, {"--measure-gpus"}, {});
    if (!started.ok()) return lose_child();
    child_ = *started;
    cutter_ = {};
    std::lock_guard lock(mutex_);
    lost_us_.reset();
  }
  std::string out;
  append_frame(out, message);
  // It fits, because there is at most one question.
  bool is_sent = ::write(child_->wire, out.data(), out.size()) == static_cast<ssize_t>(out.size());
  if (!is_sent) lose_child();
}

void GpuMeter::listen(int timeout_ms) {
  pollfd watched[] = {{wake_, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  if (child_) {
    watched[1].fd = child_->wire;
    watched[2].fd = child_->errors;
  }
  if (::poll(watched, 3, timeout_ms) <= 0) return;
  uint64_t drained;
  if (watched[0].revents != 0) (void)!::read(wake_, &drained, sizeof drained);
  if (watched[2].revents != 0) discard(child_->errors);
  if (watched[1].revents != 0 && !read_samples()) lose_child();
}

bool GpuMeter::read_samples() {
  char chunk[4096];
  ssize_t got = ::read(child_->wire, chunk, sizeof chunk);
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  cutter_.add({chunk, static_cast<size_t>(got)});
  std::string_view frame;
  bool broken = false;
  while (cutter_.next(frame, broken)) {
    wire::FromExecutor message;
    if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return false;
    std::lock_guard lock(mutex_);
    is_asked_ = false;
    int64_t now_us = monotonic_us();
    for (const wire::GpuSample& sample : message.gpu_samples().samples()) {
      std::erase(asked_, sample.uuid());
      accounts_.add(get_sample(sample), now_us);
    }
    for (std::string& uuid : std::exchange(asked_, {}))  // it cannot be measured
      accounts_.add({.uuid = std::move(uuid)}, now_us);
    is_wanted_ = false;  // it covers what began or ended meanwhile
  }
  return !broken;
}

void GpuMeter::lose_child() {
  if (child_) end_executor(*child_);
  child_.reset();
  std::lock_guard lock(mutex_);
  is_asked_ = false;
  lost_us_ = monotonic_us();
}

}  // namespace flow
