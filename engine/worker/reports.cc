// Reads the messages and the stderr of executors.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/worker/local_worker.hpp"

namespace flow {

namespace {

constexpr size_t kTailLines = 20;
constexpr size_t kTailLineMax = 2000;
constexpr size_t kErrorLineMax = 64 * 1024;
constexpr size_t kLogCost = 1024;  // memory cost of a log line or a metric besides its text

bool has_result(const TaskFinished& finished) {
  return finished.outcome == TaskFinished::Outcome::succeeded ||
         finished.outcome == TaskFinished::Outcome::waiting;
}

}  // namespace

bool LocalWorker::read_slot(Slot& slot) {
  static thread_local std::string chunk(256 * 1024, '\0');
  bool open = true;
  while (true) {
    ssize_t got = ::read(slot.process.wire, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      open = errno == EAGAIN;
      break;
    }
    if (got == 0) {
      open = false;
      break;
    }
    slot.cutter.add({chunk.data(), static_cast<size_t>(got)});
    if (!cut(slot)) {
      slot.broken = true;
      kill_slot(slot);
      return false;
    }
    if (static_cast<size_t>(got) < chunk.size() || is_log_full_) break;
  }
  read_errors(slot);
  return open;
}

bool LocalWorker::cut(Slot& slot) {
  std::string_view frame;
  bool broken = false;
  while (slot.cutter.next(frame, broken)) {
    wire::FromExecutor message;
    if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return false;
    handle(slot, message);
  }
  return !broken;
}

void LocalWorker::handle(Slot& slot, wire::FromExecutor& message) {
  slot.is_unanswered = false;
  if (message.has_started()) {
    bool is_group = message.started().pid() > 1;  // kill(-1) would kill every process
    bool is_first = !slot.queue.empty() &&
                    slot.queue.front().order.rank_id() == rank_id(message.started().id());
    if (is_first && is_group) slot.queue.front().program = message.started().pid();
    if (is_first) slot.queue.front().where = message.started().where();
    return;
  }
  // A started process reports an empty list. Its start-up does not count as the attempt's time.
  if (message.has_requeued() && message.requeued().ids_size() == 0) {
    bool is_begun = !slot.queue.empty() && !slot.queue.front().awaits_commit;
    if (is_begun) slot.queue.front().began_us = monotonic_us();
    return;
  }
  if (message.has_requeued()) {
    for (int i = message.requeued().ids_size(); i > 0; i--)
      requeue(slot, attempt_id(message.requeued().ids(i - 1)));
    return;
  }
  if (message.has_outside_cgroup()) {  // its memory is polled instead
    slot.is_outside_cgroup = true;
    slot.has_limit = false;
    return;
  }
  if (message.has_flushed()) {
    bool is_first = !slot.queue.empty() &&
                    slot.queue.front().order.rank_id() == rank_id(message.flushed().id());
    if (is_first && slot.queue.front().stopped) kill_slot(slot);
    return;
  }
  Report report{};
  if (!to_report(message, report)) return;
  auto running = std::find_if(slot.queue.begin(), slot.queue.end(), [&](const AssignedAttempt& r) {
    return r.order.rank == report.rank && r.order.id == report.id;
  });
  if (running == slot.queue.end()) return;  // an attempt that this slot does not run: stale
  if (auto* finished = report.as<TaskFinished>()) {
    last_duration_us_ = finished->duration_us;
    finished->received_us = monotonic_us();
    running->ended_us = std::max(finished->duration_us, finished->received_us - running->began_us);
    if (running == slot.queue.begin()) note_memory(slot, *running, *finished);
    if (finished->usage.stage_us >= 0) finished->usage.stage_us += running->order.fetch_us;
    finished->usage.moved_bytes = running->order.fetched_bytes;
    if (running->memory_peak > finished->usage.peak_memory && running->memory_peak > 0)
      finished->usage.peak_memory = running->memory_peak;
    adjust(slot, *running, *finished);
    bool is_of_gang = running->order.ranks > 1 && has_result(*finished);
    if (is_of_gang && running->order.rank == 0) gang_ends_.insert(report.id);
    // The head adds the rank that caused a timeout.
    if (running->order.ranks > 1 && !finished->of_gang && !running->timed_out)
      finished->failure = of_rank(running->order, std::move(finished->failure));
    bool was_first = running == slot.queue.begin();
    if (was_first) end_errors(slot);
    slot.queue.erase(running);
    if (was_first) {
      slot.has_requeued_queue = false;
      if (!slot.queue.empty()) slot.queue.front().began_us = monotonic_us();
    }
  }
  add_report(std::move(report));
}

void LocalWorker::add_report(Report&& report) {
  const auto* end = report.as<TaskFinished>();
  if (!gang_results_.empty() && end != nullptr && !has_result(*end)) report_gang(report.id);
  if (!measured_.empty() && hold_for_gpus(report)) return;
  if (!gang_ends_.empty() && hold_for_ranks(report)) return;
  if (auto* lines = report.as<LogLines>()) {
    lines->cost = lines->text.size() + kLogCost;
    unacked_ += lines->cost;
    is_log_full_ = is_log_full_ || unacked_ > kUnackedLogsMax;
  }
  if (auto* metric = report.as<MetricReported>()) {
    metric->cost = metric->name.size() + kLogCost;
    unacked_ += metric->cost;
    is_log_full_ = is_log_full_ || unacked_ > kUnackedLogsMax;
  }
  reports_.push_back(std::move(report));
}

void LocalWorker::adjust(const Slot& slot, AssignedAttempt& running, TaskFinished& finished) {
  bool is_result = has_result(finished);
  int64_t timeout_us = running.order.timeout_ms * 1000;
  bool is_late = timeout_us > 0 && finished.duration_us > timeout_us;
  // Also if the attempt ended before the worker checked its time.
  if (is_result) running.timed_out = running.timed_out || is_late;
  if (is_result && !running.timed_out && !running.over_memory) return;
  if (running.timed_out) {
    running.has_late_result = is_result;
    finished.outcome = TaskFinished::Outcome::failed;
    finished.failure = timeout_failure(running, finished.failure.evidence);
    finished.of_gang = false;
  } else if (running.over_memory) {
    // Its program was killed first, and the executor may still report that.
    finished.outcome = TaskFinished::Outcome::failed;
    finished.failure = memory_failure(slot, running, finished.failure.evidence);
  } else if (running.stopped && finished.outcome == TaskFinished::Outcome::failed) {
    finished.outcome = TaskFinished::Outcome::stopped;
  }
}

void LocalWorker::requeue(Slot& slot, const core::AttemptId& id) {
  for (auto running = slot.queue.begin(); running != slot.queue.end(); ++running) {
    if (running->order.id != id) continue;
    stop_measuring(running->order.rank_id());
    pending_.emplace_front(std::move(running->order), running->commit);
    slot.queue.erase(running);
    return;
  }
}

void LocalWorker::read_errors(Slot& slot, bool is_dead) {
  char chunk[16 * 1024];
  while (is_dead || !is_log_full_) {
    ssize_t got = ::read(slot.process.errors, chunk, sizeof chunk);
    if (got <= 0) break;
    slot.errors_partial.append(chunk, static_cast<size_t>(got));
    size_t at = 0;
    for (size_t end = slot.errors_partial.find('\n'); end != std::string::npos;
         end = slot.errors_partial.find('\n', at)) {
      error_line(slot, slot.errors_partial.substr(at, end - at));
      at = end + 1;
    }
    slot.errors_partial.erase(0, at);
    if (slot.errors_partial.size() > kErrorLineMax) error_chunk(slot);
  }
}

void LocalWorker::error_chunk(Slot& slot) {
  std::string piece = std::exchange(slot.errors_partial, "");
  if (!slot.queue.empty()) slot.errors_partial = slot.queue.front().secrets.hide_begun(piece);
  if (!piece.empty()) error_line(slot, std::move(piece), false);
}

void LocalWorker::end_errors(Slot& slot) {
  if (!slot.errors_partial.empty()) error_line(slot, std::exchange(slot.errors_partial, ""));
  if (slot.queue.empty()) return;
  AssignedAttempt& front = slot.queue.front();
  for (LogBound::Entry& entry : front.log_bound.finish()) log_error(front, std::move(entry));
}

void LocalWorker::error_line(Slot& slot, std::string line, bool ends_line) {
  if (slot.queue.empty()) return;
  AssignedAttempt& front = slot.queue.front();
  line = front.secrets.hidden(std::move(line));
  front.errors_tail.push_back(line.substr(0, kTailLineMax));
  if (front.errors_tail.size() > kTailLines) front.errors_tail.pop_front();
  auto entry = front.log_bound.add({2, std::move(line), now_ms()}, ends_line);
  if (entry) log_error(front, std::move(*entry));
}

void LocalWorker::log_error(const AssignedAttempt& front, LogBound::Entry entry) {
  LogLines lines{entry.stream, std::move(entry.text)};
  add_report({front.order.id, front.order.rank, entry.at_ms, std::move(lines)});
}

void LocalWorker::report_end(const RankId& id, TaskFinished::Outcome outcome, core::Failure failure,
                             const core::AttemptUsage& usage) {
  TaskFinished finished;
  finished.usage = usage;
  finished.outcome = outcome;
  finished.failure = std::move(failure);
  add_report({id.attempt, id.rank, 0, std::move(finished)});
}

}  // namespace flow
