// The simulated network: the product's Transport, whose frames come late, and which breaks links,
// is partitioned, and loses, repeats, swaps or changes frames.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flow/transport.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

/// A process that has links. All that the network calls in it goes through `enter`.
struct SimProcess {
  std::string host;
  bool is_alive = true;
  /// Before it sends a frame; may throw.
  std::function<void()> on_send = [] {};
  std::function<void(const std::function<void()>&)> enter = [](const auto& act) { act(); };
};

/// What happens to one frame of a link.
enum class FrameFault : uint8_t { none, lost, repeated, swapped, changed, count };

class SimWire;

/// It outlives the transports.
class SimNetwork {
 public:
  /// `stamp`: a number that each frame takes with it; see stamp_of_frame().
  SimNetwork(World& world, std::function<uint64_t()> stamp);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  std::unique_ptr<Transport> transport(std::shared_ptr<SimProcess> process);
  /// Ends its links without a goodbye. Peers find out, unless the machine is gone too.
  void kill(SimProcess& process, bool is_machine_gone);
  /// Both ends find out later; what is under way is lost.
  void cut(const std::string& host);
  /// What the machine sends and what is sent to it arrives when this time has passed.
  void partition(const std::string& host, core::Time ms);
  /// Of the next frame that this machine sends, or is sent.
  void fault_next_frame(const std::string& host, FrameFault fault);
  /// While a frame is handled: the stamp at the time when it was sent.
  uint64_t stamp_of_frame() const { return stamp_of_frame_; }

 private:
  friend class SimWire;
  friend class SimTransport;
  using Accept = std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>;
  struct Listening {
    std::shared_ptr<SimProcess> process;
    Accept accept;
  };
  std::vector<std::shared_ptr<SimWire>> wires_of(const std::string& host);
  core::Time delay();

  World& world_;
  const std::function<uint64_t()> stamp_;
  std::map<std::string, Listening> listeners_;
  std::map<std::string, core::Time> partitioned_until_;
  std::vector<std::weak_ptr<SimWire>> wires_;  // those that are down leave in wires_of()
  uint64_t stamp_of_frame_ = 0;
};

}  // namespace flow::sim
