// What all parts of one seed's world share: its time, its random numbers, what is on its way, and
// how many faults are still to come.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/core/types.hpp"
#include "tests/sim/disk.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

/// Thrown where a promise of the engine is broken.
struct BrokenPromise {
  std::string text;
};

enum class FaultKind : uint8_t {
  crash,
  disk,
  stall,
  partition,
  worker_death,
  spool,
  drain,
  gpu,
  blob,     // a result is gone when the head opens the disk
  task,     // an attempt fails, or one rank of a gang, through no fault of the task
  service,  // one that was ready dies
  stray
};

class World {
 public:
  /// With `is_calm` nothing goes wrong.
  explicit World(uint64_t seed, bool is_calm = false);

  Random random;
  core::Time now() const { return now_; }

  /// Does `what` when `delay` ms have passed.
  void after(core::Time delay, std::function<void()> what);
  /// Does the earliest thing that is due; false where none is.
  bool run_due();
  /// Lets the time pass up to the next thing to do, but no more than `most` ms.
  void pass(core::Time most);

  /// Whether a fault of this kind strikes now, at odds of one in `odds`.
  bool strikes(FaultKind kind, uint32_t odds);
  /// Whether faults of this kind may still strike.
  bool has_left(FaultKind kind) const {
    auto left = faults_left_.find(kind);
    return left != faults_left_.end() && left->second > 0;
  }
  /// So many more of them may strike, but not in a calm world.
  void add_faults(FaultKind kind, uint32_t count);
  /// From now on nothing goes wrong.
  void end_faults() { faults_left_.clear(); }
  uint32_t struck(FaultKind kind) const;
  /// Throws HeadCrash now and then.
  void may_crash(uint32_t odds);

  void note(std::string line);
  void keep_trace() { has_trace_ = true; }
  const std::deque<std::string>& trace() const { return trace_; }
  uint64_t step = 0;

 private:
  core::Time now_ = 1'700'000'000'000;
  uint64_t serial_ = 0;
  std::map<std::pair<core::Time, uint64_t>, std::function<void()>> due_;
  std::map<FaultKind, uint32_t> faults_left_, faults_struck_;
  bool has_trace_ = false;
  std::deque<std::string> trace_;  // the newest kTraceMax lines
};

/// Ranks of gangs wait for each other at their end.
class GangEnds {
 public:
  /// `go_on` is called when all `ranks` ranks of the attempt are at their end.
  void reach(const core::AttemptId& id, uint32_t rank, uint32_t ranks, std::function<void()> go_on);

 private:
  std::map<core::AttemptId, std::map<uint32_t, std::function<void()>>> waiting_;
};

std::string text_of(const core::AttemptId& id);

}  // namespace flow::sim
