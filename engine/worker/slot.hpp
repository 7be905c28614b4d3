// One executor process as the worker sees it: the orders that were sent to it, and its state.
#pragma once
#include <sys/epoll.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/base/log_bound.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/protocol/frames.hpp"
#include "engine/worker/spawn.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// An order that was sent to an executor. The first of a slot's queue is the running one.
struct AssignedAttempt {
  AssignedAttempt() = default;
  explicit AssignedAttempt(AttemptOrder&& moved) : order(std::move(moved)) {}
  AttemptOrder order;
  Secrets secrets;              // of the order
  int64_t began_us = 0;         // time when it became the first, or was released if that was later
  int64_t terminate_at_us = 0;  // when an interrupted attempt gets SIGTERM; 0: never
  int64_t kill_at_us = 0;       // 0: it was not asked to end
  uint64_t commit = 0;          // number of the commit that holds its event
  bool awaits_commit = false;   // it waits for the commit, or will before its first external effect
  bool timed_out = false;
  bool has_late_result = false;  // its result came after the deadline and is rejected
  bool stopped = false;          // asked to end by the head
  int64_t ended_us = 0;          // run time when it was asked to end; 0 while it runs
  int64_t memory_peak = 0;       // as far as it was looked at
  // The most that its slot's group had, with file caches, and perhaps that of earlier attempts: for
  // the text of a failure only.
  int64_t group_peak = 0;
  // CPU time that the executor had used when the worker first looked at a long attempt; -1: not
  // yet. It gives the CPU time of an attempt that is killed.
  int64_t cpu_us_before = -1;
  bool over_memory = false;  // beyond its limit, or killed by the kernel for lack of memory
  std::list<std::string> errors_tail;  // its last lines on stderr
  LogBound log_bound;                  // limits what it and its programs print to their streams
  std::string where;  // of a shell task: lines that name the folder and the command
  pid_t program = 0;  // process group of a shell task whose memory is watched

  /// For the first of a slot's queue. Time that it waits for a commit counts as its own.
  bool runs_longer_than(int64_t us, int64_t now_us) const {
    return !awaits_commit && now_us - began_us > us;
  }
};

struct Slot {
  ExecutorProcess process;
  std::string name;  // random
  std::string mark;  // FLOW_SLOT of the executor and its descendants
  Cgroup cgroup;     // control group of the executor and its descendants, if one could be created
  bool is_outside_cgroup = false;  // the executor reported that it could not join it
  bool has_limit = false;          // the kernel limits the memory of its group
  int64_t oom_kills = 0;           // counted kills in its group
  std::vector<std::string> gpus;   // visible to its process; CUDA reads the list once
  FrameCutter cutter;
  std::string out;                                         // not yet written
  uint32_t wire_events = EPOLLIN, error_events = EPOLLIN;  // watched events
  std::deque<AssignedAttempt> queue;                       // up to kPipelineMax
  // Bundles that its process has loaded. At kRememberedMax a new process replaces it.
  std::set<Digest> bundles;
  // Environments that were sent to it, by run; not kept alive here. A resumed run may have another
  // environment.
  std::map<std::string, std::weak_ptr<const EnvironmentVariables>> environments;
  std::string errors_partial;       // up to kErrorLineMax; a longer line is reported in parts
  bool has_requeued_queue = false;  // the orders behind a long attempt were requested back
  int64_t ending_since_us = 0;
  bool broken = false;   // it sent bytes that are not a message
  bool is_gone = false;  // its process closed the connection
  // Taken over from an earlier engine: not a child of this process.
  bool is_adopted = false;
  bool is_unanswered = false;  // adopted, and has not sent anything yet
};

void fill_start(const AttemptOrder& order, const std::string& scratch, wire::Start& start);
/// Decodes an order, without the fields that a Start does not hold: the bundle's bytes, the
/// environment, the timeout, fractions of a CPU. Returns false if it is invalid.
bool read_start(wire::Start& start, AttemptOrder& order);
wire::AttemptName wire_name(const core::AttemptId& id, uint32_t rank = 0);
core::AttemptId attempt_id(const wire::AttemptName& name);
RankId rank_id(const wire::AttemptName& name);
/// Converts an executor's message to a report. Returns false for kinds that only the worker
/// handles.
bool to_report(wire::FromExecutor& message, Report& report);
/// Converts a report to the message that an executor would have sent; TaskRequeued as one attempt.
void fill_report(Report report, wire::FromExecutor& message);
void put_usage(const core::AttemptUsage& usage, wire::Usage& to);
/// Negative numbers are unknown.
core::AttemptUsage usage_of(const wire::Usage& from);
/// Adds the rank to the failure of a gang's attempt.
core::Failure of_rank(const AttemptOrder& order, core::Failure failure);
/// The failure of an attempt whose executor ended.
core::Failure death_of(const Slot& slot, const AssignedAttempt& front, int wait_status);
core::Failure memory_failure(const Slot& slot, const AssignedAttempt& running,
                             const std::string& evidence);
core::Failure timeout_failure(const AssignedAttempt& running, const std::string& evidence);

}  // namespace flow
