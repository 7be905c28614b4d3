// A simulated machine with a worker: its processes follow each other, with the same spool or an
// empty one, and its network fails.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/sim/engine_agent_process.hpp"

namespace flow::sim {

class SimWorker {
 public:
  SimWorker(World& world, const DurableState& durable, TaskMemory& memory, Head& head,
            core::WorkerInfo info);

  void start_process();
  /// Ends the process; another one follows.
  void die();
  /// Announces that it leaves, and does so.
  void drain();
  /// Something happens to its link: it breaks, stalls, or does not carry a frame as it was sent.
  void cut_connection();
  void fail_gpu(const std::string& uuid, bool is_dead);
  /// The capacity that its next process has.
  void set_info(core::WorkerInfo info) { info_ = std::move(info); }
  /// An attempt of a gang that has ended, whose ranks here were not told to stop.
  std::optional<core::AttemptId> stale_ranks() const;
  const std::string& name() const { return info_.name; }

 private:
  void start_later();
  void empty_spool();

  World& world_;
  const WorkerWorld around_;
  core::WorkerInfo info_;
  const core::Time clock_skew_;
  uint32_t processes_ = 0;
  std::shared_ptr<SimSpoolFolder> spool_;
  std::unique_ptr<AgentProcess> process_;
};

}  // namespace flow::sim
