// The simulated head: the product's EngineLoop over the simulated disk, with its own worker, and
// what a head knows of its other workers. It ends at any point and opens the same disk again.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/engine_loop.hpp"
#include "tests/sim/engine_worker.hpp"

namespace flow::sim {

/// Thrown where the engine has stopped by itself, because a write failed.
struct HeadStopped {};

/// Of the head's own machine.
struct HeadCapacity {
  int32_t jobs = 0;
  std::vector<Gpu> gpus;
};

class Head {
 public:
  Head(World& world, Disk& disk, const DurableState& durable, TaskMemory& memory,
       HeadCapacity capacity);

  bool is_up() const { return loop_ != nullptr; }
  EngineLoop& loop() { return *loop_; }
  uint64_t starts() const { return starts_; }
  /// Recovers from the disk. Throws HeadCrash.
  void open();
  /// The process ends. What it had sent is on its way or lost.
  void end();
  /// A turn, or the deferred write of one, as `random` has it; false where there is nothing to do.
  /// Throws HeadCrash, and HeadStopped.
  bool act();

  // What comes over the connections of workers.
  void on_join(const std::shared_ptr<SimConnection>& connection, JoinOffer offer);
  void on_report(SimConnection& connection, uint64_t number, Report report);
  void on_draining(SimConnection& connection);
  void on_disconnected(SimConnection& connection, bool is_for_good, const std::string& why);

  /// When all effects of the durable records are executed. Throws BrokenPromise.
  void check_ranks() const;
  /// A GPU of this machine or of a worker fails.
  void fail_gpu(const std::string& worker, const std::string& uuid, bool is_dead);

 private:
  /// As the product's ClusterMembership keeps it.
  struct ConnectedWorker {
    std::shared_ptr<SimConnection> connection;
    std::string process, spool;
    uint64_t received = 0, durable = 0, serial = 0;
    bool is_acked = true;
  };
  using Workers = std::map<std::string, ConnectedWorker>;
  Workers::iterator find(const SimConnection& connection);
  void start_lease(const std::string& name, const std::string& why, bool has_died);
  uint64_t committed_of(const std::string& name, const std::string& spool) const;
  void on_durable(const std::string& name, uint64_t serial, uint64_t number);
  void report(const std::string& name, ConnectedWorker& worker, uint64_t number, Report report);

  World& world_;
  Disk& disk_;
  const DurableState& durable_;
  TaskMemory& memory_;
  uint64_t starts_ = 0;  // each head's own; also tells closures whose head is gone
  const HeadCapacity capacity_;
  std::unique_ptr<EngineLoop> loop_;
  GangRanks own_ranks_;
  Workers workers_;
  uint64_t last_serial_ = 0;
};

}  // namespace flow::sim
