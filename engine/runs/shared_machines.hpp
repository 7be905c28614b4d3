// Workers on the same machine and the resources that they offer twice. A GPU counts for only one of
// them. CPUs and memory count as offered; a note warns if the sum exceeds the machine.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/core/core.hpp"

namespace flow {

/// Used only by the engine's thread. An entry is removed when its worker is lost.
class SharedMachines {
 public:
  /// `own`: the machine on which the engine runs.
  explicit SharedMachines(Hardware own = own_hardware()) : own_(std::move(own)) {}

  /// Call it before the worker joins. Removes the GPUs that another worker or the head already has.
  void add(const core::State& state, core::WorkerInfo& info, Hardware machine);
  void remove(const std::string& name) { workers_.erase(name); }
  void gpu_failed(const std::string& name, const std::string& uuid, const std::string& fault,
                  bool is_dead);

  /// Returns released GPUs to connected workers that offered them, as one event per worker. If
  /// several workers offered a GPU, the first worker gets it.
  std::vector<core::GpusFound> orphans(const core::State& state) const;
  /// A sentence that names the resources that the worker and another one both offer, and the
  /// remedy; "" if there are none.
  std::string note_of(const core::State& state, const std::string& name) const;

 private:
  struct Offer {
    std::vector<Gpu> gpus;
    Hardware machine;
  };
  std::string gpu_note(const core::State& state, const core::WorkerInfo& info) const;
  std::string excess_note(const core::State& state, const core::WorkerInfo& info) const;
  const Hardware* machine_of(const core::WorkerInfo& info) const;

  const Hardware own_;
  std::map<std::string, Offer> workers_;  // by name
};

}  // namespace flow
