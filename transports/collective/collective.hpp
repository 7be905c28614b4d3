// Collectives on CPUs: shared memory within a node, links of any transport between nodes.
#pragma once
#include <memory>
#include <string>

#include "flow/collective.hpp"
#include "flow/transport.hpp"

namespace flow {

struct GangOptions {
  /// A name that no other gang of the cluster has: run, task and attempt.
  std::string gang;
  int rank = 0, ranks = 1;
  /// Random bytes that only the ranks of this gang hold. Without them, ranks of different nodes may
  /// connect over loopback only.
  std::string key;
  /// Also encrypts large messages to other nodes, with keys of the link. Small messages are always
  /// encrypted.
  bool encrypts = false;
  /// Connects to ranks on other nodes; outlives the communicator. Null: all ranks are on this node.
  Transport* transport = nullptr;
  std::string listen = "127.0.0.1:0";
  /// Ranks with the same text share memory. Empty: a text that identifies this machine, user and
  /// container.
  std::string node;
  /// Links between the nodes are made at the start, so that an unreachable node is reported before
  /// a call needs it.
  bool connects_at_once = false;
  int64_t join_ms = 30'000;  // until all ranks of this node have joined
  /// A rank that is awaited longer than this ends the communicator. 0: no limit.
  int64_t deadline_ms = 0;
};

/// Any thread; join() waits for the ranks of this node.
Result<std::unique_ptr<Rendezvous>> make_rendezvous(const GangOptions& options);

}  // namespace flow
