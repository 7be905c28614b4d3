// The location of the inputs of ready units, for the scheduler: which workers have reported the
// large blobs to which the units' keys refer.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/sched/sched.hpp"

namespace flow {

/// Valid while the set of workers does not change. Lookups are lazy.
class InputLocality final : public core::InputLocations {
 public:
  InputLocality(const core::State& state, const InputResolver& resolver,
                const cluster::BlobDirectory& blob_directory)
      : state_(state), resolver_(resolver), blob_directory_(blob_directory) {}

  std::vector<std::pair<core::WorkerId, uint64_t>> of(const core::Run& run,
                                                      core::UnitId unit) const override {
    const auto* blobs = resolver_.inputs(run.units[unit].key);
    if (blobs == nullptr) return {};
    if (workers_.empty())
      for (size_t worker = 0; worker < state_.workers.size(); worker++)
        workers_.emplace(state_.workers[worker].info.name, static_cast<core::WorkerId>(worker));
    cluster::BlobDirectory::ByteCounts bytes = blob_directory_.bytes_of(*blobs);
    std::vector<std::pair<core::WorkerId, uint64_t>> locations{{core::WorkerId{0}, bytes.all}};
    for (const auto& [name, count] : bytes.at) {
      auto worker = workers_.find(name);
      if (worker != workers_.end()) locations.emplace_back(worker->second, count);
    }
    return locations;
  }

 private:
  const core::State& state_;
  const InputResolver& resolver_;
  const cluster::BlobDirectory& blob_directory_;
  mutable std::map<std::string, core::WorkerId> workers_;  // filled at the first request
};

}  // namespace flow
