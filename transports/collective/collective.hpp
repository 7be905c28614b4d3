// Collectives on CPUs: shared memory within a node, links of any transport between nodes.
#pragma once
#include <memory>
#include <string>

#include "flow/collective.hpp"
#include "flow/transport.hpp"

namespace flow {

struct GangOptions {
  /// No other gang's that a rank could meet: of a run, a task and an attempt.
  std::string gang;
  int rank = 0, ranks = 1;
  /// Random bytes that all ranks of this gang were given, and nobody else. Without them ranks of
  /// different nodes may meet on loopback alone.
  std::string key;
  /// What is long goes sealed to other nodes too, under keys of the link. What is short always
  /// does.
  bool encrypts = false;
  /// To ranks on other nodes; outlives the communicator. Null: all are on this node.
  Transport* transport = nullptr;
  std::string listen = "127.0.0.1:0";
  /// Ranks that say the same share memory. Empty: what tells this machine, user and container.
  std::string node;
  /// Links between the nodes are made at once, so that nodes that can't reach each other are known
  /// before there is a call that needs them.
  bool connects_at_once = false;
  int64_t join_ms = 30'000;  // until all ranks of this node have joined
  /// A rank that is waited for so long ends the communicator. 0: it is waited for for ever.
  int64_t deadline_ms = 0;
};

/// On any thread; join() waits for the ranks of this node.
Result<std::unique_ptr<Rendezvous>> make_rendezvous(const GangOptions& options);

}  // namespace flow
