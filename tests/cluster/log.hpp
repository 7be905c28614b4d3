// Records events of other threads for a test that waits for them.
#pragma once
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "engine/cluster/session/session_link.hpp"
#include "tests/cluster/pair.hpp"

namespace flow::cluster {

class Log {
 public:
  void add(const std::string& word) {
    std::lock_guard lock(mutex_);
    words_.push_back(word);
    added_.notify_all();
  }
  /// All entries, once there are `count`.
  Events wait(size_t count) {
    std::unique_lock lock(mutex_);
    bool came =
        added_.wait_for(lock, std::chrono::seconds(60), [&] { return words_.size() >= count; });
    if (!came) FAIL("fewer than " << count << " came: " << words_.size());
    return words_;
  }
  std::string last(size_t count) { return wait(count).back(); }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  Events words_;
};

/// Records the events of its session.
class RecordingSessionUser : public SessionUser {
 public:
  void on_open(const SessionPeer& peer) override { log.add(words_of(SessionOpened{peer})); }
  void on_message(std::string message) override { log.add("message " + message); }
  void on_suspect(const std::string& why) override { log.add("suspected: " + why); }
  void on_recovered() override { log.add("heard again"); }
  void on_end(EndKind kind, const Error& why) override {
    log.add(words_of(SessionEnded{kind, why}));
  }
  Log log;
};

}  // namespace flow::cluster
