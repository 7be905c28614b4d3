// The process of a worker: keeps a session with its head for the WorkerAgent and reconnects.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/cluster/session/reconnect_backoff.hpp"
#include "engine/cluster/session/sessions.hpp"
#include "engine/cluster/worker/peer_fetcher.hpp"
#include "engine/cluster/worker/worker_agent.hpp"

namespace flow::cluster {

struct WorkerProcessOptions {
  SessionOptions session;
  std::string head;  // address
  WorkerAgent::Options agent;
  /// Receives status changes in words, on any thread; it must not block.
  std::function<void(std::string)> on_note = [](std::string) {};
};

class WorkerProcess {
 public:
  /// `transport` must outlive the process object.
  static Result<std::unique_ptr<WorkerProcess>> start(Transport& transport,
                                                      WorkerProcessOptions options,
                                                      const WorkerAgent::MakeWorker& make);
  /// Leaves the cluster and ends running attempts.
  ~WorkerProcess();

  bool is_connected() const;
  /// Time without a head in ms; 0 while there is one.
  int64_t headless_ms() const;
  /// As WorkerAgent::drain.
  void drain(int64_t grace_ms, const std::string& why) { agent_->drain(grace_ms, why); }
  /// As WorkerAgent::gpu_failed.
  void gpu_failed(const std::string& uuid, const std::string& fault, bool is_dead) {
    agent_->gpu_failed(uuid, fault, is_dead);
  }
  /// As WorkerAgent::note_gpu_sample.
  void note_gpu_sample(const GpuSample& sample) { agent_->note_gpu_sample(sample); }
  const WorkerAgent& agent() const { return *agent_; }

 private:
  class HeadSession;
  explicit WorkerProcess(WorkerProcessOptions options);
  void loop();
  void serve_peers();
  const std::string& name() const { return options_.agent.worker.name; }

  const WorkerProcessOptions options_;
  std::unique_ptr<WorkerAgent> agent_;
  ThreadPool thread_pool_;  // for blob transfers between workers
  std::unique_ptr<Sessions> sessions_;
  std::shared_ptr<PeerBlobFetcher> peer_fetcher_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  bool is_up_ = false, is_open_ = false;  // there is a session, and it is open
  ReconnectBackoff backoff_;
  int64_t headless_since_us_ = monotonic_us();
  std::string last_note_;
  bool warned_unserved_ = false;
  std::thread thread_;
};

}  // namespace flow::cluster
