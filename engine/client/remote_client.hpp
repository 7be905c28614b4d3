// An engine that is a client of a head on another machine. It has no state: it builds the graph
// here, sends it with its files to the head, and follows the run there.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/thread_group.hpp"
#include "engine/client/head_connector.hpp"
#include "engine/client/messages.hpp"
#include "engine/cluster/session/reconnect_backoff.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

/// Thread-safe. A thread per run follows it.
///
/// If the connection of a run breaks, the thread connects again until it succeeds, and the head
/// sends the replies that were not received; a head that has been restarted resumes the run. The
/// run continues meanwhile. An interrupt while there is no connection leaves the run to `flow
/// resume`. A request whose connection breaks before the reply is repeated for 30 s if it starts a
/// run; the head recognises the request by its id.
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
  std::shared_ptr<detail::RunHandle> serve(const std::string& selector,
                                           const RunOptions& options) override;
  std::shared_ptr<detail::RunHandle> rollback(const std::string& name,
                                              const RunOptions& options) override;
  void cancel(const std::string& selector) override;
  std::vector<RunInfo> stop(const std::string& selector, int64_t within_ms) override;
  void signal(const std::string& selector, const std::string& name,
              const std::string& json) override;
  PlanInfo plan(const std::string& script, const RunOptions& options) override;
  uint64_t gc(uint32_t keep) override;
  std::vector<ServiceInfo> services() override;
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
  /// The files that a graph names.
  struct Files {
    std::map<Digest, std::string> paths;
    std::shared_ptr<const std::string> downloads;  // folder of those that were fetched
  };
  /// State of a followed run, besides its handle.
  struct FollowedRun {
    std::string id;
    Submission submission;                  // without its graph, to resume the run
    std::atomic<bool> is_abandoned{false};  // interrupted while there was no connection
    std::weak_ptr<detail::RunHandle> state;
    std::mutex mutex;
    RunInfo last;  // newest that the head sent; under mutex, as the next
    Counts counts;
  };
  using FollowedRunPtr = std::shared_ptr<FollowedRun>;

  explicit RemoteEngine(const EngineOptions& options) : options_(options) {}
  /// Builds the graph of the submission and puts it there in place of the script's parameters.
  Files build(Submission& submission);
  /// The reply, by the connection that is kept for short requests. Throws Failed, also for an error
  /// reply.
  ServerReply request_reply(const ClientRequest& request) const;
  /// The run as the head has it. Throws Failed.
  RunInfo fetch_info(const std::string& selector, bool tasks) const;
  /// As fetch_info(), or what was known last while the head of an unfinished run cannot be asked.
  RunInfo latest_info(FollowedRun& followed, bool tasks) const;
  Counts count(FollowedRun& followed) const;
  /// Empty also if the head cannot be asked.
  std::vector<CountedTask> count_by_task(const std::string& run) const;
  std::shared_ptr<detail::RunHandle> start_serving(const std::string& selector, bool rolls_back,
                                                   const RunOptions& options);
  /// Sends a request for a run, again if the connection breaks, and follows the run. Throws Failed.
  std::shared_ptr<detail::RunHandle> start(const ClientRequest& request,
                                           const Submission& submission, const Files& files);
  /// One try: the reply of the head after it has got the files that it lacks. An Error means that
  /// the connection broke, and another try may help; if it cannot, the result is an error reply.
  Result<ServerReply> begin(EngineConnection& connection, const ClientRequest& request,
                            const Files& files) const;
  /// The thread of a run: until it ends or is abandoned.
  void follow(const std::shared_ptr<detail::RunHandle>& state, const FollowedRunPtr& followed,
              std::shared_ptr<EngineConnection> connection);
  /// The next connection of a run; null if the run has failed or is abandoned, or this ends.
  /// `received`: the replies that this client has; 0 afterwards if the head does not know the
  /// request any more.
  std::shared_ptr<EngineConnection> reconnect(const std::shared_ptr<detail::RunHandle>& state,
                                              const FollowedRunPtr& followed, uint64_t& received);
  /// Waits before the next try. False if this ends, or the run is abandoned: no next try.
  bool pause(cluster::ReconnectBackoff& backoff, const FollowedRun* followed) const;

  const EngineOptions options_;
  std::unique_ptr<HeadConnector> head_connector_;
  mutable std::mutex request_mutex_;  // held by request_reply()
  mutable std::shared_ptr<EngineConnection> request_connection_;
  mutable std::atomic<uint64_t> state_bytes_{0};  // of the head, when it was last asked for a run
  /// Ends a pause. Shared, because a handle that outlives the engine may still be interrupted.
  struct Wakeup {
    std::mutex mutex;
    std::condition_variable changed;
    bool quit = false;
  };
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  ThreadGroup followers_;  // last: its threads use the other members
};

}  // namespace flow
