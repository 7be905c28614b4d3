// The engine as a client of the process that writes the state; takes over where that one dies.
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

/// Makes the engine that writes the state whose lock it is given.
using OpenWriter = std::function<Result<std::unique_ptr<detail::EngineImpl>>(
    const EngineOptions& options, const std::string& dir, std::unique_ptr<StateLock> lock)>;

/// The writer where the lock can be had, else a client.
Result<std::unique_ptr<detail::EngineImpl>> open_engine(const EngineOptions& options,
                                                        const std::string& dir,
                                                        const OpenWriter& open_writer);

class LocalClientEngine final : public detail::EngineImpl {
 public:
  /// `open_writer` is called where the writer dies and this process takes over.
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
  bool is_writer() const override;
  uint64_t state_bytes() const override;
  uint32_t client_runs() const override;
  void wait_for_clients() override;

 private:
  Submission here(const RunOptions& options) const;
  /// The writer's answer, over `connection`; nothing where this process has become the writer's
  /// successor.
  std::optional<Value> ask(const Value& request, std::shared_ptr<EngineConnection>& connection);
  std::optional<Value> ask(const Value& request);
  /// The answer where somebody writes: nobody becomes the writer for a look.
  std::optional<Value> query_writer(const Value& request) const;
  detail::EngineImpl& successor() const;
  /// The run, or null where the successor is to be asked.
  std::shared_ptr<detail::RunHandle> start(Value request, const RunOptions& options);
  void follow(std::shared_ptr<detail::RunHandle> state,
              std::shared_ptr<EngineConnection> connection, bool leads, const RunOptions& options);
  /// The writer led a cluster: its successor is the next head, and no client.
  std::shared_ptr<EngineConnection> await_head(detail::RunHandle& state, const RunOptions& options);
  /// False where this ends: the link is not to be used then.
  bool add_connection(const std::shared_ptr<EngineConnection>& connection);
  bool has_quit_within(int64_t ms);
  void take_over(std::shared_ptr<detail::RunHandle> state, const RunOptions& options);

  EngineOptions options_;
  std::string dir_;
  const OpenWriter open_writer_;
  mutable std::mutex mutex_;
  std::unique_ptr<detail::EngineImpl> successor_;  // after the writer died
  std::list<std::weak_ptr<EngineConnection>>
      connections_;  // those that are gone leave in add_connection()
  bool quit_ = false;
  std::condition_variable quits_;
  ThreadGroup followers_;  // last: they use the others
};

}  // namespace flow
