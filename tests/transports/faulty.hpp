// A transport over another one that injects network faults: it delays, loses, duplicates and
// reorders frames and puts, and breaks links.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "flow/transport.hpp"

namespace flow {

/// The probability of each fault, per frame or put.
struct Faults {
  uint64_t seed = 1;
  double late = 0, lost = 0, twice = 0, swapped = 0, broken = 0;
  double put_late = 0, put_lost = 0;
  int late_ms_max = 20;
};

struct FaultCounts {
  std::atomic<uint64_t> late{0}, lost{0}, twice{0}, swapped{0}, broken{0}, put_late{0}, put_lost{0};
};

/// Runs functions at their times, on a thread of its own.
class LaterQueue {
 public:
  using Clock = std::chrono::steady_clock;
  LaterQueue() : thread_([this] { loop(); }) {}
  /// Runs all queued functions now, and later ones at once.
  void end() {
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
      wake_.notify_all();
    }
    thread_.join();
    for (auto& [at, what] : std::exchange(queue_, {})) what();
  }
  void post(Clock::time_point at, std::function<void()> what) {
    std::unique_lock lock(mutex_);
    if (quit_) {
      lock.unlock();
      return what();
    }
    queue_.emplace(at, std::move(what));  // functions with equal times run in insertion order
    wake_.notify_all();
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (!quit_) {
      if (queue_.empty()) {
        wake_.wait(lock);
      } else if (auto at = queue_.begin()->first; at > Clock::now()) {
        wake_.wait_until(lock, at);
      } else {
        auto what = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
        lock.unlock();
        what();
        what = nullptr;
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<Clock::time_point, std::function<void()>> queue_;
  bool quit_ = false;
  std::thread thread_;
};

class FaultyLink final : public Link, public std::enable_shared_from_this<FaultyLink> {
 public:
  using Clock = LaterQueue::Clock;
  FaultyLink(std::shared_ptr<Link> link, std::shared_ptr<LaterQueue> queue, const Faults& faults,
             uint64_t number, std::shared_ptr<FaultCounts> counts)
      : link_(std::move(link)),
        queue_(std::move(queue)),
        faults_(faults),
        counts_(std::move(counts)),
        random_(faults.seed * 7919 + number) {}
  /// Closes the wrapped link at once, as the destructor of that link would.
  ~FaultyLink() override { link_->close(0); }

  void send(std::string frame) override {
    std::lock_guard lock(mutex_);
    if (happens(faults_.broken)) {
      counts_->broken++;
      return link_->close(0);
    }
    if (happens(faults_.lost)) {
      counts_->lost++;
      return;
    }
    if (!held_ && happens(faults_.swapped)) {
      held_ = std::move(frame);
      return;
    }
    bool is_twice = happens(faults_.twice);
    if (is_twice) counts_->twice++;
    if (is_twice) pass(frame);
    pass(std::move(frame));
    if (held_) {
      counts_->swapped++;
      pass(*std::exchange(held_, std::nullopt));
    }
  }
  size_t unsent_bytes() const override { return waiting_bytes_ + link_->unsent_bytes(); }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    link_->post_receive(tag, to, std::move(done));
  }
  void cancel_receive(uint64_t tag) override { link_->cancel_receive(tag); }
  void put(uint64_t tag, Region from, std::function<void(Status)> done) override {
    std::lock_guard lock(mutex_);
    if (happens(faults_.put_lost)) {
      counts_->put_lost++;
      // A link that stays up never loses a put, so the link ends with the put.
      link_->close(0);
      return link_->put(tag, from, std::move(done));
    }
    if (!happens(faults_.put_late)) return link_->put(tag, from, std::move(done));
    counts_->put_late++;
    queue_->post(Clock::now() + some_time(),
                 [link = link_, tag, from, done = std::move(done)] { link->put(tag, from, done); });
  }
  void set_timeout(int64_t deadline_ms) override { link_->set_timeout(deadline_ms); }
  void close(int64_t flush_ms) override {
    std::lock_guard lock(mutex_);
    if (flush_ms == 0) return link_->close(0);
    queue_->post(last_, [link = link_, flush_ms] { link->close(flush_ms); });
  }
  std::string description() const override { return link_->description(); }

 private:
  bool happens(double likelihood) {
    return std::uniform_real_distribution<>(0, 1)(random_) < likelihood;
  }
  std::chrono::milliseconds some_time() {
    return std::chrono::milliseconds(
        std::uniform_int_distribution<>(1, faults_.late_ms_max)(random_));
  }
  // A delayed frame also delays the frames behind it: links keep the order unless frames are
  // swapped.
  void pass(std::string frame) {
    auto at = Clock::now();
    if (happens(faults_.late)) {
      counts_->late++;
      at += some_time();
    }
    last_ = std::max(last_, at);
    waiting_bytes_ += frame.size();
    queue_->post(last_, [self = shared_from_this(), frame = std::move(frame)] {
      self->waiting_bytes_ -= frame.size();
      self->link_->send(frame);
    });
  }

  const std::shared_ptr<Link> link_;
  const std::shared_ptr<LaterQueue> queue_;
  const Faults faults_;
  const std::shared_ptr<FaultCounts> counts_;
  std::atomic<size_t> waiting_bytes_{0};
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::optional<std::string> held_;  // delivered after the next one
  Clock::time_point last_{};
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> transport, const Faults& faults)
      : faults_(faults), transport_(std::move(transport)) {}
  ~FaultyTransport() override { queue_->end(); }

  std::string name() const override { return "faulty " + transport_->name(); }
  Result<std::unique_ptr<Listener>> listen(
      const std::string& address,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)> accept) override {
    return transport_->listen(address, [this, accept](std::shared_ptr<Link> link) {
      return accept(wrap(std::move(link)));
    });
  }
  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto link = transport_->connect(address, std::move(handler));
    if (!link.ok()) return link;
    return wrap(std::move(*link));
  }
  bool takes_device_memory() const override { return transport_->takes_device_memory(); }
  const FaultCounts& counts() const { return *counts_; }
  /// Number of link ends so far.
  uint64_t links() const { return links_; }

 private:
  std::shared_ptr<Link> wrap(std::shared_ptr<Link> link) {
    return std::make_shared<FaultyLink>(std::move(link), queue_, faults_, ++links_, counts_);
  }

  const Faults faults_;
  const std::shared_ptr<FaultCounts> counts_ = std::make_shared<FaultCounts>();
  std::atomic<uint64_t> links_{0};
  const std::shared_ptr<LaterQueue> queue_ = std::make_shared<LaterQueue>();
  const std::unique_ptr<Transport> transport_;
};

}  // namespace flow
