// An engine that is a client of the process that writes the state, over the unix socket of the
// state. When that process dies, one of its clients becomes the next writer.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/thread_group.hpp"
#include "engine/client/messages.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/store/lock.hpp"

namespace flow {

class EngineConnection;

/// Creates the engine that writes the state in `dir`; it owns the lock.
using OpenWriter = std::function<Result<std::unique_ptr<detail::EngineImpl>>(
    const EngineOptions& options, const std::string& dir, std::unique_ptr<StateLock> lock)>;

/// Becomes the writer if the lock of the state is free, else a client of the process that holds it.
/// Waits up to 30 s for a writer that does not listen yet.
Result<std::unique_ptr<detail::EngineImpl>> open_engine(const EngineOptions& options,
                                                        const std::string& dir,
                                                        const OpenWriter& open_writer);

/// Thread-safe. A thread per run follows it; the runs must not outlive this object.
///
/// Each request to the writer has a connection of its own; queries read the state directly. If the
/// writer is gone before it has replied, the request is repeated: to the next writer, or, if this
/// process gets the lock, to an engine in this process, the successor. If the writer dies while it
/// executes a run of this client, the run is resumed in the same way. A run at a cluster's head
/// waits for the next head instead, because the head's workers continue it.
class LocalClientEngine final : public detail::EngineImpl {
 public:
  /// `open_writer` is called when the writer died and this process got the lock.
  LocalClientEngine(EngineOptions options, std::string dir, OpenWriter open_writer)
      : options_(std::move(options)), dir_(std::move(dir)), open_writer_(std::move(open_writer)) {}
  ~LocalClientEngine() override;

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
  bool is_writer() const override;
  uint64_t state_bytes() const override;
  uint32_t client_runs() const override;
  void wait_for_clients() override;

 private:
  Submission here(const RunOptions& options) const;
  /// The writer's reply, and the `connection` on which it arrived; nothing if this process is the
  /// successor, which the caller then asks. Throws the error of an error reply.
  std::optional<ServerReply> request_reply(const ClientRequest& request,
                                           std::shared_ptr<EngineConnection>& connection);
  std::optional<ServerReply> request_reply(const ClientRequest& request);
  /// The reply if a process writes the state: a query does not make this one the writer. Throws the
  /// error of an error reply.
  std::optional<ServerReply> query_writer(const ClientRequest& request) const;
  detail::EngineImpl& successor() const;
  /// The run of a request, or null if the successor is to be asked.
  std::shared_ptr<detail::RunHandle> start(const ClientRequest& request, const RunOptions& options);
  /// The body of a run's thread: follows the run until it ends, at the writer or in the successor.
  void follow(std::shared_ptr<detail::RunHandle> state,
              std::shared_ptr<EngineConnection> connection, bool leads, const RunOptions& options);
  /// After the death of a head: resumes the run at the next one. Null if the run has failed or was
  /// interrupted, or if this object is being destroyed.
  std::shared_ptr<EngineConnection> await_head(detail::RunHandle& state, const RunOptions& options);
  /// Registers `connection`, so that the destructor can shut it down. False if the destructor has
  /// started already.
  bool add_connection(const std::shared_ptr<EngineConnection>& connection);
  bool has_quit_within(int64_t ms);
  /// After the death of a writer that was not a head: opens the state and resumes the run.
  void take_over(std::shared_ptr<detail::RunHandle> state, const RunOptions& options);

  EngineOptions options_;
  std::string dir_;
  const OpenWriter open_writer_;
  mutable std::mutex mutex_;
  std::unique_ptr<detail::EngineImpl> successor_;  // null while another process writes
  std::list<std::weak_ptr<EngineConnection>>
      connections_;  // add_connection() removes the ended ones
  bool quit_ = false;
  std::condition_variable quits_;
  ThreadGroup followers_;  // last: its threads use the other members
};

}  // namespace flow
