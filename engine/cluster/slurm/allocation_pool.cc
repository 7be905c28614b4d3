#include "engine/cluster/slurm/allocation_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/cluster/slurm/request.hpp"

namespace flow::slurm {

namespace {

std::string nodes_text(int32_t nodes) {
  return fmt::format("{} node{}", nodes, nodes == 1 ? "" : "s");
}

std::string described(uint64_t job, int32_t nodes) {
  return fmt::format("the allocation {} of {}", job, nodes_text(nodes));
}

std::string job_text(uint64_t job, int32_t nodes) {
  return fmt::format("job {}, {}", job, nodes_text(nodes));
}

std::string state_text(const std::string& word, const std::string& reason) {
  return reason.empty() ? word : word + " (" + reason + ")";
}

}  // namespace

void AllocationPool::log(const char* message, std::string detail, LogLevel level) {
  log_lines_.push_back({level, message, std::move(detail)});
}

void AllocationPool::adopt(uint64_t job, int32_t nodes, int64_t now) {
  add(job, nodes, now);
  log("Slurm job adopted", job_text(job, nodes));
}

void AllocationPool::requested(uint64_t job, int32_t nodes, int64_t now) {
  add(job, nodes, now);
  log("Slurm job submitted", job_text(job, nodes));
}

void AllocationPool::add(uint64_t job, int32_t nodes, int64_t now) {
  Allocation allocation;
  allocation.nodes = allocation.alive = nodes;
  allocation.requested_ms = allocation.seen_ms = now;
  allocations_[job] = allocation;
}

void AllocationPool::rejected(const std::string& words, bool is_transient, int64_t now) {
  is_final_ = !is_transient;
  fail("Slurm request rejected", words, now);
}

void AllocationPool::cancelled(const std::vector<uint64_t>& jobs) {
  for (uint64_t job : jobs) {
    auto found = allocations_.find(job);
    if (found == allocations_.end()) {  // an earlier head's
      log("Slurm job cancelled", fmt::format("job {}", job));
    } else if (!std::exchange(found->second.has_cancel_line, true)) {
      log("Slurm job cancelled", job_text(job, found->second.nodes));
    }
  }
}

void AllocationPool::fail(const char* message, const std::string& why, int64_t now) {
  last_failure_ = why;
  failures_++;
  std::string then = "; the run continues with the nodes that it has";
  if (!is_final_ && failures_ < kFailuresMax) {
    int64_t pause = std::min(kBackoffFirstMs << std::min(failures_ - 1, 20u), kBackoffLastMs);
    request_at_ms_ = now + pause;
    then = fmt::format("; Slurm is asked again in {}", format_duration(pause));
  }
  is_final_ = is_final_ || failures_ >= kFailuresMax;
  notes_.push_back(why + then);
  log(message, why + then, LogLevel::warning);
}

// States that end the job are logged where its end is handled.
void AllocationPool::log_state(uint64_t job, const Allocation& before, const JobStatus& status) {
  if (status.state == before.state || is_over(status.state)) return;
  const char* message = nullptr;
  if (status.state == JobState::running)
    message = before.state == JobState::suspended ? "Slurm job continues" : "Slurm job started";
  if (status.state == JobState::pending && before.began_ms > 0) message = "Slurm job requeued";
  if (status.state == JobState::suspended) message = "Slurm job suspended";
  if (message != nullptr) log(message, job_text(job, before.nodes));
}

void AllocationPool::polled(const std::vector<JobStatus>& jobs, int64_t now) {
  for (const JobStatus& job : jobs) {
    auto found = allocations_.find(job.id);
    if (found == allocations_.end()) continue;
    Allocation& allocation = found->second;
    allocation.seen_ms = now;
    bool is_new = allocation.reason != job.reason && job.state == JobState::pending &&
                  !job.reason.empty() && job.reason != "Priority" && job.reason != "Resources";
    if (is_new || (job.state == JobState::held && allocation.state != JobState::held)) {
      std::string why = state_text(job.word, job.reason);
      notes_.push_back(fmt::format("{} waits: {}", described(job.id, allocation.nodes), why));
      log("Slurm job waits", fmt::format("{}: {}", job_text(job.id, allocation.nodes), why));
    }
    log_state(job.id, allocation, job);
    bool begins = job.state == JobState::running && allocation.began_ms == 0;
    if (begins) allocation.began_ms = now;
    if (job.state != JobState::unknown) allocation.state = job.state;
    allocation.word = job.word;
    allocation.reason = job.reason;
  }
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    Allocation& allocation = it->second;
    bool is_absent = now - allocation.seen_ms > kAbsentMs;
    if (is_absent) {
      allocation.state = JobState::failed;
      allocation.word = "gone: Slurm no longer lists it";
      allocation.reason.clear();
    }
    if (!is_over(allocation.state)) {
      ++it;
      continue;
    }
    over(it->first, allocation, now);
    it = allocations_.erase(it);
  }
}

// A job whose workers joined and that ended normally, or on request, resets the failure count.
void AllocationPool::over(uint64_t job, Allocation& allocation, int64_t now) {
  if (allocation.is_cancelled) return;
  bool is_in_order = allocation.state == JobState::completed ||
                     allocation.state == JobState::timed_out ||
                     allocation.state == JobState::preempted;
  std::string what = described(job, allocation.nodes) +
                     " is over: " + state_text(allocation.word, allocation.reason);
  if (!(is_in_order && allocation.has_joined)) {
    if (!allocation.has_joined) what += ", and none of its workers had joined";
    if (!options_.logs.empty())
      what += fmt::format("; its log is `{}`", log_path(options_.logs, std::to_string(job)));
    return fail("Slurm job failed", what, now);
  }
  failures_ = 0;
  notes_.push_back(what);
  log("Slurm job ended", fmt::format("{}: {}", job_text(job, allocation.nodes),
                                     state_text(allocation.word, allocation.reason)));
}

int32_t AllocationPool::live() const {
  int32_t nodes = 0;
  for (const auto& [job, allocation] : allocations_)
    if (!allocation.is_leaving && !allocation.is_cancelled) nodes += allocation.alive;
  return nodes;
}

int32_t AllocationPool::waiting() const {
  int32_t nodes = 0;
  for (const auto& [job, allocation] : allocations_)
    if (!allocation.has_joined && !allocation.is_cancelled) nodes += allocation.nodes;
  return nodes;
}

PoolActions AllocationPool::decide(const ClusterView& view, int64_t now) {
  PoolActions steps;
  for (auto& [job, allocation] : allocations_) update(job, allocation, view, steps, now);
  if (options_.is_elastic()) release_idle(view, steps, now);
  if (view.has_work) request_missing(view, steps, now);
  bool has_nodes = live() > 0 || std::any_of(view.nodes.begin(), view.nodes.end(),
                                             [](const SlurmNode& node) { return node.is_up; });
  bool has_failed = view.has_work && is_final_ && !has_nodes && steps.requests.empty();
  if (has_failed && !final_failure_) final_failure_ = last_failure_;
  return steps;
}

void AllocationPool::update(uint64_t job, Allocation& allocation, const ClusterView& view,
                            PoolActions& steps, int64_t now) {
  if (allocation.is_cancelled) return;
  int32_t up = 0, staying = 0, lost = 0;
  bool is_busy = false;
  for (const SlurmNode& node : view.nodes) {
    if (node.job != job) continue;
    up += node.is_up;
    lost += node.is_lost;
    staying += node.is_up && !node.is_draining;
    is_busy = is_busy || node.is_busy;
  }
  allocation.has_joined = allocation.has_joined || up > 0;
  if (allocation.has_joined && allocation.began_ms == 0) allocation.began_ms = now;
  bool is_young = allocation.began_ms == 0 || now - allocation.began_ms < options_.join_ms;
  allocation.is_leaving = allocation.is_leaving || (up > 0 && staying == 0);
  bool begins = is_young && up == staying && !allocation.is_leaving;
  allocation.alive = begins ? std::max(allocation.nodes - lost, staying) : staying;
  if (is_busy || up == 0) {
    allocation.idle_since_ms = 0;
  } else if (allocation.idle_since_ms == 0) {
    allocation.idle_since_ms = now;
  }
  bool cannot_start = allocation.state == JobState::pending && never_starts(allocation.reason);
  bool has_no_worker =
      allocation.state == JobState::running && !is_young && up == 0 && !allocation.is_leaving;
  if (!cannot_start && !has_no_worker) return;
  allocation.is_cancelled = true;
  steps.cancel.push_back(job);
  if (cannot_start) is_final_ = true;
  fail("Slurm job given up",
       cannot_start
           ? fmt::format("{} cannot start: {}", described(job, allocation.nodes),
                         state_text(allocation.word, allocation.reason))
           : fmt::format("{} has no worker, {} after it began", described(job, allocation.nodes),
                         format_duration(now - allocation.began_ms)),
       now);
}

// Drain first, so that attempts that were just assigned are not lost.
void AllocationPool::release_idle(const ClusterView& view, PoolActions& steps, int64_t now) {
  int32_t spare = view.more > 0 ? 0 : live() - options_.min;
  for (auto& [job, allocation] : allocations_) {
    bool is_idle = allocation.idle_since_ms > 0 && !allocation.is_cancelled;
    if (!is_idle) continue;
    if (allocation.is_leaving) {
      allocation.is_cancelled = true;
      steps.cancel.push_back(job);
      continue;
    }
    if (spare <= 0 || now - allocation.idle_since_ms < options_.idle_ms) continue;
    spare--;
    for (const SlurmNode& node : view.nodes)
      if (node.job == job) steps.drain.push_back(node.name);
  }
}

int32_t AllocationPool::wanted(const ClusterView& view) const {
  if (!options_.is_elastic()) return options_.nodes;
  int32_t first = has_begun_ ? 0 : options_.nodes;
  int32_t helpful = live() + std::max(0, view.more - waiting());
  return std::clamp(std::max(first, helpful), options_.min, options_.max);
}

void AllocationPool::request_missing(const ClusterView& view, PoolActions& steps, int64_t now) {
  if (is_final_ || now < request_at_ms_) return;
  int32_t missing = wanted(view) - live();
  has_begun_ = true;
  if (missing <= 0) return;
  if (options_.is_elastic()) {
    steps.requests.assign(static_cast<size_t>(std::min(missing, kRequestsMax)), 1);
  } else {
    steps.requests.push_back(missing);
  }
}

std::vector<std::string> AllocationPool::take_notes() { return std::exchange(notes_, {}); }

std::vector<PoolLogLine> AllocationPool::take_log_lines() { return std::exchange(log_lines_, {}); }

std::string AllocationPool::status() const {
  std::string text;
  for (const auto& [job, allocation] : allocations_) {
    if (allocation.is_cancelled) continue;
    text += fmt::format("{}{} is {}", text.empty() ? "" : "; ", described(job, allocation.nodes),
                        state_text(allocation.word, allocation.reason));
  }
  if (failures_ > 0) text += (text.empty() ? "" : "; before that: ") + last_failure_;
  return text;
}

std::vector<uint64_t> AllocationPool::jobs() const {
  std::vector<uint64_t> jobs;
  for (const auto& [job, allocation] : allocations_) jobs.push_back(job);
  return jobs;
}

int32_t AllocationPool::nodes_of(uint64_t job) const {
  auto found = allocations_.find(job);
  return found == allocations_.end() ? 0 : found->second.nodes;
}

}  // namespace flow::slurm
