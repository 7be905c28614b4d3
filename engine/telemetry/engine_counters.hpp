// What an engine counts since its start, as plain numbers of the thread that decides.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "engine/core/core.hpp"
#include "engine/telemetry/metric_text.hpp"

namespace flow {

/// Used by the turn's thread.
class EngineCounters {
 public:
  /// Call it after the record was applied, with the commands that it emitted.
  void count(const core::State& state, const core::Record& record,
             std::span<const core::Command> commands);
  /// A commit became durable; `us`: how long its write took.
  void count_commit(size_t records, int64_t us);

  void add_to(MetricText& out) const;

 private:
  static constexpr size_t kCauses = static_cast<size_t>(core::kCauseLast) + 1;
  static constexpr size_t kRunStatuses = static_cast<size_t>(core::RunStatus::interrupted) + 1;

  void count_failure(const core::Run& run, core::UnitId unit, core::Cause cause);
  void count_losses(const core::State& state, std::span<const core::Command> commands);
  void count_ended_run(const core::Run& run);

  uint64_t started_ = 0, succeeded_ = 0, waiting_ = 0, stopped_ = 0, requeued_ = 0;
  std::array<uint64_t, kCauses> failed_{}, retries_{};  // attempts, by cause
  uint64_t runs_submitted_ = 0;
  std::array<uint64_t, kRunStatuses> runs_ended_{};
  core::RunCounts tasks_ended_;  // of runs that have ended
  uint64_t records_ = 0;
  DurationHistogram commits_;
};

/// Gauges of the state: runs and tasks by status, workers, slots and GPUs.
void add_state_metrics(const core::State& state, MetricText& out);

}  // namespace flow
