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

  /// It starts when `commit` is released.
  void stage(AttemptOrder order, uint64_t commit);
  /// Starts what waits for this commit or an earlier one.
  void release(uint64_t commit);
  /// The addresses of all ranks of the attempt: its ranks here go on.
  void exchange_addresses(const core::AttemptId& id, size_t addresses);
  void stop(const core::AttemptId& id);
  void ack_saved(const core::AttemptId& id, const std::string& name, bool is_saved);
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
    bool has_addresses = false;  // of the gang's other ranks
    uint32_t saves_left = 0;
    std::string awaits_save;  // name of the step whose acknowledgement it waits for
    bool is_awaiting = false;
  };
  void start(const RankId& rank);
  void continue_later(const RankId& rank, core::Time delay);
  void go_on(const RankId& rank);
  void serve(const RankId& rank);
  void die(const RankId& rank);
  void save(Attempt& attempt);
  std::string some_line();
  void fail_later(const RankId& rank);
  void finish(const RankId& rank);
  void end(const RankId& rank, Report report);

  World& world_;
  const DurableState& durable_;
  TaskMemory& memory_;
  const OnReport report_;
  std::map<RankId, Attempt> attempts_;
  uint64_t released_ = 0;
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

}  // namespace flow::sim
