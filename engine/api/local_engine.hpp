// The engine as the writer of a state.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/api/nested_runs.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/engine_service.hpp"
#include "engine/client/server.hpp"
#include "engine/cluster/transfer/blob_reader.hpp"
#include "engine/exports/notifier.hpp"
#include "engine/head/local_workers.hpp"
#include "engine/head/membership.hpp"
#include "engine/head/slurm_head.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/telemetry/metrics_server.hpp"

namespace flow {

class LocalEngine final : public EngineService, private RunEngine {
 public:
  /// Takes over the state whose lock the caller holds.
  static Result<std::unique_ptr<LocalEngine>> open(const EngineOptions& options,
                                                   const std::string& dir,
                                                   std::unique_ptr<StateLock> lock);
  /// The same, as an OpenWriter function.
  static Result<std::unique_ptr<detail::EngineImpl>> open_writer(const EngineOptions& options,
                                                                 const std::string& dir,
                                                                 std::unique_ptr<StateLock> lock);
  ~LocalEngine() override;

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
  void cancel(const std::string& selector) override {
    cancel_for(selector, requester_of(options_));
  }
  std::vector<RunInfo> stop(const std::string& selector, int64_t within_ms) override {
    return stop_for(selector, within_ms, requester_of(options_));
  }
  void signal(const std::string& selector, const std::string& name,
              const std::string& json) override {
    signal_for(selector, name, json, requester_of(options_));
  }
  PlanInfo plan(const std::string& script, const RunOptions& options) override;
  uint64_t gc(uint32_t keep) override;
  std::vector<ServiceInfo> services() override;
  RunInfo show(const std::string& selector) override { return show(selector, true); }
  std::vector<std::string> get(const std::string& selector, const std::string& part,
                               const std::string& directory) override;
  std::string address() const override { return address_; }
  std::vector<NodeInfo> nodes() const override;
  std::string metrics_address() const override { return metrics_ ? metrics_->address() : ""; }
  bool is_writer() const override { return true; }
  std::string stopped_by() const override {
    auto error = engine_loop_->stopped_by();
    return error ? error->message : "";
  }
  uint64_t state_bytes() const override { return engine_loop_->parts().store.bytes(); }
  /// Runs that this engine resumed by itself count too.
  uint32_t client_runs() const override;
  void wait_for_clients() override;

  std::shared_ptr<detail::RunHandle> run_for(const Submission& submission) override;
  std::shared_ptr<detail::RunHandle> resume_for(const std::string& selector,
                                                const std::string& task, Resumption how,
                                                const Submission& from) override;
  std::shared_ptr<detail::RunHandle> serve_for(const std::string& selector, bool rolls_back,
                                               const Submission& submission) override;
  void cancel_for(const std::string& selector, const std::string& by) override;
  std::vector<RunInfo> stop_for(const std::string& selector, int64_t within_ms,
                                const std::string& by) override;
  void signal_for(const std::string& selector, const std::string& name, const std::string& json,
                  const std::string& by) override;
  PlanInfo plan_for(const Submission& submission) override;
  Counts counts(const RunId& run) override;
  std::vector<CountedTask> counts_by_task(const RunId& run) override;
  RunInfo show(const std::string& selector, bool tasks) override;
  Value value(const std::string& selector, const std::string& part) const override;
  std::vector<std::string> get_folders(const std::string& selector) const override;
  Result<cluster::BlobReader> open_blob(const Digest& digest,
                                        const std::string& origin) const override;
  EngineLoop& engine_loop() override { return *engine_loop_; }

 private:
  LocalEngine() = default;
  std::shared_ptr<detail::RunHandle> watch(const RunId& id);
  /// Runs with a live handle in this process or a live client request: gc keeps them.
  std::set<std::string> watched_runs();
  std::shared_ptr<detail::RunHandle> find_request(const Submission& submission);
  Status lead(const std::string& dir);
  Status start_workers(const std::string& dir);
  Status start_notifier();
  /// Error if workers of an engine that died may still run attempts and this engine does not lead
  /// them.
  Status check_for_work_elsewhere() const;
  void warn_all(const std::string& text) override;
  void interrupt_runs(const Error& why) override;
  Status await_workers();
  RunInfo describe_run(const RunId& id, bool tasks);
  /// The newest readings of the GPUs of a worker; "": of this machine.
  std::vector<GpuReading> readings_of(const std::string& worker) const;
  bool is_head() const { return !options_.listen.empty() || options_.slurm.has_value(); }
  /// Resumes the orphaned runs of the state if EngineOptions::resume_detached is set.
  void resume_left_runs();
  bool have_same_name(const RunId& one, const RunId& other);
  /// `adopted`: the outcome of adopt_serving_version(). A plan with a canary needs it to be ok.
  void resume_with_new_code(const RunRecord& record, const Submission& from, const Status& adopted,
                            const std::shared_ptr<detail::RunHandle>& state);
  void resume_with_own_code(const RunRecord& record, const std::string& task, Resumption how,
                            const Submission& from, const Status& adopted,
                            const std::shared_ptr<detail::RunHandle>& state);
  /// Like resume_for(), and then resumes the runs that waited for it.
  std::shared_ptr<detail::RunHandle> resume_first(const std::string& selector,
                                                  const std::string& task, Resumption how,
                                                  const Submission& from);
  /// Resumes the run without a client. An error is also kept with the run, and reported.
  Status resume_unattended(const RunId& id);
  /// Resumes the run that serves the name, unless it is `other`, if its process has died and its
  /// replicas still serve. Error if that fails.
  Status adopt_serving_version(const std::string& name, const RunId& other);
  /// Drains and ends the services of the run that its new plan `plan` lacks, and waits for that.
  /// Call it before the run, which no process executes, is resumed with new code.
  void end_removed_services(const RunId& id, const Plan& plan);
  /// Ends the canary of this name, so that the previous version gets all traffic again, and returns
  /// the canary's run. A repeated request returns the same run. Nothing if no canary is under way.
  std::optional<RunId> end_canary(const std::string& name, const Submission& from);
  std::optional<RunId> ended_canary(const std::string& name, const Submission& from);
  /// A handle, already ended, of the version that serves after the canary `rejected` was ended.
  std::shared_ptr<detail::RunHandle> version_kept(const std::string& name, const RunId& rejected);
  /// Returns `adopted` if the plan has a canary, which needs the previous version; else ok.
  static Status check_canary(const Status& adopted, const Plan& plan);
  /// Active runs that resume_unattended() resumed and no client follows.
  std::vector<RunId> unattended_runs() const;
  /// Warns if an input of the run has changed.
  void report_changed_inputs(detail::RunHandle& state, const RunRecord& record) const;
  Submission local_submission(const RunOptions& options) const;
  EngineOptions reader_options() const;
  /// The active runs that the selector means, newest first. Throws Failed if there is none.
  std::vector<RunId> active_runs(const std::string& selector);

  /// Predicts the run in this state; with `resumed`, a continuation of that run.
  PlanInfo preview(const Prepared& prepared, bool fresh, const RunRecord* resumed);

  EngineOptions options_;
  std::shared_ptr<SpanExporter> span_exporter_;  // null: no spans are made
  std::mutex postponed_mutex_;
  std::vector<RunId> postponed_;  // orphaned runs that wait for `options_.resume_except`
  std::unique_ptr<StateLock> lock_;
  const std::shared_ptr<GpuSamples> gpu_samples_ = std::make_shared<GpuSamples>();
  std::unique_ptr<EngineLoop> engine_loop_;
  std::string leader_;                       // how an earlier engine led its workers
  std::vector<std::string> busy_elsewhere_;  // workers that may still run its attempts
  std::string address_;  // of the cluster, for workers and clients; "" if it does not lead one
  std::unique_ptr<ClusterMembership> cluster_;  // only of a head
  std::unique_ptr<LocalWorkers> workers_;
  NestedRuns nested_;
  std::mutex watched_mutex_;
  std::string unsaid_warning_;  // reported by the next handle
  std::vector<std::weak_ptr<detail::RunHandle>>
      watched_;  // expired entries are removed when one is added
  std::unique_ptr<SlurmHead> slurm_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Notifier> notifier_;
  std::atomic<Notifier*> active_notifier_{nullptr};  // for the loop's thread
  std::unique_ptr<MetricsServer> metrics_;           // last: it reads the others
};

}  // namespace flow
