// What attempts use, as the worker sees it from outside: for those that are killed, and for
// programs that run together.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/process/process_stat.hpp"
#include "engine/worker/local_worker.hpp"

namespace flow {

namespace {

constexpr int64_t kUsPerSecond = 1'000'000;
constexpr int64_t kSampleUs = 1'000'000;
constexpr int64_t kRanksUs = 2'000'000;  // from rank 0's result to the ends of the other ranks
constexpr int64_t kSampleShare = 100;    // looking takes at most this part of a CPU

int64_t us_of(const timeval& time) { return int64_t{time.tv_sec} * kUsPerSecond + time.tv_usec; }

}  // namespace

int64_t LocalWorker::cpu_us(pid_t pid) {
  auto stat = process_stat(pid);
  if (!stat) return -1;
  return static_cast<int64_t>(stat->cpu_ticks) * kUsPerSecond / ::sysconf(_SC_CLK_TCK);
}

// An executor knows its own peak, and its largest child; how much several programs have together is
// only seen from time to time.
std::vector<LocalWorker::MemorySample> LocalWorker::due_samples() {
  std::vector<MemorySample> samples;
  int64_t now_us = monotonic_us();
  if (now_us < next_sample_us_) return samples;
  next_sample_us_ = now_us + kSampleUs;
  for (const Slot& slot : slots_) {
    if (slot.queue.empty() || !slot.queue.front().runs_longer_than(kSampleUs, now_us)) continue;
    samples.push_back({slot.process.pid, slot.queue.front().order.rank_id(), 0});
  }
  return samples;
}

void LocalWorker::take_samples(std::vector<MemorySample>& samples) {
  std::vector<pid_t> executors;
  for (const MemorySample& sample : samples) executors.push_back(sample.executor);
  std::vector<int64_t> bytes = resident_bytes(executors);
  for (size_t i = 0; i < samples.size(); i++) samples[i].bytes = bytes[i];
}

void LocalWorker::note_samples(const std::vector<MemorySample>& samples, int64_t began_us) {
  for (const MemorySample& sample : samples) {
    Slot* slot = slot_of(sample.attempt);
    bool is_same = slot != nullptr && slot->process.pid == sample.executor &&
                   slot->queue.front().order.rank_id() == sample.attempt;
    if (!is_same) continue;  // it has ended meanwhile
    int64_t& peak = slot->queue.front().memory_peak;
    peak = std::max(peak, sample.bytes);
  }
  next_sample_us_ =
      std::max(next_sample_us_, began_us + (monotonic_us() - began_us) * kSampleShare);
}

// `used` covers all attempts of the executor.
core::AttemptUsage LocalWorker::usage_of_killed(const AssignedAttempt& front, const rusage& used) {
  core::AttemptUsage usage;
  usage.moved_bytes = front.order.fetched_bytes;
  if (front.memory_peak > 0) usage.peak_memory = front.memory_peak;
  int64_t total_us = us_of(used.ru_utime) + us_of(used.ru_stime);
  if (front.cpu_us_before >= 0 && total_us > 0)
    usage.cpu_us = std::max<int64_t>(0, total_us - front.cpu_us_before);
  return usage;
}

void LocalWorker::begin_measuring(const AttemptOrder& order) {
  if (order.gpus.empty()) return;
  measured_.insert(order.rank_id());
  meter_->begin(order.rank_id(), order.gpus, order.resources.gpus_milli);
}

void LocalWorker::stop_measuring(const RankId& id) {
  if (measured_.erase(id) > 0) meter_->drop(id);
}

bool LocalWorker::hold_for_gpus(Report& report) {
  bool is_measured = report.is<TaskFinished>() && measured_.erase(report.rank_id()) > 0;
  if (!is_measured || !meter_->end(report.rank_id())) return false;
  held_.push_back(std::move(report));
  return true;
}

void LocalWorker::report_measured() {
  if (held_.empty()) return;
  for (const auto& [id, usage] : meter_->take_ready()) {
    auto held =
        std::ranges::find_if(held_, [&](const Report& each) { return each.rank_id() == id; });
    if (held == held_.end()) continue;
    core::add_gpu_use(held->as<TaskFinished>()->usage, usage);
    Report report = std::move(*held);
    held_.erase(held);
    if (!hold_for_ranks(report)) reports_.push_back(std::move(report));
  }
}

bool LocalWorker::hold_for_ranks(Report& report) {
  bool is_result = report.rank == 0 && report.is<TaskFinished>() && gang_ends_.erase(report.id) > 0;
  if (!is_result || !has_other_ranks(report.id)) return false;
  gang_results_.emplace_back(std::move(report), monotonic_us() + kRanksUs);
  return true;
}

bool LocalWorker::has_other_ranks(const core::AttemptId& id) const {
  auto is_measured = [&](const Report& held) { return held.id == id; };
  auto runs_one = [&](const Slot& slot) {
    return std::ranges::any_of(
        slot.queue, [&](const AssignedAttempt& running) { return running.order.id == id; });
  };
  return std::ranges::any_of(held_, is_measured) || std::ranges::any_of(slots_, runs_one);
}

void LocalWorker::report_gangs() {
  int64_t now_us = gang_results_.empty() ? 0 : monotonic_us();
  for (auto result = gang_results_.begin(); result != gang_results_.end();) {
    bool waits = now_us < result->second && has_other_ranks(result->first.id);
    if (!waits) reports_.push_back(std::move(result->first));
    result = waits ? std::next(result) : gang_results_.erase(result);
  }
}

void LocalWorker::report_gang(const core::AttemptId& id) {
  auto result =
      std::ranges::find_if(gang_results_, [&](const auto& each) { return each.first.id == id; });
  if (result == gang_results_.end()) return;
  reports_.push_back(std::move(result->first));
  gang_results_.erase(result);
}

}  // namespace flow
