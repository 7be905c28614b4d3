// One seed: the product's engine loop with a disk, workers and clients that are simulated, all on
// one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/engine_clients.hpp"

namespace flow::sim {

class EngineSimulation {
 public:
  explicit EngineSimulation(uint64_t seed);
  ~EngineSimulation();

  /// "" or the promise that was broken, with the step.
  std::string run();
  uint32_t struck(FaultKind kind) const { return world_.struck(kind); }
  uint64_t steps() const { return world_.step; }
  void keep_trace() { world_.keep_trace(); }
  std::string trace() const;

 private:
  void play();
  void guard(const std::function<void()>& act);
  void step();
  bool strike_workers();
  bool clients_act();
  void wait_in_call();
  void progress();
  void restart(bool is_power_cut);
  void check_live();
  void check_end();

  World world_;
  Disk disk_;
  const std::unique_ptr<Store> reader_;  // of the disk, for the checks
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
