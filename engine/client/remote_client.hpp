// The engine as a client of a head on another machine: it has no state, reads the script and its
// files, and follows what becomes of the run there.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/thread_group.hpp"
#include "engine/client/head_connector.hpp"
#include "engine/cluster/session/reconnect_backoff.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

class RemoteEngine final : public detail::EngineImpl {
 public:
  static Result<std::unique_ptr<detail::EngineImpl>> open(const EngineOptions& options,
                                                          const TransportFactory& make_transport);
  ~RemoteEngine() override;

  void define(const std::string& name, const std::string& version, NativeTask task) override;
  void define_operations(const std::string& name, const std::string& library) override;
  std::shared_ptr<detail::RunHandle> run(const std::string& script, const Value& params,
                                         const RunOptions& options) override;
  std::shared_ptr<detail::RunHandle> resume(const std::string& selector, const RunOptions& options,
                                            bool new_code) override;
  std::shared_ptr<detail::RunHandle> retry(const std::string& selector, const std::string& task,
                                           const RunOptions& options) override;
  void cancel(const std::string& selector) override;
  void signal(const std::string& selector, const std::string& name,
              const std::string& json) override;
  PlanInfo plan(const std::string& script, const RunOptions& options) override;
  uint64_t gc(uint32_t keep) override;
  RunInfo show(const std::string& selector) override;
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory) override;
  std::string address() const override;
  std::vector<NodeInfo> nodes() const override;
  bool is_writer() const override { return false; }
  uint64_t state_bytes() const override { return state_bytes_; }
  uint32_t client_runs() const override { return 0; }
  void wait_for_clients() override {}

 private:
  using Files = std::map<Digest, std::string>;
  using Fields = std::vector<std::pair<Value, Value>>;
  /// A run that is followed, beside what its watchers have of it.
  struct FollowedRun {
    std::string id;
    Submission submission;  // what asks for it again
    std::atomic<bool> is_abandoned{false};
    std::weak_ptr<detail::RunHandle> state;
    std::mutex mutex;
    RunInfo last;  // that was heard
    Counts counts;
  };
  using FollowedRunPtr = std::shared_ptr<FollowedRun>;

  explicit RemoteEngine(const EngineOptions& options) : options_(options) {}
  /// Makes it one that is built here.
  Files build(Submission& submission);
  /// The answer over a link that is kept for such; throws Failed.
  Value ask(const Value& request) const;
  Result<Value> ask_over(EngineConnection& connection, const Value& request,
                         std::vector<TaskInfo>* tasks) const;
  RunInfo fetch_info(const std::string& selector, bool tasks) const;
  RunInfo latest_info(FollowedRun& followed, bool tasks) const;
  Counts count(FollowedRun& followed) const;
  std::shared_ptr<detail::RunHandle> start(const char* verb, Fields fields,
                                           const Submission& submission, const Files& files);
  Result<Value> begin(EngineConnection& connection, const Value& request, const Files& files) const;
  void follow(const std::shared_ptr<detail::RunHandle>& state, const FollowedRunPtr& followed,
              std::shared_ptr<EngineConnection> connection);
  std::shared_ptr<EngineConnection> reconnect(const std::shared_ptr<detail::RunHandle>& state,
                                              const FollowedRunPtr& followed, uint64_t& received);
  /// Between two tries; false where there is to be no other.
  bool pause(cluster::ReconnectBackoff& backoff, const FollowedRun* followed) const;

  const EngineOptions options_;
  std::unique_ptr<HeadConnector> head_connector_;
  mutable std::mutex asking_;
  mutable std::shared_ptr<EngineConnection> ask_connection_;
  mutable std::atomic<uint64_t> state_bytes_{0};
  /// What ends a pause. A run that outlives the engine may still be left.
  struct Wakeup {
    std::mutex mutex;
    std::condition_variable changed;
    bool quit = false;
  };
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  ThreadGroup followers_;  // last: they use the others
};

}  // namespace flow
