#include "transports/ucx/ucx_thread.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "transports/ucx/channel.hpp"

namespace flow::ucx {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr int64_t kSpinUs = 50;           // waking a thread takes ten times as long
constexpr int64_t kAloneUs = 5;           // of these without sched_yield
constexpr unsigned kProgressMost = 64;    // events before posted calls are checked again
constexpr unsigned kBusyTurnsMost = 256;  // iterations before the clock is read
constexpr int64_t kAcceptPollUs = 1000;
constexpr int64_t kCheckBusyMs = 20, kCheckIdleMs = 100;

}  // namespace

UcxThread::UcxThread(const UcxLibrary& library, const UcxThreadOptions& chosen)
    : ucx(library), options(chosen), acceptor(*this) {}

Result<std::shared_ptr<UcxThread>> UcxThread::start(const UcxLibrary& ucx,
                                                    const UcxThreadOptions& options) {
  std::shared_ptr<UcxThread> ucx_thread(new UcxThread(ucx, options));
  ucx_thread->wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (ucx_thread->wake_ < 0)
    return environment_error(fmt::format("cannot make an eventfd: {}", std::strerror(errno)));
  std::promise<Status> began;
  ucx_thread->thread_ = engine_thread([&began, raw = ucx_thread.get()] { raw->run_thread(began); });
  Status status = began.get_future().get();
  FLOW_TRY(status);
  return ucx_thread;
}

UcxThread::~UcxThread() {
  stop();
  if (wake_ >= 0) ::close(wake_);
}

void UcxThread::stop() {
  if (!thread_.joinable()) return;
  FLOW_CHECK(!is_here());
  run([this] { end_all(); });
  thread_.join();
}

void UcxThread::run_thread(std::promise<Status>& began) {
  here_ = std::this_thread::get_id();
  Status status = open();
  bool is_open = status.ok();
  if (!is_open) {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  if (!is_open) close();
  began.set_value(std::move(status));
  if (!is_open) return;
  while (turn()) {
  }
  close();
}

bool UcxThread::submit(std::function<void()> call) {
  bool must_wake = false;
  {
    std::lock_guard lock(mutex_);
    if (is_stopped_) return false;
    calls_.push_back(std::move(call));
    waiting_.store(calls_.size(), std::memory_order_relaxed);
    must_wake = std::exchange(is_sleeping_, false);
  }
  uint64_t one = 1;
  if (must_wake && ::write(wake_, &one, sizeof one) < 0) return true;  // it is awake already
  return true;
}

bool UcxThread::run_now(std::function<void()> call) {
  if (is_here()) {
    call();
    return true;
  }
  std::promise<void> ran;
  bool is_queued = submit([&] {
    call();
    ran.set_value();
  });
  if (is_queued) ran.get_future().wait();
  return is_queued;
}

bool UcxThread::turn() {
  bool is_active = run_calls();
  is_active |= progress();
  is_active |= acceptor.accept_requests();
  is_active |= run_pending();
  if (is_active) active_us_ = 0;
  if (is_active && ++busy_turns_ < kBusyTurnsMost) return true;
  busy_turns_ = 0;
  int64_t now_us = monotonic_us();
  if (now_us >= next_check_us_) check_deadlines(now_us);
  is_active |= poll_acceptor(now_us);
  if (is_ending_ && channels_.empty()) {
    std::lock_guard lock(mutex_);
    is_stopped_ = calls_.empty();
    return !is_stopped_;
  }
  if (active_us_ == 0) active_us_ = now_us;
  int64_t idle_us = now_us - active_us_;
  // With fewer cores than threads, the awaited process may need this core.
  if (!is_active && idle_us > kAloneUs && idle_us < kSpinUs) ::sched_yield();
  if (is_active || idle_us < kSpinUs) return true;
  if (!send_pending_acks() && scheduled_.empty()) sleep(now_us);
  return true;
}

bool UcxThread::run_calls() {
  if (waiting_.load(std::memory_order_relaxed) == 0) return false;
  {
    std::lock_guard lock(mutex_);
    running_.swap(calls_);
    waiting_.store(0, std::memory_order_relaxed);
  }
  is_running_calls_ = true;
  for (auto& call : running_) {
    call();
    call = nullptr;
  }
  is_running_calls_ = false;
  running_.clear();
  return true;
}

bool UcxThread::progress() {
  unsigned count = 0;
  is_progressing_ = true;
  do {
    if (ucx.ucp_worker_progress(worker) == 0) break;
    count++;
  } while (count < kProgressMost && scheduled_.empty());
  is_progressing_ = false;
  return count > 0;
}

// While there is work, sockets are polled periodically only.
bool UcxThread::poll_acceptor(int64_t now_us) {
  if (now_us < next_accept_poll_us_ || acceptor.is_idle()) return false;
  next_accept_poll_us_ = now_us + kAcceptPollUs;
  bool has_events = acceptor.poll_events();
  if (has_events) next_accept_poll_us_ = active_us_ = 0;
  return has_events;
}

void UcxThread::add(const std::shared_ptr<Channel>& channel) {
  channels_.emplace(channel.get(), channel);
  next_check_us_ = 0;
}

void UcxThread::schedule(Channel& channel) {
  if (std::exchange(channel.is_scheduled, true)) return;
  scheduled_.push_back(channel.shared_from_this());
}

void UcxThread::add_pending_ack(Channel& channel) {
  if (std::exchange(channel.has_pending_ack, true)) return;
  pending_acks_.push_back(channel.shared_from_this());
}

bool UcxThread::run_pending() {
  if (scheduled_.empty()) return false;
  std::vector<std::shared_ptr<Channel>> now;
  now.swap(scheduled_);
  for (const auto& channel : now) {
    channel->is_scheduled = false;
    channel->run_pending();
    if (channel->is_abandoned()) abandoned_.push_back(channel);
    if (channel->is_over()) channels_.erase(channel.get());
  }
  return true;
}

bool UcxThread::send_pending_acks() {
  std::vector<std::shared_ptr<Channel>> now;
  now.swap(pending_acks_);
  for (const auto& channel : now) {
    channel->has_pending_ack = false;
    channel->send_ack();
  }
  return !now.empty();
}

void UcxThread::check_deadlines(int64_t now_us) {
  bool is_busy = false;
  for (const auto& [key, channel] : channels_) is_busy |= channel->check_deadlines(now_us);
  is_busy |= acceptor.check_deadlines(now_us);
  send_pending_acks();
  next_check_us_ = now_us + (is_busy ? kCheckBusyMs : kCheckIdleMs) * kUsPerMs;
}

void UcxThread::sleep(int64_t now_us) {
  if (ucx.ucp_worker_arm(worker) == UCS_ERR_BUSY) return;
  {
    std::lock_guard lock(mutex_);
    if (!calls_.empty()) return;
    is_sleeping_ = true;
  }
  pollfd files[] = {{events_, POLLIN, 0}, {wake_, POLLIN, 0}, {acceptor.events(), POLLIN, 0}};
  int64_t ms = std::clamp<int64_t>((next_check_us_ - now_us) / kUsPerMs, 1, kCheckIdleMs);
  ::poll(files, std::size(files), static_cast<int>(ms));
  if ((files[2].revents & POLLIN) != 0) next_accept_poll_us_ = 0;
  {
    std::lock_guard lock(mutex_);
    is_sleeping_ = false;
  }
  uint64_t count = 0;
  if ((files[1].revents & POLLIN) != 0 && ::read(wake_, &count, sizeof count) < 0) return;
}

void UcxThread::end_all() {
  is_ending_ = true;
  acceptor.end();
  std::vector<std::shared_ptr<Channel>> channels;
  for (const auto& [key, channel] : channels_) channels.push_back(channel);
  for (const auto& channel : channels) channel->close(0);
}

Channel* UcxThread::channel_of(const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  auto found = by_endpoint_.find(param->reply_ep);
  return found == by_endpoint_.end() ? nullptr : found->second;
}

ucs_status_t UcxThread::on_eager(void* ucx_thread, const void* head, size_t head_size, void* data,
                                 size_t size, const ucp_am_recv_param_t* param) {
  Channel* channel = static_cast<UcxThread*>(ucx_thread)->channel_of(param);
  bool is_data = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (channel == nullptr || head_size != sizeof(Head) || !is_data) return UCS_OK;  // UCX drops it
  Head own;
  std::memcpy(&own, head, sizeof own);
  channel->on_eager(own, static_cast<const char*>(data), size);
  return UCS_OK;
}

ucs_status_t UcxThread::on_put(void* ucx_thread, const void* head, size_t head_size, void* data,
                               size_t size, const ucp_am_recv_param_t* param) {
  Channel* channel = static_cast<UcxThread*>(ucx_thread)->channel_of(param);
  bool is_descriptor = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (channel == nullptr || head_size != sizeof(PutHead) || !is_descriptor) return UCS_OK;
  PutHead own;
  std::memcpy(&own, head, sizeof own);
  return channel->on_put(own, data, size);
}

}  // namespace flow::ucx
