// The state of a flow::Run: a queue of its events and its outcome. Filled within a turn or by a
// client.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/runs/run_listener.hpp"
#include "flow/flow.hpp"

namespace flow::detail {

struct RunHandle : public RunListener {
  std::string id;
  std::function<RunInfo()> info;     // reads the run as it is now
  std::function<RunInfo()> summary;  // without tasks
  std::function<Counts()> counts;
  std::function<std::vector<CountedTask>()> counts_by_task;
  // `by`: who asks; "": the owner of the engine, see EngineOptions::by. A client passes "", and the
  // server knows it.
  std::function<void(bool kill, const std::string& by)> interrupt;
  std::function<void(const std::string& by)> cancel;
  std::function<void(const std::string& by)> end_serving;
  /// Of a writer: the client that the run was executed for has died. Interrupts the run, or returns
  /// true: it only serves, and continues without the client.
  std::function<bool()> outlive_client;
  std::shared_ptr<void> mark;  // a client's RequestMark; gc keeps the run while it exists

  void on_events(std::vector<Event> events) override;
  void on_event(Event event);
  /// An event of this type ("warning", "print") with a text.
  void report(const char* type, std::string text);
  void on_end() override;
  /// Ends with an error of the engine instead of the run's outcome.
  void fail(Error error) override;
  std::optional<Event> next();
  void wait_end();

  std::mutex mutex;
  std::condition_variable has_event, has_ended;
  std::deque<Event> events;
  size_t dropped = 0;
  bool ended = false;
  std::optional<Error> error;
};

/// The implementation of flow::Engine, as a writer or as a client of one.
struct EngineImpl {
  virtual ~EngineImpl() = default;
  virtual void define(const std::string& name, const std::string& version, NativeTask task) = 0;
  virtual void define_operations(const std::string& name, const std::string& library) = 0;
  virtual std::shared_ptr<RunHandle> run(const std::string& script, const Value& params,
                                         const RunOptions& options) = 0;
  virtual std::shared_ptr<RunHandle> resume(const std::string& selector, const RunOptions& options,
                                            bool new_code) = 0;
  virtual std::shared_ptr<RunHandle> retry(const std::string& selector, const std::string& task,
                                           const RunOptions& options) = 0;
  virtual std::shared_ptr<RunHandle> serve(const std::string& selector,
                                           const RunOptions& options) = 0;
  virtual std::shared_ptr<RunHandle> rollback(const std::string& name,
                                              const RunOptions& options) = 0;
  virtual void cancel(const std::string& selector) = 0;
  virtual std::vector<RunInfo> stop(const std::string& selector, int64_t within_ms) = 0;
  virtual void signal(const std::string& selector, const std::string& name,
                      const std::string& json) = 0;
  virtual PlanInfo plan(const std::string& script, const RunOptions& options) = 0;
  virtual uint64_t gc(uint32_t keep) = 0;
  virtual std::vector<ServiceInfo> services() = 0;
  virtual RunInfo show(const std::string& selector) = 0;
  virtual std::vector<std::string> get(const std::string& selector, const std::string& part,
                                       const std::string& directory) = 0;
  virtual std::string address() const = 0;
  virtual std::string metrics_address() const { return ""; }
  virtual std::vector<NodeInfo> nodes() const = 0;
  virtual bool is_writer() const = 0;
  virtual std::string stopped_by() const { return ""; }
  virtual uint64_t state_bytes() const = 0;
  virtual uint32_t client_runs() const = 0;
  virtual void wait_for_clients() = 0;
};

}  // namespace flow::detail
