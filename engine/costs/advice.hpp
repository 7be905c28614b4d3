// Advice from measurements of attempts. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/cost.hpp"

namespace flow {

/// A successful attempt.
struct AttemptSample {
  std::string run, task, name;  // "align", and "align[3]" of an instance
  std::string worker;
  bool is_of_map = false;
  uint32_t ranks = 1;
  double duration_s = 0;
  // Requested per rank; 0: not requested, or computed by a function.
  double cpus = 0;
  int64_t memory_bytes = 0;
  // Measured; below 0: unknown.
  double cpu_s = -1;
  int64_t peak_memory = -1;
};
/// A task that ran in this run and in a run before, and the parts of the key in which it differed.
struct KeyMiss {
  std::string run, task, name;
  std::vector<std::string> causes;  // "argument `date`"
  std::string text;                 // of the newest: with values
  double duration_s = 0;
};

// Thresholds. Each is documented in docs/operations.md.
constexpr double kMemoryMargin = 1.15;         // the advised memory, over the highest peak
constexpr double kMemoryWaste = 1.5;           // asked over advised
constexpr int64_t kMemorySavedMin = 64 << 20;  // bytes
constexpr double kCpuMargin = 1.1;             // over the highest average use of an attempt
constexpr double kCpuSecondsMin = 1;           // shorter attempts are too short to measure CPU use
constexpr double kRanksGain = 0.7;  // fraction of the ideal speedup: more ranks are advised
constexpr double kRanksLoss = 0.5;  // below this fraction fewer ranks are advised
constexpr size_t kMissesMin = 2;    // misses in a row with the same cause
constexpr size_t kWorkerSamplesMin = 3;
constexpr double kWorkerSlow = 1.5;  // median duration over that on the other workers
constexpr size_t kStragglerSamplesMin = 5;
constexpr double kStragglerSlow = 3;  // duration over the median
constexpr double kStragglerSecondsMin = 1;

/// Ordered by kind, then by task. `misses` are of consecutive runs, newest first.
std::vector<Advice> advice_of(const std::vector<AttemptSample>& samples,
                              const std::vector<KeyMiss>& misses);

}  // namespace flow
