// Workers of a head that run on one machine, and what they offer twice. A GPU counts for one of
// them. CPUs and memory count as offered, and a note tells of more than the machine has.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/core/core.hpp"

namespace flow {

/// Used by the engine's thread only. An entry is removed when its worker is lost.
class SharedMachines {
 public:
  /// `own`: the machine that the engine runs on.
  explicit SharedMachines(Hardware own = own_hardware()) : own_(std::move(own)) {}

  /// Before the worker joins. Removes the GPUs that another worker, or the head, has.
  void add(const core::State& state, core::WorkerInfo& info, Hardware machine);
  void remove(const std::string& name) { workers_.erase(name); }
  void gpu_failed(const std::string& name, const std::string& uuid, const std::string& fault,
                  bool is_dead);

  /// GPUs that no worker has any more, for workers that offered them and are up. One event per
  /// worker; the worker that is first among the hosts gets a GPU that several offered.
  std::vector<core::GpusFound> orphans(const core::State& state) const;
  /// A sentence that names what the worker and another one both offer, and the remedy; "" if there
  /// is nothing.
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
