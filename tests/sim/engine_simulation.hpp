// One seed: the product's head and workers with disks, a network, executors and clients that are
// simulated, all on one thread. What is submitted depends on the seed alone, so that a world in
// which things fail can be compared with a calm one.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/engine_clients.hpp"
#include "tests/sim/engine_contest.hpp"
#include "tests/sim/engine_worker.hpp"

namespace flow::sim {

/// Random plans for workers that differ, or gangs that compete for equal workers,
/// or versions of a served name.
enum class Cast : uint8_t { anything, contest, rollover };

class EngineSimulation {
 public:
  explicit EngineSimulation(uint64_t seed, Cast cast = Cast::anything, bool is_calm = false);
  ~EngineSimulation();

  /// "" or the promise that was broken, with the step.
  std::string run();
  uint32_t struck(FaultKind kind) const { return world_.struck(kind); }
  bool has_lost_result() const { return has_lost_result_; }
  size_t recomputations() const;
  uint64_t steps() const { return world_.step; }
  const Seen& seen() const { return durable_.seen(); }
  const SimFronts& fronts() const { return fronts_; }
  size_t waiting_gangs() const { return fairness_.waits(); }
  /// Of all runs, when they have ended.
  std::map<core::RunId, Outcome> outcomes() const;
  void keep_trace() { world_.keep_trace(); }
  std::string trace() const;

 private:
  void add_workers();
  void add_clients(uint64_t seed);
  void play();
  void guard(const std::function<void()>& act);
  void step();
  bool strike_workers();
  void fail_gpu();
  void lose_result();
  void change_capacity(SimWorker& worker);
  RecordObserver* observer();
  core::WorkerInfo worker_info(uint32_t number);
  bool clients_act();
  void wait_in_call();
  void progress();
  void restart(bool is_power_cut);
  void check_live();
  std::optional<core::AttemptId> stale_ranks() const;
  void check_end();

  World world_;
  const Cast cast_;
  const bool is_calm_;
  bool has_lost_result_ = false;
  Disk disk_;
  const std::unique_ptr<Store> reader_;  // of the disk, for the checks
  GangFairness fairness_;
  SimFronts fronts_;
  DurableState durable_;
  TaskMemory memory_;
  Head head_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  core::Time idle_ms_ = 1;
  core::Time opens_at_ = 0;
  const std::function<void()> while_waiting_;
};

}  // namespace flow::sim
