// Native tasks: functions of the host program, run on threads of its process. They are not isolated
// and are cancelled cooperatively.
#pragma once
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/worker/worker.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Thread-safe. Reports arrive on the runner's threads.
class NativeRunner {
 public:
  NativeRunner(int32_t threads_max, std::function<void(std::vector<Report>)> on_report);
  ~NativeRunner();  // asks every running task to stop and waits for it

  void define(const std::string& name, const std::string& version, NativeTask task);
  std::optional<std::string> version(const std::string& name) const;
  void start(AttemptOrder order, const std::string& definition);
  void stop(const core::AttemptId& id);

 private:
  struct Job {
    AttemptOrder order;
    std::string definition;
    std::shared_ptr<std::atomic<bool>> stopping;
  };
  void run_jobs();
  TaskFinished run(Job& job, const NativeTask& task);

  const int32_t threads_max_;
  const std::function<void(std::vector<Report>)> on_report_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Bounded by the number that the host program defines.
  std::map<std::string, std::pair<std::string, NativeTask>> tasks_;
  sigset_t host_mask_{};  // of the thread that made the newest definition
  std::deque<Job> queue_;
  // Attempts that have not ended.
  std::map<core::AttemptId, std::shared_ptr<std::atomic<bool>>> running_;
  std::vector<std::thread> threads_;  // at most threads_max_
  size_t idle_ = 0;
  bool quit_ = false;
};

}  // namespace flow
