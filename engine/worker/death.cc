// Failures that an attempt could not report itself, with their evidence.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "engine/base/size_units.hpp"
#include "engine/worker/slot.hpp"

namespace flow {

namespace {

/// "p.lua:3: ", where the task is defined.
std::string location_prefix(const AttemptOrder& order) {
  return order.defined_at.empty() ? "" : order.defined_at + ": ";
}

}  // namespace

core::Failure timeout_failure(const AssignedAttempt& running, const std::string& evidence) {
  core::Failure failure;
  failure.cause = core::Cause::timeout;
  failure.message = fmt::format(
      "{}`{}` ran longer than its timeout of {} and {} {}; `timeout` gives it more time",
      location_prefix(running.order), running.order.shown_task(),
      format_duration(running.order.timeout_ms),
      running.has_late_result ? "its result is rejected, because it ended after"
                              : "was ended after",
      format_duration(running.ended_us / 1000));
  failure.message += running.where;
  failure.evidence = evidence;
  return failure;
}

core::Failure memory_failure(const Slot& slot, const AssignedAttempt& running,
                             const std::string& evidence) {
  auto bytes = [](int64_t n) { return format_bytes(static_cast<uint64_t>(n)); };
  int64_t limit = running.order.resources.memory_bytes;
  core::Failure failure;
  failure.cause = core::Cause::out_of_memory;
  failure.message = location_prefix(running.order);
  if (limit <= 0) {
    failure.message += fmt::format(
        "`{}` was ended by the kernel: no memory was left on this machine or in its container; "
        "set `memory` so that large tasks do not run together",
        running.order.shown_task());
  } else if (slot.has_limit) {
    failure.message += fmt::format(
        "`{}` was ended: it needed more memory than its limit of {}; `memory` gives it more",
        running.order.shown_task(), bytes(limit));
  } else {
    failure.message +=
        fmt::format("`{}` was ended: it used {} of memory, its limit is {}; `memory` gives it more",
                    running.order.shown_task(), bytes(running.memory_peak), bytes(limit));
  }
  failure.message += running.where;
  failure.evidence =
      fmt::format("limit {}, peak {}, process group {}\n{}", bytes(limit),
                  bytes(std::max(running.group_peak, running.memory_peak)),
                  running.program > 0 ? running.program : slot.process.pid, evidence);
  return failure;
}

/// A GPU failure; the executor's last line is CUDA's message.
core::Failure gpu_failure(const Slot& slot, const AssignedAttempt& front,
                          const std::string& evidence) {
  core::Failure failure;
  failure.cause = core::Cause::gpu_fault;
  failure.message = fmt::format("{}a GPU of `{}` failed ({})", location_prefix(front.order),
                                front.order.shown_task(), fmt::join(slot.gpus, ", "));
  if (!front.errors_tail.empty()) failure.message += ": " + front.errors_tail.back();
  failure.evidence = evidence;
  return failure;
}

/// The attempt made its process unable to use the GPU, for example by a kernel that wrote outside
/// its tensors. The executor's last line is CUDA's message.
core::Failure lost_context_failure(const AssignedAttempt& front, const std::string& evidence) {
  core::Failure failure;
  failure.cause = core::Cause::exit_code;
  failure.code = kLostGpuExit;
  failure.message = fmt::format("{}the process of `{}` can no longer use its GPU and ended",
                                location_prefix(front.order), front.order.shown_task());
  if (!front.errors_tail.empty()) failure.message += ": " + front.errors_tail.back();
  failure.evidence = evidence;
  return failure;
}

core::Failure of_rank(const AttemptOrder& order, core::Failure failure) {
  if (order.ranks > 1)
    failure.message = fmt::format("rank {} of {}: {}", order.rank, order.ranks, failure.message);
  return failure;
}

core::Failure death_of(const Slot& slot, const AssignedAttempt& front, int wait_status) {
  std::string tail;
  for (const std::string& line : front.errors_tail) tail += line + "\n";
  if (front.timed_out) return timeout_failure(front, tail);
  if (front.over_memory) return memory_failure(slot, front, tail);
  core::Failure failure;
  failure.evidence = tail;
  std::string task = front.order.shown_task();
  if (slot.broken) {
    failure.cause = core::Cause::internal;
    failure.message = fmt::format(
        "{}the process of `{}` was ended: it sent its worker bytes that are not a message",
        location_prefix(front.order), task);
  } else if (slot.is_adopted) {
    failure.cause = core::Cause::lost;
    failure.message = fmt::format(
        "{}the process of `{}` ended; how is not known, because an earlier engine started it",
        location_prefix(front.order), task);
  } else if (WIFSIGNALED(wait_status)) {
    failure.cause = core::Cause::signal;
    failure.code = WTERMSIG(wait_status);
    failure.message =
        fmt::format("{}the process of `{}` was killed by signal {} ({})",
                    location_prefix(front.order), task, failure.code, ::strsignal(failure.code));
  } else if (WEXITSTATUS(wait_status) == kFailedGpuExit && !slot.gpus.empty()) {
    failure = gpu_failure(slot, front, tail);
  } else if (WEXITSTATUS(wait_status) == kLostGpuExit && !slot.gpus.empty()) {
    failure = lost_context_failure(front, tail);
  } else {
    failure.cause = core::Cause::exit_code;
    failure.code = WEXITSTATUS(wait_status);
    failure.message = fmt::format("{}the process of `{}` ended with exit code {}",
                                  location_prefix(front.order), task, failure.code);
  }
  failure.message += front.where;
  return failure;
}

}  // namespace flow
