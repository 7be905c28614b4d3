// One executor process as the worker sees it: the orders that were sent to it, and its state.
#pragma once
#include <sys/epoll.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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
  AttemptOrder order;
  Secrets secrets;              // the order's
  int64_t began_us = 0;         // when it became the first, or was released if that was later
  int64_t terminate_at_us = 0;  // SIGTERM of one that was interrupted; 0: none
  int64_t kill_at_us = 0;       // 0: nobody asked it to end
  uint64_t commit = 0;          // that holds its event
  bool awaits_commit = false;   // it waits for the commit, or will where it touches what is outside
  bool timed_out = false;
  bool has_late_result = false;  // that is refused
  bool stopped = false;          // asked to end by the head
  int64_t ended_us = 0;          // how long it had run then; 0 while it runs
  int64_t memory_peak = 0;
  bool over_memory = false;  // beyond its limit, or killed by the kernel for want of memory
  std::deque<std::string> errors_tail;  // its last lines on stderr
  LogBound log_bound;                   // of what it and its programs print to its streams
  std::string where;  // of a shell task: the lines that say in which folder what command runs
  pid_t program = 0;  // a shell task's process group, of one whose memory is watched

  /// For the first of a slot's queue. While it waits for a commit, that time counts as its own.
  bool runs_longer_than(int64_t us, int64_t now_us) const {
    return !awaits_commit && now_us - began_us > us;
  }
};

struct Slot {
  ExecutorProcess process;
  std::string name;                // random
  std::string mark;                // FLOW_SLOT of it and of all that it starts
  Cgroup cgroup;                   // of it and of all that it starts; where one could be made
  bool is_outside_cgroup = false;  // the executor reported that it could not join it
  bool has_limit = false;          // the kernel limits the memory of its group
  int64_t oom_kills = 0;           // in its group, that were seen
  std::vector<std::string> gpus;   // that its process sees: CUDA reads that once
  FrameCutter cutter;
  std::string out;                                         // not yet written
  uint32_t wire_events = EPOLLIN, error_events = EPOLLIN;  // that are watched for
  std::deque<AssignedAttempt> queue;                       // up to kPipelineMax
  // Bundles that its process has loaded. At kRememberedMax a new process replaces it.
  std::set<Digest> bundles;
  // Environments that it was sent, by run; not kept alive here. A resumed run may have another
  // environment.
  std::map<std::string, std::weak_ptr<const std::vector<std::pair<std::string, std::string>>>>
      environments;
  std::string errors_partial;       // up to kErrorLineMax: what is over is reported in pieces
  bool has_requeued_queue = false;  // what was queued behind a long attempt was asked back
  int64_t ending_since_us = 0;
  bool broken = false;   // what it said was no message
  bool is_gone = false;  // its process closed the wire
};

void fill_start(const AttemptOrder& order, const std::string& scratch, wire::Start& start);
/// Decodes an order, without what a Start does not hold: the bundle's bytes, the environment, the
/// timeout, fractions of a CPU. Returns false if it is invalid.
bool read_start(wire::Start& start, AttemptOrder& order);
wire::AttemptName wire_name(const core::AttemptId& id, uint32_t rank = 0);
core::AttemptId attempt_id(const wire::AttemptName& name);
RankId rank_id(const wire::AttemptName& name);
/// Converts an executor's message to a report. Returns false for kinds that only the worker
/// handles.
bool to_report(wire::FromExecutor& message, Report& report);
/// Converts a report to the message that an executor would have sent; TaskRequeued as one attempt.
void fill_report(Report report, wire::FromExecutor& message);
/// Adds the rank to the failure of a gang's attempt.
core::Failure of_rank(const AttemptOrder& order, core::Failure failure);
/// The failure of an attempt whose executor ended.
core::Failure death_of(const Slot& slot, const AssignedAttempt& front, int wait_status);
core::Failure memory_failure(const Slot& slot, const AssignedAttempt& running,
                             const std::string& evidence);
core::Failure timeout_failure(const AssignedAttempt& running, const std::string& evidence);

}  // namespace flow
