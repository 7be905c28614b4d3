// The vocabulary of the pure core: events that happened, commands that ask. Values only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/plan/plan.hpp"
#include "engine/plan/worker_selector.hpp"
#include "flow/gpu.hpp"

namespace flow::core {

using RunId = std::string;  // sorts by time: "20261121-051700-k3f9x2"
using UnitId = uint32_t;    // index in Run::units: the schedulable instances of a run's nodes
using WorkerId = uint16_t;  // index in State::hosts; 0 is the engine's own machine
using Time = int64_t;       // milliseconds since the Unix epoch, stamped by the driver

/// Names one attempt for ever. `epoch` is the fencing token: the engine start that assigned it, and
/// how often this attempt had been given back unstarted before (see fencing_token).
struct AttemptId {
  RunId run;
  UnitId unit = 0;
  uint32_t attempt = 0;  // 1 is the first
  uint64_t epoch = 0;
  auto operator<=>(const AttemptId&) const = default;
};

/// Why an attempt ended without a result. Each has its evidence and its own budget.
enum class Cause : uint8_t {
  none,
  user_error,
  exit_code,
  signal,
  out_of_memory,
  timeout,
  input_changed,
  missing_output,
  bad_result,
  lost,
  preempted,
  staging,
  cancelled,
  stopped,
  internal,
  quarantined,
  dependency,
  gpu_fault,
};
constexpr Cause kCauseLast = Cause::gpu_fault;  // their numbers are journaled
const char* cause_name(Cause cause);            // "user_error", …

struct Failure {
  Cause cause = Cause::none;
  std::string message;   // what, where, why, what to do
  std::string evidence;  // traceback, last lines of stderr, limit and usage
  int32_t code = 0;      // exit code or signal number
};

// ---- events
// -----------------------------------------------------------------------------------------------

struct EngineStarted {
  uint64_t epoch = 0;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  ResourceQuantities custom_resources{};
  bool leads_workers = false;  // others may join
};
struct RunSubmitted {
  RunId run;
  std::string name;
  Digest plan_digest;
  std::shared_ptr<const Plan> plan;  // journaled as plan_digest; the decoder looks it up
  int32_t jobs = 0;                  // CPU slots this run may use; 0: all
  bool fail_fast = false;
  bool fresh = false;
};
/// A unit's inputs are all there: its key, and what the cache holds for it.
struct InputsResolved {
  RunId run;
  UnitId unit = 0;
  Digest key;
  bool hit = false;
  Digest result;                                 // from the cache
  std::shared_ptr<const PlanFragment> fragment;  // a dynamic task's cached calls; by digest
  Digest fragment_digest;
};
/// A unit's inputs can't be had (a part that the result lacks, a list that is none, …).
struct InputsFailed {
  RunId run;
  UnitId unit = 0;
  Failure failure;
};
struct MapExpanded {
  RunId run;
  UnitId unit = 0;
  uint32_t count = 0;
};
struct WhenResolved {
  RunId run;
  UnitId unit = 0;
  bool then_branch = false;
};
/// A value was put together: a map's list, a when's branch value, or the run's result.
struct ValueGathered {
  RunId run;
  UnitId unit = 0;
  Digest result;
};
/// Where a rank runs, and the UUIDs of the devices that it is given.
struct Placement {
  WorkerId worker = 0;
  std::vector<std::string> gpus{};
  bool operator==(const Placement&) const = default;
};
/// What each rank of a gang takes of its host.
struct Share {
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Share&) const = default;
};
struct Assigned {
  AttemptId id;
  std::vector<std::string> gpus{};  // rank 0's, as is the host
  WorkerId worker = 0;
  std::vector<Placement> others{};  // of a gang: ranks 1, 2, …
  Share share{};                    // of a gang
};                                  // the scheduler's choice
struct AttemptRequeued {
  AttemptId id;
};  // never started, given back
struct AttemptSucceeded {
  AttemptId id;
  Digest result;
  std::shared_ptr<const PlanFragment> fragment;  // dynamic tasks; journaled by digest
  Digest fragment_digest;
  int64_t duration_us = 0;  // of the attempt, as the worker measured it
  bool waited = false;      // ctx:wait was called: the answer, and so the result, is this run's own
};
struct AttemptFailed {
  AttemptId id;
  Failure failure;
  uint32_t rank = 0;         // of a gang: the rank that failed first
  bool worker_died = false;  // the process of the worker that ran it ended
};
/// Ended at ctx:wait: its slot is free; goes on after the signal or the deadline.
struct AttemptWaiting {
  AttemptId id;
  std::string signal;
  std::string wait_name;
  Time deadline = 0;
};
struct AttemptStopped {
  AttemptId id;
};  // ended on request, state saved; costs no retry
struct ServiceReady {
  AttemptId id;
  std::string url;
};
struct StepSaved {
  AttemptId id;
  std::string name;
  Digest value;
};
struct CheckpointSaved {
  AttemptId id;
  Digest value;
};
struct SignalReceived {
  RunId run;
  std::string name;
  Digest value;
};
/// Of a unit, or with an empty `run` of the host `unit` that is set aside.
struct TimerFired {
  RunId run;
  UnitId unit = 0;
  uint32_t serial = 0;
};
struct CancelRequested {
  RunId run;
};
struct StopRequested {
  RunId run;
};  // SIGINT: no new attempts, running ones are asked to stop
struct ServeEnded {
  RunId run;
};  // --serve-for over, Ctrl-C while serving
/// resume or retry: failed units get new attempts; with `unit` also a success is run again and its
/// dependents follow.
struct RetryRequested {
  RunId run;
  bool has_unit = false;
  UnitId unit = 0;
  std::vector<UnitId>
      lost{};  // without `unit`: of these the result is gone, and they run again too
};
struct RunDeleted {
  RunId run;
};  // gc
/// GPUs that a host has from now on. Of host 0 they are all of the engine's machine, looked for
/// when a run first asks for one; an engine that starts knows none. To another host they are added:
/// it offered them when it joined, and the worker that had them is lost.
struct GpusFound {
  std::vector<Gpu> gpus;
  WorkerId worker = 0;
};
/// A GPU failed: it is given to nobody until its host tells anew of what it has. What holds it ends
/// where it is dead, else goes on.
struct GpuFailed {
  WorkerId worker = 0;
  std::string uuid;
  std::string fault;  // as Gpu has it
  bool is_dead = false;
};
/// There has been room for more ranks of an elastic gang, which has just saved a checkpoint: it is
/// asked to stop, and begins again as so many.
struct ResizeRequested {
  AttemptId id;
  uint32_t ranks = 0;
};

/// A machine that runs attempts, as it describes itself.
struct WorkerInfo {
  std::string name;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  std::vector<Gpu> gpus;
  Labels labels{};  // "rack" to "a", sorted by name
  ResourceQuantities custom_resources{};
};
/// A worker came, or one of that name came back.
struct WorkerJoined {
  WorkerInfo worker;
  /// What it still has: what runs on it, and what ended there with a report that it has yet to hand
  /// over.
  std::vector<AttemptId> attempts{};
  bool is_restarted = false;  // another process than the one that was connected before
};
/// Nothing is heard of a worker. What it runs goes on, until it comes back or is lost.
struct WorkerDisconnected {
  WorkerId worker = 0;
  std::string why;
};
/// A worker is to leave: it is given nothing new, and asks what it runs to stop.
struct WorkerDraining {
  WorkerId worker = 0;
  std::string why;
};
/// A worker is gone, and with it what it ran.
struct WorkerLost {
  WorkerId worker = 0;
  std::string why;
  bool has_died = false;  // its process ended; else nothing was heard of it for too long
};
/// So many workers are to join in all, those that are there included. Until they have, a gang
/// waits for them before its ranks get fewer CPUs than they ask for.
struct WorkersAnnounced {
  uint32_t count = 0;
};

using Event = std::variant<
    EngineStarted, RunSubmitted, InputsResolved, InputsFailed, MapExpanded, WhenResolved,
    ValueGathered, Assigned, AttemptRequeued, AttemptSucceeded, AttemptFailed, AttemptWaiting,
    AttemptStopped, ServiceReady, StepSaved, CheckpointSaved, SignalReceived, TimerFired,
    CancelRequested, StopRequested, ServeEnded, RetryRequested, RunDeleted, GpusFound, WorkerJoined,
    WorkerDisconnected, WorkerLost, WorkerDraining, ResizeRequested, GpuFailed, WorkersAnnounced>;

/// An event as the journal holds it.
struct Record {
  uint64_t sequence = 0;  // 1, 2, 3 …: no gaps
  Time at = 0;
  Event event;
};

// ---- commands
// ---------------------------------------------------------------------------------------------

// Questions: pure reads of committed or about-to-be-committed content. The driver answers them with
// an event inside the same turn, before the commit.
struct ResolveInputs {
  RunId run;
  UnitId unit = 0;
};  // -> InputsResolved | InputsFailed
struct ExpandMap {
  RunId run;
  UnitId unit = 0;
};  // -> MapExpanded | InputsFailed
struct ResolveWhen {
  RunId run;
  UnitId unit = 0;
};  // -> WhenResolved
struct GatherValue {
  RunId run;
  UnitId unit = 0;
};  // map list, when or dynamic value, or (unit kNoNode) the run's result -> ValueGathered |
    // InputsFailed
// Acts: performed only after the commit. May be performed twice, so each names its attempt.
struct StartAttempt {
  AttemptId id;
};
struct StopAttempt {
  AttemptId id;
  bool kill = false;
  WorkerId worker = 0;  // where it runs: the state may not know the attempt any more
};                      // SIGTERM, grace, SIGKILL; the report ends it
struct AckSaved {
  AttemptId id;
  std::string name;
};  // a step or (name "") checkpoint is durable
struct SetTimer {
  RunId run;  // empty: the timer of a host, as of TimerFired
  UnitId unit = 0;
  uint32_t serial = 0;
  Time at = 0;
};
struct RunChanged {
  RunId run;
};  // status changed: rewrite its row, tell its watchers
struct UnitChanged {
  RunId run;
  UnitId unit = 0;
};  // tell watchers
struct RunEnded {
  RunId run;
};  // fold into a summary

using Command = std::variant<ResolveInputs, ExpandMap, ResolveWhen, GatherValue, StartAttempt,
                             StopAttempt, AckSaved, SetTimer, RunChanged, UnitChanged, RunEnded>;

}  // namespace flow::core
