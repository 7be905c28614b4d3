// Names of statuses and causes, as users and JSON see them.
#include "engine/core/core.hpp"

namespace flow::core {

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::none:
      return "none";
    case Cause::user_error:
      return "user_error";
    case Cause::exit_code:
      return "exit_code";
    case Cause::signal:
      return "signal";
    case Cause::out_of_memory:
      return "out_of_memory";
    case Cause::timeout:
      return "timeout";
    case Cause::input_changed:
      return "input_changed";
    case Cause::missing_output:
      return "missing_output";
    case Cause::bad_result:
      return "bad_result";
    case Cause::lost:
      return "lost";
    case Cause::preempted:
      return "preempted";
    case Cause::staging:
      return "staging";
    case Cause::cancelled:
      return "cancelled";
    case Cause::stopped:
      return "stopped";
    case Cause::internal:
      return "internal";
    case Cause::quarantined:
      return "quarantined";
    case Cause::dependency:
      return "dependency";
    case Cause::gpu_fault:
      return "gpu_fault";
    case Cause::environment:
      return "environment";
  }
  return "unknown";
}

const char* action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::none:
      return "none";
    case ActionKind::cancel:
      return "cancel";
    case ActionKind::stop:
      return "stop";
    case ActionKind::resume:
      return "resume";
    case ActionKind::retry:
      return "retry";
    case ActionKind::signal:
      return "signal";
    case ActionKind::serve:
      return "serve";
    case ActionKind::rollback:
      return "rollback";
  }
  return "unknown";
}

std::string worker_text(const State& state, WorkerId worker) {
  if (worker == 0 || worker >= state.workers.size()) return "this machine";
  return "`" + state.workers[worker].info.name + "`";
}

const char* status_name(RunStatus status) {
  switch (status) {
    case RunStatus::pending:
      return "pending";
    case RunStatus::running:
      return "running";
    case RunStatus::serving:
      return "serving";
    case RunStatus::waiting:
      return "waiting";
    case RunStatus::succeeded:
      return "succeeded";
    case RunStatus::failed:
      return "failed";
    case RunStatus::cancelled:
      return "cancelled";
    case RunStatus::interrupted:
      return "interrupted";
  }
  return "unknown";
}

const char* status_name(UnitStatus status) {
  switch (status) {
    case UnitStatus::pending:
      return "pending";
    case UnitStatus::ready:
      return "ready";
    case UnitStatus::running:
      return "running";
    case UnitStatus::waiting:
      return "waiting";
    case UnitStatus::succeeded:
      return "succeeded";
    case UnitStatus::failed:
      return "failed";
    case UnitStatus::skipped:
      return "skipped";
    case UnitStatus::cancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace flow::core
