// Reads what a head sends to a worker's agent, and what the agent sends, and compares it with what
// is durable and with what runs.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cluster/transfer/worker_messages.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_ranks.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

/// Of one process.
class AgentMonitor {
 public:
  AgentMonitor(World& world, const DurableState& durable, std::string worker)
      : world_(world), durable_(durable), worker_(std::move(worker)) {}

  void begin_session();
  /// A chunk that the head sent when this many batches were durable. Throws BrokenPromise.
  void from_head(std::string_view chunk, uint64_t batches);
  /// A chunk that the agent sends while these ranks run. Throws BrokenPromise.
  void from_agent(std::string_view chunk, const std::vector<RankId>& running);
  /// An attempt of a gang that has ended, and that the agent was not told to stop in this session.
  std::optional<core::AttemptId> stale_ranks() const { return ranks_.stale(durable_); }

 private:
  void check(const worker_protocol::ToWorker& message, uint64_t batches);
  void check_acknowledged(uint64_t number, uint64_t batches);

  World& world_;
  const DurableState& durable_;
  const std::string worker_;
  cluster::MessageAssembler from_head_, from_agent_;
  std::map<uint64_t, core::AttemptId> ends_;  // by number of the report; not acknowledged yet
  std::vector<std::pair<uint64_t, core::AttemptId>> staged_;  // by commit; not released yet
  GangRanks ranks_;
};

}  // namespace flow::sim
