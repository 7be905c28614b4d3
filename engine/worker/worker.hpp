// A node's agent: executor processes, scratch folders, limits. Knows attempts and their processes,
// no runs and no graph.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/worker/report.hpp"

namespace flow {

/// Everything an executor needs to run one attempt.
struct AttemptOrder {
  core::AttemptId id;
  uint32_t rank = 0, ranks = 1;
  uint32_t local_rank = 0, local_ranks = 1;  // among those on its host
  std::string gang_key;                      // random: what a gang's ranks know each other by
  bool encrypts = false;                     // they seal what is long for each other too
  bool is_spread = false;                    // ranks are on other hosts
  std::string remote_address;  // where is_spread: an address in whose direction they are
  std::string worker;          // name of the worker that runs it; "" this machine's own
  std::string task;            // ctx.task
  std::string task_name;       // TaskDef::name
  TaskKind kind = TaskKind::lua;
  Digest bundle;
  std::shared_ptr<const std::string> bundle_bytes;  // sent once an executor
  uint32_t ordinal = 0;
  std::string args;                                   // canonical bytes, refs resolved
  std::vector<std::pair<Digest, std::string>> blobs;  // small ones args needs
  Digest key;
  uint64_t seed = 0;
  Resources resources;
  std::vector<std::string> gpus;     // UUIDs of those that it is given
  std::vector<std::string> visible;  // of a gang's programs: those of all ranks on its host
  int64_t timeout_ms = 0;
  int64_t grace_ms = 10'000;
  std::vector<std::pair<std::string, std::string>> steps, signals;  // name to canonical bytes
  bool has_checkpoint = false;
  std::string checkpoint;
  struct Wait {
    std::string name;
    core::Time deadline = 0;
    bool expired = false;
  };
  std::vector<Wait> waits;
  std::shared_ptr<const std::vector<std::pair<std::string, std::string>>>
      environment;                                       // the submitter's
  std::vector<std::pair<std::string, std::string>> env;  // the task's, filled in
  std::vector<std::string> hide;                         // shown as *** in logs
  std::shared_ptr<const ShellSpec> shell;                // of a shell task
  std::string defined_at;                                // of a shell task: "p.lua:3"
  bool stage_copy = false, named_args = false;
  ServiceSpec service;
  RankId rank_id() const { return {id, rank}; }
};

/// Logs that are reported and not taken in; beyond it executors are not read, so who prints waits.
constexpr size_t kUnackedLogsMax = 32 << 20;

struct WorkerOptions {
  std::string state_dir;      // scratch is below state_dir/scratch
  std::string executor;       // path of flow-executor
  int32_t executors_max = 2;  // processes at once
};

struct BuildOrder {
  std::string root, main, params, working_directory, pinned;
  std::vector<std::pair<std::string, std::string>> text_params;
  int64_t time_limit_ms = 30'000;
  int64_t memory_limit_bytes = int64_t{4} << 30;
};
struct BuildReply {
  std::string plan, bundle;  // encoded
  std::vector<std::string> errors;
  std::string printed;  // by the script, at its top and in its body
};

/// Thread-safe. Reports are called on the worker's own thread, which holds no lock then.
class Worker {
 public:
  using OnReport = std::function<void(std::vector<Report>)>;
  virtual ~Worker() = default;  // kills every executor's process group and waits for it
  /// Hands orders over whose events the commit of this number holds, while it is made. Until it is
  /// released nothing of them lasts or is seen by others: a Lua task's function computes and may
  /// come to its result, and waits where it first touches what lies outside; a command and a
  /// service wait before they begin. Commits are numbered from 1.
  virtual void stage(std::vector<AttemptOrder> orders, uint64_t commit) = 0;
  /// This commit and all before it are durable.
  virtual void release(uint64_t commit) = 0;
  void start(std::vector<AttemptOrder> orders) { stage(std::move(orders), 0); }
  /// To the ranks of a gang that are here, what all of them reported as their meeting, in their
  /// order. It may come again.
  virtual void exchange_addresses(const core::AttemptId& id,
                                  const std::vector<std::string>& rank_addresses) = 0;
  /// SIGTERM, after the order's grace SIGKILL; with `kill` SIGKILL at once. The report ends it; of
  /// a gang those of all its ranks that are here.
  virtual void stop(const core::AttemptId& id, bool kill) = 0;
  /// ctx.stopping is true: the attempt may save and end, or come to its end. After the order's
  /// grace SIGTERM, a little later SIGKILL.
  virtual void interrupt(const core::AttemptId& id) { stop(id, false); }
  /// SIGKILL as soon as nothing is being written any more of what the attempt asked to keep, and at
  /// the end of the order's grace.
  virtual void kill_after_flush(const core::AttemptId& id) { stop(id, true); }
  /// Nothing begins any more: what has not begun is given back, the rest is interrupted and has so
  /// long before SIGTERM.
  virtual void drain(int64_t) {}
  virtual void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) = 0;
  /// Rank 0 of this attempt, which runs elsewhere, has saved this checkpoint: it is to be had from
  /// here too, so that what begins anew finds it near.
  virtual void replicate(const core::AttemptId&, const Digest&) {}
  /// This run has ended: what is kept for its attempts to come may go.
  virtual void forget(const core::RunId&) {}
  /// Logs of this cost wait nowhere any more.
  virtual void ack_logs(size_t cost) = 0;
};

/// A worker of another machine, while it is connected. What it reports is numbered from 1 on, by it
/// and over all its connections.
class WorkerConnection : public Worker {
 public:
  /// What it brought when it joined is decided on: what is not told to stop by now goes on, and of
  /// its reports it gives those behind the first `taken`.
  virtual void accept_join(uint64_t taken) = 0;
  /// Its reports up to this number are durable.
  virtual void ack_reports(uint64_t number) = 0;
  /// Ends the connection. `why` is for people.
  virtual void disconnect(const std::string& why) = 0;
};

/// First kills what is left of attempts that the slot folders record (same boot id, process group
/// and start time).
Result<std::unique_ptr<Worker>> make_worker(const WorkerOptions& options,
                                            Worker::OnReport on_report);

class BuildChild;

/// Builds graphs, each in a child of its own under CPU, memory and time limits. Thread-safe.
class Builder {
 public:
  explicit Builder(std::string executor);
  ~Builder();  // ends its children
  /// Starts the next graph's child, which takes as long as a small graph. Whoever built twice has
  /// that done each time.
  void prefork();
  /// Blocks.
  Result<BuildReply> build(const BuildOrder& order);
  /// Waits until the child of the last build is gone, and the next one started where there is one.
  void wait_idle();

 private:
  Result<std::unique_ptr<BuildChild>> start() const;
  void clean_up_in_background(std::unique_ptr<BuildChild> ended, bool builds_often);

  const std::string executor_;
  std::mutex mutex_;
  std::unique_ptr<BuildChild> preforked_;
  uint64_t builds_ = 0;
  std::mutex cleanup_mutex_;
  std::thread cleanup_;
};

}  // namespace flow
