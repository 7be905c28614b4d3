// A process of a simulated worker: the product's WorkerAgent and its sessions, over the simulated
// network and folder. Only the executors, which run the attempts, are simulated.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/cluster/session/sessions.hpp"
#include "engine/cluster/worker/worker_agent.hpp"
#include "tests/sim/engine_agent_monitor.hpp"
#include "tests/sim/engine_agent_spool.hpp"
#include "tests/sim/engine_attempts.hpp"
#include "tests/sim/engine_network.hpp"

namespace flow::sim {

class Head;

/// The simulated world around a worker.
struct WorkerWorld {
  World& world;
  const DurableState& durable;
  TaskMemory& memory;
  Head& head;
};

enum class HowItEnds : uint8_t { exits, is_killed, machine_is_gone };

class AgentProcess {
 public:
  /// `on_end` is called when it has ended by itself, once; it must not destroy the process.
  AgentProcess(const WorkerWorld& around, const core::WorkerInfo& info,
               std::shared_ptr<SimSpoolFolder> spool, core::Time clock_skew,
               std::function<void()> on_end);
  ~AgentProcess();

  void drain();
  void fail_gpu(const std::string& uuid, bool is_dead);
  const AgentMonitor& monitor() const { return monitor_; }
  void end(HowItEnds how);

 private:
  class Executors;
  class Session;

  void start();
  void enter(const std::function<void()>& act);
  void connect();
  void connect_later(core::Time delay);
  void tick_later();
  cluster::SessionOptions session_options() const;

  const WorkerWorld around_;
  World& world_;
  const core::WorkerInfo info_;
  const std::shared_ptr<SimSpoolFolder> spool_;
  const core::Time clock_skew_;
  const std::function<void()> on_end_;
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  AgentMonitor monitor_;
  const std::shared_ptr<SimProcess> process_ = std::make_shared<SimProcess>();
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::WorkerAgent> agent_;
  Executors* executors_ = nullptr;  // the agent's
  bool is_entered_ = false;
  // After the agent, which their callbacks use.
  std::unique_ptr<cluster::Sessions> sessions_;
};

}  // namespace flow::sim
