#include "tests/kernels/emulator/streams.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace flow::emulator {

class Stream {
 public:
  explicit Stream(bool has_thread) {
    const char* when = std::getenv("FLOW_EMULATED_STREAMS");
    if (has_thread && when != nullptr && std::string_view(when) == "early") wanted_ = UINT64_MAX;
    if (has_thread) thread_ = std::thread([this] { run_thread(); });
  }
  ~Stream() { end(); }
  /// Does what is queued, and nothing later.
  void end() {
    finish(enqueued_count());
    {
      std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Stream(const Stream&) = delete;

  void enqueue(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    enqueued_++;
    changed_.notify_all();
  }
  uint64_t enqueued_count() {
    std::lock_guard lock(mutex_);
    return enqueued_;
  }
  bool has_done(uint64_t number) {
    std::lock_guard lock(mutex_);
    return done_ >= number;
  }
  void want(uint64_t number) {
    std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, number);
    changed_.notify_all();
  }
  void finish(uint64_t number) {
    want(number);
    std::unique_lock lock(mutex_);
    while (done_ < number) {
      if (thread_.joinable() || is_running_)
        changed_.wait(lock);
      else
        run_one(lock);
    }
  }

 private:
  void run_one(std::unique_lock<std::mutex>& lock) {
    is_running_ = true;
    std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    next();
    lock.lock();
    is_running_ = false;
    done_++;
    changed_.notify_all();
  }
  void run_thread() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_ending_ || (wanted_ > done_ && !work_.empty()); });
      if (is_ending_) return;
      run_one(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t enqueued_ = 0, done_ = 0, wanted_ = 0;
  bool is_running_ = false, is_ending_ = false;
  std::thread thread_;
};

namespace {

constexpr int kAsksMax = 50;

Stream& kernels_stream() {
  static auto* all = new Stream(false);
  return *all;
}

thread_local bool has_one = false;

}  // namespace

Stream* new_stream() {
  if (has_one) return new Stream(true);
  has_one = true;
  return &kernels_stream();
}
void free_stream(Stream* stream) {
  if (stream == &kernels_stream()) return;
  stream->end();
  // Other streams may still follow its events.
  static std::mutex mutex;
  static auto* ended = new std::vector<std::unique_ptr<Stream>>;
  std::lock_guard lock(mutex);
  ended->emplace_back(stream);
}
void enqueue(Stream* stream, std::function<void()> work) { stream->enqueue(std::move(work)); }
void wait_for(Stream* stream) { stream->finish(stream->enqueued_count()); }
void wait_for_kernels() { wait_for(&kernels_stream()); }

void record(Event& event, Stream* stream) { event = {stream, stream->enqueued_count(), 0}; }
void wait_for(const Event& event) {
  if (event.stream != nullptr) event.stream->finish(event.number);
}
void follow(const Event& event, Stream* stream) {
  if (event.stream != stream) stream->enqueue([event] { wait_for(event); });
}
bool has_completed(Event& event) {
  if (event.stream == nullptr || event.stream->has_done(event.number)) return true;
  if (++event.asked >= kAsksMax) event.stream->want(event.number);
  return false;
}

}  // namespace flow::emulator
