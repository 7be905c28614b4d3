// Native tasks: functions of the host program, run on threads of its process. They are not isolated
// and are cancelled cooperatively.
#pragma once
#include <atomic>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/worker/worker.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Thread-safe. Reports arrive on the runner's threads, or in start().
class NativeRunner {
 public:
  /// `threads_max` 0 (a head without CPU slots): one thread per CPU of the machine. Threads are
  /// started from the first attempt on.
  NativeRunner(int32_t threads_max, std::function<void(std::vector<Report>)> on_report);
  ~NativeRunner();  // asks every running task to stop and waits for it

  void define(const std::string& name, const std::string& version, NativeTask task);
  std::optional<std::string> version(const std::string& name) const;
  /// If no thread can be started, the attempt fails at once.
  void start(AttemptOrder order, const std::string& definition);
  void stop(const core::AttemptId& id);

 private:
  struct Job {
    AttemptOrder order;
    std::string definition;
    std::shared_ptr<std::atomic<bool>> stopping;
  };
  Status start_threads();
  void run_job(Job& job);
  TaskFinished run(Job& job, const NativeTask& task);

  const size_t threads_max_;
  const std::function<void(std::vector<Report>)> on_report_;
  mutable std::mutex mutex_;
  // By name: version and function. Bounded by the host program's definitions.
  std::map<std::string, std::pair<std::string, NativeTask>> tasks_;
  sigset_t host_mask_{};  // signal mask of the thread that last called define()
  // Attempts that have not ended.
  std::map<core::AttemptId, std::shared_ptr<std::atomic<bool>>> running_;
  bool quit_ = false;
  std::unique_ptr<ThreadPool> thread_pool_;  // from the first attempt on; last: jobs use the others
};

}  // namespace flow
