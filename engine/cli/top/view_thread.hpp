// The threads of `flow top` that read the state and send requests, so that the screen never waits.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/cli/top/top_view.hpp"
#include "flow/cluster_view.hpp"

namespace flow::cli {

/// Reads the state every `interval_ms`, with low priority and at most a fifth of a CPU, so that it
/// does not slow down the run that it shows.
class ViewThread {
 public:
  /// `on_change` is called on the thread.
  ViewThread(EngineOptions options, std::string run, int64_t interval_ms,
             std::function<void()> on_change);
  ~ViewThread();
  ViewThread(const ViewThread&) = delete;
  ViewThread& operator=(const ViewThread&) = delete;

  /// Selects a run. A different one is read without waiting for the interval.
  void select(const std::string& run);
  struct News {
    std::shared_ptr<const ClusterView> view;  // null if it could not be read
    std::string problem;                      // why
  };
  std::optional<News> take();

 private:
  void work();
  News read(const std::string& run);

  const EngineOptions options_;
  const int64_t interval_ms_;
  const std::function<void()> on_change_;
  std::unique_ptr<ClusterViewer> viewer_;  // of the thread; null until the head is reached
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string run_;  // guarded by mutex_, as the rest
  bool is_stopping_ = false, is_selected_anew_ = false;
  std::optional<News> news_;
  std::thread thread_;  // last: uses the others
};

/// Sends one request at a time.
class RequestThread {
 public:
  RequestThread(EngineOptions options, std::function<void()> on_change)
      : options_(std::move(options)), on_change_(std::move(on_change)) {}
  ~RequestThread();
  RequestThread(const RequestThread&) = delete;
  RequestThread& operator=(const RequestThread&) = delete;

  /// False: another request is under way.
  bool send(const TopRequest& request);
  /// The outcome of the request, once.
  std::optional<std::string> take_outcome();

 private:
  const EngineOptions options_;
  const std::function<void()> on_change_;
  std::mutex mutex_;
  bool is_busy_ = false;
  std::optional<std::string> outcome_;
  std::thread thread_;
};

}  // namespace flow::cli
