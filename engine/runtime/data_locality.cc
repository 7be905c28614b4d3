#include "engine/runtime/data_locality.hpp"

namespace flow {

std::vector<std::pair<core::WorkerId, uint64_t>> InputLocality::of(const core::Run& run,
                                                                   core::UnitId unit) const {
  const auto* contents = resolver_.inputs(run.units[unit].key);
  if (contents == nullptr) return {};
  if (workers_.empty())
    for (size_t worker = 0; worker < state_.workers.size(); worker++)
      workers_.emplace(state_.workers[worker].info.name, static_cast<core::WorkerId>(worker));
  cluster::BlobDirectory::ByteCounts bytes = blob_directory_.bytes_of(*contents);
  std::vector<std::pair<core::WorkerId, uint64_t>> places{{core::WorkerId{0}, bytes.all}};
  for (const auto& [name, count] : bytes.at) {
    auto worker = workers_.find(name);
    if (worker != workers_.end()) places.emplace_back(worker->second, count);
  }
  return places;
}

}  // namespace flow
