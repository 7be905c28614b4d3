// The simulated head: the product's EngineLoop and ClusterMembership over the simulated disk and
// network, with its own worker. It ends at any point and opens the same disk again.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/head/membership.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "tests/sim/engine_attempts.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_network.hpp"
#include "tests/sim/engine_ranks.hpp"
#include "tests/sim/engine_rollovers.hpp"

namespace flow::sim {

constexpr const char* kHeadAddress = "127.0.0.1:7000";
constexpr core::Time kTickMs = 400;  // between two ticks of a session

/// Thrown where the engine has stopped by itself, because a write failed.
struct HeadStopped {};

constexpr const char* kGpuFault = "fell off the bus";

/// Of the head's own machine.
struct HeadCapacity {
  int32_t jobs = 0;
  std::vector<Gpu> gpus;
};

class Head {
 public:
  Head(World& world, Disk& disk, const DurableState& durable, TaskMemory& memory,
       HeadCapacity capacity, SimFronts& fronts);
  ~Head() { end(); }

  bool is_up() const { return loop_ != nullptr; }
  EngineLoop& loop() { return *loop_; }
  SimNetwork& network() { return network_; }
  uint64_t starts() const { return starts_; }
  /// Recovers from the disk. Throws HeadCrash.
  void open();
  /// The process ends. What it had sent is on its way or lost.
  void end();
  /// A turn, or the deferred write of one, as `random` has it; false where there is nothing to do.
  /// Throws HeadCrash, and HeadStopped.
  bool act();
  /// This report of a worker comes once more, without its number.
  void report_again(const std::string& worker, const Report& report);
  cluster::SessionOptions session_options() const;

  /// Of the worker in its own process, when all effects of the durable records are executed.
  /// Throws BrokenPromise.
  void check_ranks() const;
  /// A GPU of this machine fails.
  void fail_gpu(const std::string& uuid, bool is_dead);

 private:
  void tick_later();

  World& world_;
  Disk& disk_;
  const DurableState& durable_;
  TaskMemory& memory_;
  uint64_t starts_ = 0;  // each head's own; also tells closures whose head is gone
  const HeadCapacity capacity_;
  core::Time stalled_until_ = 0;  // no turn runs and nothing is written
  SimFronts& fronts_;
  SimNetwork network_;
  std::shared_ptr<SimProcess> process_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<ClusterMembership> membership_;  // refers to the loop
  GangRanks own_ranks_;
};

}  // namespace flow::sim
