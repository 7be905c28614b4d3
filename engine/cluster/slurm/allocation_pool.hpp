// The Slurm allocations of a head, and which requests to make next. Pure: facts in, actions out.
// Its times are of a monotonic clock.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/cluster/slurm/answers.hpp"
#include "flow/log.hpp"

namespace flow::slurm {

/// Time for an allocation's workers to join after the job began.
constexpr int64_t kJoinMs = 120'000;
/// A job that Slurm does not list for this long is gone; Slurm forgets finished jobs.
constexpr int64_t kAbsentMs = 30'000;
/// Backoff after a failed request: it doubles from the first value to the last.
constexpr int64_t kBackoffFirstMs = 1'000, kBackoffLastMs = 300'000;
constexpr uint32_t kFailuresMax = 12;
constexpr int32_t kRequestsMax = 8;  // concurrent requests

struct AllocationPoolOptions {
  int32_t nodes = 1;  // nodes to keep while there is work; for an elastic pool the initial number
  int32_t min = 0, max = 0;  // elastic if max > 0: each allocation has one node
  int64_t idle_ms = 60'000;  // a node beyond `min` that is idle for this long is released
  int64_t join_ms = kJoinMs;
  std::string logs{};  // folder of the jobs' logs, which are named by job number
  bool is_elastic() const { return max > 0; }
};

/// A worker on a Slurm node, as the head sees it.
struct SlurmNode {
  std::string name;
  uint64_t job = 0;
  bool is_up = false;  // otherwise it is disconnected or lost
  bool is_draining = false, is_busy = false;
  bool is_lost = false;  // it will not rejoin
};

struct ClusterView {
  bool has_work = false;  // a task runs or is ready
  int32_t more = 0;       // further nodes on which ready tasks would start at once
  std::vector<SlurmNode> nodes;
};

/// The actions to take now.
struct PoolActions {
  std::vector<int32_t> requests;   // number of nodes of each allocation to request
  std::vector<std::string> drain;  // nodes
  std::vector<uint64_t> cancel;    // jobs
};

/// An event of a job, or of a request for one: a line of the engine's log.
struct PoolLogLine {
  LogLevel level = LogLevel::info;
  std::string message;  // the event
  std::string detail;
  bool operator==(const PoolLogLine&) const = default;
};

class AllocationPool {
 public:
  explicit AllocationPool(AllocationPoolOptions options) : options_(options) {}

  // ---- facts
  /// A job of an earlier engine start exists.
  void adopt(uint64_t job, int32_t nodes, int64_t now);
  void requested(uint64_t job, int32_t nodes, int64_t now);
  /// `words`: the command and its error output.
  void rejected(const std::string& words, bool is_transient, int64_t now);
  void polled(const std::vector<JobStatus>& jobs, int64_t now);
  /// scancel was run for the jobs that must end.
  void cancelled(const std::vector<uint64_t>& jobs);

  PoolActions decide(const ClusterView& view, int64_t now);

  // ---- messages for users
  /// New messages since the last call.
  std::vector<std::string> take_notes();
  /// New lines for the log since the last call: one for each event.
  std::vector<PoolLogLine> take_log_lines();
  /// The present allocations and the last error, to explain why nothing starts.
  std::string status() const;
  /// Why no more nodes can be allocated, if there is no node left either.
  std::optional<std::string> final_failure() const { return final_failure_; }
  /// Whether a further request cannot succeed.
  bool is_final() const { return is_final_; }
  std::vector<uint64_t> jobs() const;
  int32_t nodes_of(uint64_t job) const;

 private:
  struct Allocation {
    int32_t nodes = 0;
    int64_t requested_ms = 0, seen_ms = 0;  // `seen_ms`: when Slurm last listed it
    int64_t began_ms = 0;                   // 0 while it is pending
    JobState state = JobState::pending;
    std::string word = "PENDING", reason;
    bool has_joined = false;    // a worker of it has joined
    bool is_leaving = false;    // its workers are draining
    bool is_cancelled = false;  // by us
    bool has_cancel_line = false;
    int64_t idle_since_ms = 0;  // 0: busy
    int32_t alive = 0;          // of its nodes: those without a worker yet count at first
  };
  void update(uint64_t job, Allocation& allocation, const ClusterView& view, PoolActions& steps,
              int64_t now);
  void release_idle(const ClusterView& view, PoolActions& steps, int64_t now);
  void request_missing(const ClusterView& view, PoolActions& steps, int64_t now);
  int32_t wanted(const ClusterView& view) const;
  int32_t live() const;
  int32_t waiting() const;  // nodes that are requested and have not joined
  void over(uint64_t job, Allocation& allocation, int64_t now);
  void log_state(uint64_t job, const Allocation& before, const JobStatus& status);
  void log(const char* message, std::string detail, LogLevel level = LogLevel::info);
  void add(uint64_t job, int32_t nodes, int64_t now);
  /// `message`: of the log's line.
  void fail(const char* message, const std::string& why, int64_t now);

  const AllocationPoolOptions options_;
  std::map<uint64_t, Allocation> allocations_;  // until they have ended
  std::vector<std::string> notes_;              // until take_notes()
  std::vector<PoolLogLine> log_lines_;          // until take_log_lines()
  std::string last_failure_;
  uint32_t failures_ = 0;  // consecutive
  int64_t request_at_ms_ = 0;
  bool is_final_ = false;   // a further request cannot succeed
  bool has_begun_ = false;  // of an elastic pool: its initial nodes were requested
  std::optional<std::string> final_failure_;
};

}  // namespace flow::slurm
