// Simulated attempts of one worker process: they start, report, wait for acknowledgements, and end.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/worker/worker.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

/// What simulated attempts of all workers share.
struct TaskMemory {
  GangEnds gang_ends;
  /// How often the task with this key has failed by itself, by run.
  std::map<std::pair<core::RunId, Digest>, uint32_t> failures;
};

class Attempts {
 public:
  using OnReport = std::function<void(Report)>;
  Attempts(World& world, const DurableState& durable, TaskMemory& memory, OnReport report);
  ~Attempts() { *is_alive_ = false; }

  /// With a `commit` above 0 it starts when that is released.
  void stage(AttemptOrder order, uint64_t commit);
  /// Starts what waits for this commit or an earlier one.
  void release(uint64_t commit);
  void stop(const core::AttemptId& id);
  void ack_saved(const core::AttemptId& id, const std::string& name, bool is_saved);
  /// The head has this report, but its answer to a save may be lost.
  void note_committed(const Report& report);
  /// Gives back what has not started, and asks the rest to end.
  void drain();
  bool has(const RankId& rank) const { return attempts_.contains(rank); }
  std::vector<RankId> ranks() const;

 private:
  struct Attempt {
    AttemptOrder order;
    uint64_t commit = 0;  // above 0: it waits for this one
    bool is_stopping = false;
    core::Time started = 0;
    uint32_t saves_left = 0;
    std::string awaits_save;  // name of the step whose acknowledgement it waits for
    bool is_awaiting = false;
  };
  void start(const RankId& rank);
  void continue_later(const RankId& rank, core::Time delay);
  void go_on(const RankId& rank);
  void save(Attempt& attempt);
  void finish(const RankId& rank);
  void end(const RankId& rank, Report report);

  World& world_;
  const DurableState& durable_;
  TaskMemory& memory_;
  const OnReport report_;
  std::map<RankId, Attempt> attempts_;
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

}  // namespace flow::sim
